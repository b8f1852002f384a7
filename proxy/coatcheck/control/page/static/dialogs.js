// Everything that takes something away is asked for once more here, with what it means and room for a reason.

import { post, read } from "./api.js";
import { $, button, el, keyed, part, plain, show, write } from "./dom.js";
import { ago, clock, many, short, span, now } from "./words.js";

let run = null;

// `make(why)` does it and gives a sentence for afterwards. `word`: what must be typed, where a slip would be bad.
function ask({ title, words, fields = [], word = null, yes = "Revoke", make }) {
  write($("confirm-title"), title);
  write($("confirm-words"), words);
  write($("confirm-yes"), yes);
  write($("confirm-problem"), "");
  const why = el("input", { id: "confirm-why", maxlength: 200, autocomplete: "off" });
  const typed = word && el("input", { id: "confirm-word", autocomplete: "off", spellcheck: "false", autocapitalize: "none" });
  $("confirm-fields").replaceChildren(
    ...fields,
    el("label", { for: "confirm-why", text: "Why (for the audit log)" }), why,
    ...(typed ? [el("label", { for: "confirm-word", text: `Type ${word} to go on` }), typed] : []),
  );
  const ready = () => { $("confirm-yes").disabled = Boolean(typed) && typed.value.trim() !== word; };
  typed?.addEventListener("input", ready);
  ready();
  run = async () => {
    const said = why.value.replace(/[^ -~]/g, "?").trim();
    return make(said === "" ? {} : { why: said });
  };
  $("confirm").showModal();
  $("confirm-no").focus(); // what is easiest to do does nothing
}

export function setUpDialogs(announce) {
  $("confirm-no").addEventListener("click", () => $("confirm").close());
  $("details-close").addEventListener("click", () => $("details").close());
  $("confirm").addEventListener("close", () => { run = null; });
  $("confirm-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const doing = run;
    if (!doing || $("confirm-yes").disabled) return;
    $("confirm-yes").disabled = true;
    try {
      announce(await doing());
      if (run === doing) $("confirm").close();
    } catch (problem) {
      write($("confirm-problem"), `Not done: ${problem.message}. ${problem.hint ?? ""}`);
      $("confirm-yes").disabled = false;
    }
  });
}

export function revokeSession(session) {
  const of = session.tenant ? ` of ${session.tenant}${session.subject ? `/${session.subject}` : ""}` : "";
  ask({
    title: "Revoke this session?",
    words: `${session.id}${of}. Its handles count nowhere any more, and what runs is cut now. This cannot be undone; a new session can be opened.`,
    make: async (why) => {
      await post(`v1/sessions/${session.id}/revoke`, why);
      return `Session ${short(session.id)} is revoked.`;
    },
  });
}

function revokeHandle(session, handle) {
  ask({
    title: "Revoke this handle?",
    words: `Handle ${handle.jti} for ${handle.credential}, of session ${session}. The session goes on with its other handles.`,
    make: async (why) => {
      await post(`v1/sessions/${session}/handles/${handle.jti}/revoke`, why);
      if ($("details").open) await fill(session);
      return `Handle ${handle.jti} is revoked.`;
    },
  });
}

export function revokeMany(choices) {
  const options = (values) => values.map((value) => el("option", { value, text: value }));
  const scope = el("select", { id: "confirm-scope" },
    el("option", { value: "credential", text: "One credential, from every session of a policy" }),
    el("option", { value: "tenant", text: "All sessions of a tenant" }),
    el("option", { value: "everything", text: "Everything: all sessions" }));
  const policy = el("select", { id: "confirm-policy" }, ...options(Object.keys(choices.policies)));
  const credential = el("select", { id: "confirm-credential" });
  const tenant = el("select", { id: "confirm-tenant" }, ...options(choices.tenants));
  const meaning = el("p", { className: "hint", id: "confirm-meaning" });
  const rows = {
    policy: el("div", {}, el("label", { for: "confirm-policy", text: "Policy" }), policy),
    credential: el("div", {}, el("label", { for: "confirm-credential", text: "Credential" }), credential),
    tenant: el("div", {}, el("label", { for: "confirm-tenant", text: "Tenant" }), tenant),
  };
  ask({
    title: "Revoke many",
    words: "It counts at once, on what runs, too.",
    fields: [el("label", { for: "confirm-scope", text: "What" }), scope, ...Object.values(rows), meaning],
    word: "revoke",
    make: async (why) => {
      const wanted = { ...why };
      if (scope.value === "everything") wanted.everything = true;
      else if (scope.value === "tenant") wanted.tenant = tenant.value;
      else Object.assign(wanted, { policy: policy.value, credential: credential.value });
      const { sessions } = await post("v1/revocations", wanted);
      return `Done: ${many(sessions, "session", "sessions")}.`;
    },
  });
  const changed = () => {
    show(rows.tenant, scope.value === "tenant");
    show(rows.policy, scope.value === "credential");
    show(rows.credential, scope.value === "credential");
    write(meaning, {
      credential: "The sessions go on without it. Rotate the secret in its store first: sessions that are opened later get it again.",
      tenant: "Each of them is over. Sandboxes of this tenant need new sessions.",
      everything: "Each session that you may see is over. Every sandbox stands still until it gets a new one.",
    }[scope.value]);
  };
  const chosen = () => credential.replaceChildren(...options(choices.policies[policy.value] ?? []));
  scope.addEventListener("change", changed);
  policy.addEventListener("change", chosen);
  chosen();
  changed();
}

export async function details(session, may) {
  write($("details-title"), `Session ${session}`);
  $("details-pairs").replaceChildren();
  $("details-handles").replaceChildren();
  $("details").dataset.mayEnd = may ? "yes" : "";
  $("details").showModal();
  await fill(session);
}

async function fill(id) {
  try {
    const { session, handles } = await read(`v1/sessions/${id}`);
    write($("details-problem"), "");
    const pairs = [
      ["Status", session.status],
      ["Tenant, subject", `${session.tenant} / ${session.subject}`],
      ["Policy", session.policy],
      ["Isolation", session.isolation],
      ["Proves itself by", session.origin.class],
      ["Opened", `${clock(session.opened_at)}, by ${session.opened_by}`],
      ["Credentials", session.credentials.join(", ") || "none"],
      ["Ends at the latest", `in ${span(session.expires_at - now())}`],
    ];
    $("details-pairs").replaceChildren(
      ...pairs.flatMap(([name, value]) => [el("dt", { text: name }), el("dd", { text: value })]));
    const may = $("details").dataset.mayEnd === "yes" && session.status === "live";
    keyed($("details-handles"), handles.slice(0, 200), (handle) => handle.jti,
      (handle) => el("li", { className: "row" },
        el("div", { className: "what" },
          el("strong", { text: handle.credential }), el("span", { className: "quiet-text", "data-part": "state" })),
        may ? button("Revoke", "danger quiet", () => revokeHandle(id, handle), `Revoke handle ${plain(handle.jti)}`) : null),
      (row, handle) => {
        write(part(row, "state"), `${handle.jti} · issued ${ago(handle.issued_at)}${handle.revoked ? " · revoked" : ""}`);
        const revoke = row.querySelector("button");
        if (revoke) revoke.disabled = handle.revoked;
      });
  } catch (problem) {
    write($("details-problem"), `${problem.message}. ${problem.hint ?? ""}`);
  }
}
