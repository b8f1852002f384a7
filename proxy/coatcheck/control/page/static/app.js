// Logging in, staying connected, and telling what is wrong when that fails.

import { Refused, follow, forget, hasKey, login, post, read } from "./api.js";
import { drawBoard, setUpBoard } from "./board.js";
import { revokeMany, setUpDialogs } from "./dialogs.js";
import { $, show, write } from "./dom.js";
import { add, setUpVerdicts, wireVerdicts } from "./verdicts.js";
import { setClock, span } from "./words.js";

const FIRST_MS = 500, LONGEST_MS = 15000;

let latest = null;
let who = "";
let running = false;

function announce(words) {
  write($("announce"), words);
}

function trouble(words) {
  write($("trouble"), words ?? "");
  show($("trouble"), Boolean(words));
}

function view(loggedIn) {
  show($("login"), !loggedIn);
  show($("board"), loggedIn);
  show($("who"), loggedIn);
  if (!loggedIn) {
    for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
    document.title = "Coatcheck";
    write($("daemon"), "");
    delete $("daemon").dataset.state;
    ($("link-form").hidden ? $("token") : $("link-form").querySelector("button")).focus();
  }
}

function take(line) {
  switch (line.kind) {
    case "hello":
      trouble(null);
      view(true);
      write($("name"), `${line.name} · ${line.role} · ${line.tenants.includes("*") ? "all tenants" : line.tenants.join(", ")}`);
      if (who !== line.name) setUpVerdicts(line);
      who = line.name;
      setUpBoard(line, announce);
      return;
    case "now":
      setClock(line.at);
      latest = line;
      drawBoard(line);
      return;
    case "over":
      throw new Refused(401, { message: "your login is over", hint: "Log in again." });
    default:
      add([line]);
  }
}

async function stay() {
  if (running) return;
  running = true;
  let wait = FIRST_MS;
  const since = { at: 0 };
  while (hasKey()) {
    try {
      await follow((line) => {
        wait = FIRST_MS;
        since.at = Date.now();
        take(line);
      });
    } catch (problem) {
      if (problem instanceof Refused && problem.status === 401) {
        forget();
        trouble(null);
        view(false);
        write($("login-problem"), `${problem.message}. ${problem.hint}`);
        break;
      }
      const silent = since.at ? ` for ${span((Date.now() - since.at) / 1000)}` : "";
      trouble(problem instanceof Refused
        ? `The daemon refuses: ${problem.message}. ${problem.hint} Trying again in ${span(wait / 1000)}.`
        : `The daemon has not answered${silent}. What is shown below is old. Trying again every ${span(Math.max(wait, 1000) / 1000)}.`);
      $("daemon").dataset.state = "bad";
      write($("daemon"), "No answer");
    }
    await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(wait * 2, LONGEST_MS);
  }
  running = false;
}

async function enter(entry) {
  write($("login-problem"), "");
  try {
    await login(entry);
    $("token").value = "";
    show($("link-form"), false);
    show($("token-form"), true);
    await stay();
  } catch (problem) {
    write($("login-problem"), `${problem.message}. ${problem.hint ?? ""}`);
    show($("link-form"), false);
    show($("token-form"), true);
    $("token").focus();
    offer();
  }
}

// The provider's button, if there is one; and what came of a login that led back here.
async function offer(refused) {
  const said = await read("oidc").catch(() => null);
  if (!said?.host) return;
  write($("oidc"), `Log in with ${said.host}`);
  show($("oidc"), true);
  const words = refused && Object.hasOwn(said.refusals, refused) ? said.refusals[refused] : null;
  if (words) write($("login-problem"), `${words.message}. ${words.hint}`);
}

async function leave() {
  write($("login-problem"), "");
  try {
    location.assign((await post("oidc/begin")).url);
  } catch (problem) {
    write($("login-problem"), `${problem.message}. ${problem.hint ?? ""}`);
  }
}

function start() {
  setUpDialogs(announce);
  wireVerdicts();
  $("revoke-many").addEventListener("click", () => latest && revokeMany(latest.choices));
  $("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    enter({ token: $("token").value.trim() });
  });
  $("oidc").addEventListener("click", leave);
  $("logout").addEventListener("click", async () => {
    await post("logout").catch(() => null);
    forget();
    location.reload();
  });
  // From `coatcheck page`, or back from the provider. The code leaves the address at once, and counts only after a
  // click: another site can lead here, but not log this browser in as somebody else behind its user's back.
  const code = /^#login=([\w-]{20,100})$/.exec(location.hash)?.[1];
  const refused = /^#oidc=(\w{1,20})$/.exec(location.hash)?.[1];
  if (location.hash) history.replaceState(null, "", location.pathname);
  if (!code) offer(refused);
  if (hasKey()) {
    if (code) announce("You are logged in already. Log out to use the link.");
    stay();
    return;
  }
  if (code) {
    show($("token-form"), false);
    show($("link-form"), true);
    $("link-form").addEventListener("submit", (event) => {
      event.preventDefault();
      enter({ code });
    }, { once: true });
  }
  view(false);
}

start();
