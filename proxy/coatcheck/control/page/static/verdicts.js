// Verdicts as they happen, the newest first; and differences that a shadow policy would make.

import { details } from "./dialogs.js";
import { $, button, el, show, write } from "./dom.js";
import { clock, short } from "./words.js";

const ROWS = 200;
const SHADOWS = 20;
const SEEN = 2000;
const MARKS = { deny: "Refused", pass: "Allowed", inject: "Injected" };

let rows = []; // the newest first
let held = 0; // that came while the list stands still
let paused = false;
let mayEnd = false;
const seen = new Set(); // ids of events, the oldest first

export function setUpVerdicts(who) {
  mayEnd = who.may.includes("end");
  rows = [];
  held = 0;
  seen.clear();
  $("verdicts-list").replaceChildren();
  $("shadow-list").replaceChildren();
}

export function wireVerdicts() {
  $("filter").addEventListener("input", redraw);
  $("show").addEventListener("change", redraw);
  $("pause").addEventListener("click", () => {
    paused = !paused;
    $("pause").setAttribute("aria-pressed", String(paused));
    if (!paused) {
      held = 0;
      redraw();
    }
    label();
  });
}

export function add(events) {
  for (const event of events) {
    if (event.id !== undefined) {
      if (seen.has(event.id)) continue; // before the connection broke
      seen.add(event.id);
      if (seen.size > SEEN) seen.delete(seen.values().next().value);
    }
    if (event.kind === "shadow") addShadow(event);
    rows.unshift({ event, row: draw(event), text: JSON.stringify(event).toLowerCase() });
    if (paused) held += 1;
    else if (wanted(rows[0])) $("verdicts-list").prepend(rows[0].row);
  }
  for (const gone of rows.splice(ROWS)) if (!paused) gone.row.remove();
  show($("verdicts-empty"), rows.length === 0);
  label();
}

function label() {
  write($("pause"), paused ? `Go on${held ? ` (${Math.min(held, ROWS)} new)` : ""}` : "Pause");
}

function wanted({ event, text }) {
  const only = $("show").value, filter = $("filter").value.trim().toLowerCase();
  const kind = event.kind === "verdict" ? event.outcome : "note";
  return (only === "all" || only === kind) && (filter === "" || text.includes(filter));
}

function redraw() {
  $("verdicts-list").replaceChildren(...rows.filter(wanted).map(({ row }) => row));
}

function draw(event) {
  if (event.kind === "missed") {
    return el("li", { className: "event note" }, el("span", { className: "words", text: "More happened than is shown here; the audit log has all of it." }));
  }
  const when = el("time", { text: clock(event.at) });
  const session = event.session
    ? button(short(event.session), "link", () => details(event.session, mayEnd), `Details of session ${event.session}`) : null;
  if (event.kind === "shadow") {
    return el("li", { className: "event note" }, when, el("span", { className: "mark", text: "Shadow" }),
      el("span", { className: "words", text: `now ${event.active}; the candidate: ${event.candidate}` }),
      line(event), foot(session, event.tenant, `policy ${event.policy}`));
  }
  if (event.kind === "note") {
    const mark = event.topic === "alarm" ? "Alarm" : event.topic === "approval" ? "Answer" : "Note";
    return el("li", { className: `event ${event.topic === "alarm" ? "deny alarm" : "note"}` }, when,
      el("span", { className: "mark", text: mark }),
      el("span", { className: "words", text: event.words }),
      event.detail ? el("span", { className: "url", text: event.detail }) : null,
      foot(session, event.tenant, ""));
  }
  const through = [event.rule && `rule ${event.rule}`, event.credentials.length && `credential ${event.credentials.join(", ")}`,
    event.approver && `approved by ${event.approver}`].filter(Boolean).join(" · ");
  return el("li", { className: `event ${event.outcome}${event.alarm ? " alarm" : ""}` }, when,
    el("span", { className: "mark", text: MARKS[event.outcome] }),
    line(event),
    event.outcome === "deny" ? el("span", { className: "words" },
      el("span", { text: event.detail ? `${event.words}: ${event.detail}` : event.words }), " ", el("code", { text: event.reason })) : null,
    foot(session, event.tenant && `${event.tenant}/${event.subject}`, through));
}

function line(event) {
  return el("span", { className: "url" }, el("b", { className: "method", text: event.method }), " ", el("span", { text: event.url }));
}

function foot(session, tenant, more) {
  return session || tenant || more
    ? el("span", { className: "foot" }, session, el("span", { text: [tenant, more].filter(Boolean).join(" · ") })) : null;
}

function addShadow(event) {
  show($("shadow"), true);
  $("shadow-list").prepend(el("li", { className: "row" },
    el("div", { className: "what" }, line(event),
      el("span", { className: "quiet-text", text: `now: ${event.active}` }),
      el("span", { className: "quiet-text", text: `candidate: ${event.candidate}` }),
      el("span", { className: "quiet-text", text: `${clock(event.at)} · ${event.tenant}${event.unrecorded ? ` · and ${event.unrecorded} alike` : ""}` }))));
  while ($("shadow-list").childElementCount > SHADOWS) $("shadow-list").lastElementChild.remove();
}
