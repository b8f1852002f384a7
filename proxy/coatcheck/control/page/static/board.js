// What there is now: figures, alarms, approvals, sessions, limits, ages, shadow. Written anew every two seconds.

import { post } from "./api.js";
import { details, revokeSession } from "./dialogs.js";
import { $, button, el, keyed, part, show, write } from "./dom.js";
import { ago, many, now, short, span } from "./words.js";

const CA_ENDS_SOON = 30 * 86400; // as the alert and certs/verify have it
const LINGER_MS = 4000; // what was answered stays where it was for a moment: nothing moves under the pointer

let may = new Set();
let announce = () => {};
const known = { alarms: null, approvals: null };
const lingering = new Map();

export function setUpBoard(who, say) {
  may = new Set(who.may);
  announce = say;
  known.alarms = known.approvals = null;
  show($("revoke-many"), may.has("end"));
}

export function drawBoard(at) {
  drawDaemon(at.daemon);
  drawFigures(at);
  drawPace(at.pace);
  drawAlarms(at.alarms);
  drawApprovals(at.approvals);
  drawSessions(at.sessions);
  drawLimits(at.limits);
  drawAges(at);
  drawShadow(at.shadow);
  const waiting = at.approvals.waiting?.length ?? 0;
  const urgent = waiting + fresh(at.alarms.listed);
  document.title = urgent ? `(${urgent}) Coatcheck` : "Coatcheck";
}

const fresh = (alarms) => alarms.filter((alarm) => now() - alarm.last < 3600).length;

const MISSING = {
  started: "it is still starting", "accepting requests": "it is shutting down", policies: "no policy is in force",
  "audit log": "the audit log cannot be written, so nothing may leave", plane: "the proxy does not answer",
  "certificate authority": "the CA has expired",
};

function drawDaemon(daemon) {
  const wrong = daemon.missing.map((what) => MISSING[what] ?? what);
  if (daemon.store_silent) wrong.push("the secret store does not answer");
  if (daemon.policy_refused) wrong.push(`the newest policy is refused, the old one stays: ${daemon.policy_refused}`);
  const node = $("daemon");
  node.dataset.state = wrong.length ? "bad" : "good";
  write(node, wrong.length ? `Not well: ${wrong.join("; ")}` : `Serving · ${daemon.version}`);
}

function drawFigures(at) {
  const minute = at.pace.slice(-6);
  const refused = minute.reduce((sum, [, no]) => sum + no, 0);
  const all = minute.reduce((sum, [yes, no]) => sum + yes + no, 0);
  const waiting = at.approvals.waiting;
  const ca = at.daemon.ca_not_after - now();
  const figures = [
    ["sessions", "Live sessions", at.sessions.live.toLocaleString("en"), ""],
    ["requests", "Requests, last minute", all.toLocaleString("en"), ""],
    ["refused", "Refused, last minute", refused.toLocaleString("en"), refused > all / 2 && refused > 5 ? "warn" : ""],
    ["waiting", "Waiting", waiting === null ? "?" : String(waiting.length + at.approvals.more), waiting?.length ? "warn" : ""],
    ["alarms", "Alarms, last hour", String(fresh(at.alarms.listed)), fresh(at.alarms.listed) ? "bad" : ""],
    ["ca", "CA ends in", span(ca), ca < CA_ENDS_SOON ? "bad" : ""],
  ];
  keyed($("figures"), figures, ([id]) => id,
    ([, name]) => el("div", {}, el("dt", { text: name }), el("dd", { "data-part": "value" })),
    (node, [, , value, state]) => { node.dataset.state = state; write(part(node, "value"), value); });
}

function drawPace(pace) {
  const svg = $("pace");
  const most = Math.max(1, ...pace.map(([yes, no]) => yes + no));
  if (svg.childElementCount !== pace.length * 2) {
    svg.replaceChildren(...pace.flatMap(() => ["yes", "no"].map((kind) => {
      const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      bar.setAttribute("class", kind);
      return bar;
    })));
  }
  pace.forEach(([yes, no], slot) => {
    const [above, below] = [svg.children[2 * slot], svg.children[2 * slot + 1]];
    const high = (yes * 42) / most, low = (no * 42) / most;
    place(above, slot, 43 - high - low, high);
    place(below, slot, 43 - low, low);
  });
  const total = pace.reduce((sum, [yes, no]) => sum + yes + no, 0);
  const refused = pace.reduce((sum, [, no]) => sum + no, 0);
  write($("pace-words"), `Ten minutes: ${many(total, "request", "requests")}, ${refused.toLocaleString("en")} refused`);
}

function place(bar, slot, y, height) {
  bar.setAttribute("x", String(slot * 4 + 0.5));
  bar.setAttribute("width", "3");
  bar.setAttribute("y", y.toFixed(2));
  bar.setAttribute("height", Math.max(0, height).toFixed(2));
}

function drawAlarms({ listed, more }) {
  const id = (alarm) => `${alarm.session} ${alarm.reason} ${alarm.credential}`;
  tell("alarms", listed.map(id), (count) => `${many(count, "new alarm", "new alarms")}: ${listed[0].words}`);
  write($("alarms-count"), listed.length ? `${listed.length}${more ? ` and ${more} more` : ""}` : "");
  show($("alarms-empty"), listed.length === 0);
  $("alarms").dataset.state = listed.length ? "bad" : "";
  keyed($("alarms-list"), listed, id,
    (alarm) => el("li", { className: "row" },
      el("div", { className: "what" },
        el("strong", {}, el("span", { text: alarm.words }), " ", el("code", { text: alarm.reason })),
        el("span", { className: "url", "data-part": "where" }),
        el("span", { className: "quiet-text", "data-part": "detail" }),
        el("span", { className: "quiet-text", "data-part": "when" })),
      el("div", { className: "actions" },
        alarm.session ? button("Session", "quiet", () => details(alarm.session, may.has("end")), `Show session ${alarm.session}`) : null,
        el("span", { "data-part": "revoke" }, may.has("end") ? button("Revoke", "danger quiet", () => revokeSession({ id: alarm.session, tenant: alarm.tenant }), `Revoke session ${alarm.session}`) : null))),
    (row, alarm) => {
      write(part(row, "where"), alarm.where);
      write(part(row, "detail"), [alarm.credential && `credential ${alarm.credential}`, alarm.detail].filter(Boolean).join(" · "));
      show(part(row, "revoke"), alarm.live);
      const session = !alarm.session ? "unknown origin" : alarm.live ? short(alarm.session) : `${short(alarm.session)}, which is over`;
      write(part(row, "when"), `${alarm.tenant || "no session"} · ${session} · ${alarm.count === 1 ? "once" : `${alarm.count} times`}, ${ago(alarm.last)}`);
    });
}

function drawApprovals({ waiting, more }) {
  show($("approvals-empty"), !waiting || waiting.length === 0);
  write($("approvals-empty"), waiting === null ? "The proxy does not answer, so nobody knows what waits." : "Nothing waits.");
  if (waiting === null) return;
  tell("approvals", waiting.map((each) => each.id), (count) => `${many(count, "request waits", "requests wait")} for an answer`);
  write($("approvals-count"), waiting.length ? `${waiting.length}${more ? ` and ${more} more` : ""}` : "");
  $("approvals").dataset.state = waiting.length ? "warn" : "";
  const here = new Set(waiting.map((each) => each.id));
  for (const child of $("approvals-list").children) {
    if (!here.has(child.dataset.key) && !lingering.has(child.dataset.key)) {
      lingering.set(child.dataset.key, child.item);
      settle(child, child.said ?? "No longer waiting");
      setTimeout(() => { lingering.delete(child.dataset.key); child.remove(); }, LINGER_MS);
    }
  }
  keyed($("approvals-list"), [...lingering.values(), ...waiting].sort((a, b) => a.asked_at - b.asked_at),
    (each) => each.id, approvalRow, (row, each) => {
      if (!lingering.has(each.id)) write(part(row, "left"), `${span(each.until - now())} left; silence is no`);
    });
}

function approvalRow(each) {
  const row = el("li", { className: "row" });
  row.item = each;
  const said = async (answer, remember) => {
    settle(row, "…");
    try {
      await post(`v1/approvals/${each.id}`, { answer, remember_seconds: remember });
      row.said = `You said ${answer}`;
      settle(row, row.said);
      announce(`${row.said}: ${each.method} ${each.url}`);
    } catch (problem) {
      settle(row, `Not done: ${problem.message}`);
    }
  };
  const what = each.same === "rule" ? "all of this rule" : "the same request";
  const actions = el("div", { className: "actions" });
  if (may.has("approve")) {
    actions.append(button("Yes", "good", () => said("yes", 0), `Yes to ${each.method} ${each.url}`));
    if (each.remember > 0) actions.append(button(`Yes, for ${span(each.remember)}`, "quiet", () => said("yes", each.remember), `Yes, also to ${what} of this ${each.whose} for ${span(each.remember)}`));
    actions.append(button("No", "danger quiet", () => said("no", 0), `No to ${each.method} ${each.url}`));
  }
  row.append(
    el("div", { className: "what" },
      el("span", { className: "url" }, el("b", { className: "method", text: each.method }), " ", el("span", { text: each.url })),
      ...each.readings.map((reading) => el("span", { className: "url also" }, el("b", { text: "also" }), " ", el("span", { text: reading }))),
      el("span", { className: "quiet-text", text: `${each.tenant}/${each.subject} · rule ${each.rule} · ${each.credentials.length ? `with ${each.credentials.join(", ")}` : "no credential"}` }),
      el("span", { className: "quiet-text", "data-part": "left" })),
    actions);
  return row;
}

function settle(row, words) {
  write(part(row, "left"), words);
  for (const each of row.querySelectorAll("button")) each.disabled = !words.startsWith("Not done");
}

function drawSessions({ live, listed }) {
  write($("sessions-count"), live > listed.length ? `${listed.length} newest of ${live}` : String(live));
  show($("sessions-empty"), live === 0);
  keyed($("sessions-list"), listed, (session) => session.id,
    (session) => el("li", { className: "row" },
      el("div", { className: "what" },
        el("strong", { className: "label", text: `${session.tenant} / ${session.subject}` }),
        el("span", { className: "quiet-text", text: `${session.policy} · ${session.isolation === "none" ? "no isolation" : session.isolation} · ${session.credentials.join(", ") || "no credential"}` }),
        el("span", { className: "quiet-text", "data-part": "age" })),
      el("div", { className: "actions" },
        button("Details", "quiet", () => details(session.id, may.has("end")), `Details of session ${session.id}`),
        may.has("end") ? button("Revoke", "danger quiet", () => revokeSession(session), `Revoke session ${session.id}`) : null)),
    (row, session) => write(part(row, "age"), `${short(session.id)} · ${span(now() - session.opened_at)} old · lease ${span(session.lease_expires_at - now())}`));
}

function drawLimits(limits) {
  show($("limits-empty"), limits.length === 0);
  keyed($("limits-list"), limits, (limit) => `${limit.policy} ${limit.rule} ${limit.limit} ${limit.per} ${limit.who} ${limit.session}`,
    (limit) => el("li", { className: "row level" },
      el("div", { className: "what" },
        el("strong", { className: "label", text: limit.rule || limit.who }),
        el("span", { className: "quiet-text", text: `${limit.limit} per ${limit.per}${limit.who ? ` · ${limit.who}` : ""} · ${limit.policy}` }),
        el("meter", { min: 0, max: 1, low: 0.8, high: 0.95, optimum: 0, "data-part": "meter", "aria-label": "used" })),
      el("span", { className: "share", "data-part": "share" })),
    (row, limit) => {
      part(row, "meter").value = Math.min(1, limit.used);
      write(part(row, "share"), `${Math.round(limit.used * 100)} %`);
    });
}

function drawAges({ secrets, daemon }) {
  const late = daemon.store_silent ? secrets.ttl : Infinity; // one that nobody asks for grows old without any fault
  const pairs = [
    ["\u0000ca", "Certificate authority", `ends in ${span(daemon.ca_not_after - now())}`, daemon.ca_not_after - now() < CA_ENDS_SOON ? "bad" : ""],
    ...secrets.ages.map(({ credential, age }) => [credential, credential, `read ${span(age)} ago`, age > late ? "warn" : ""]),
  ];
  if (secrets.ages.length === 0) pairs.push(["\u0000none", "Secrets", "none is in memory", ""]);
  keyed($("ages-list"), pairs, ([id]) => id,
    ([, name]) => el("div", {}, el("dt", { text: name }), el("dd", { "data-part": "value" })),
    (node, [, , value, state]) => { node.dataset.state = state; write(part(node, "value"), value); });
}

const SHADOW = {
  same: "judged the same", allows: "would be allowed", refuses: "would be refused", credentials: "would get other credentials",
  asks: "would be asked for differently", rule: "would go by another rule", reason: "would be refused for another reason",
  failed: "could not be judged",
};

function drawShadow(shadow) {
  if (shadow === null) return;
  show($("shadow"), true);
  const counts = Object.entries(shadow.results).filter(([, count]) => count > 0)
    .map(([what, count]) => `${count.toLocaleString("en")} ${SHADOW[what] ?? what.replaceAll("_", " ")}`);
  const none = shadow.policies.length ? "No request was compared yet" : "No policy is a candidate now";
  const before = $("shadow-list").childElementCount ? "; below is what differed before" : "";
  const refused = shadow.refused ? `The candidates cannot be used: ${shadow.refused}. ` : "";
  write($("shadow-words"), `${refused}${counts.length ? counts.join(", ") : none + before}.`);
}

function tell(what, ids, words) {
  const before = known[what];
  known[what] = new Set(ids);
  const fresh = before ? ids.filter((id) => !before.has(id)).length : 0;
  if (fresh) announce(words(fresh));
}
