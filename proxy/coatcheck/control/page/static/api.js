// Talking to the daemon. The cookie proves one half of the login, the key that this origin keeps the other.

const KEPT = "coatcheck-page-key";
const SILENT_MS = 10000; // the daemon says something every two seconds
const LONGEST = 4 * 1024 * 1024; // characters of one line

export class Refused extends Error {
  constructor(status, error) {
    super(error?.message ?? `the daemon answered ${status}`);
    this.status = status;
    this.hint = error?.hint ?? "";
  }
}

export const hasKey = () => localStorage.getItem(KEPT) !== null;
export const forget = () => localStorage.removeItem(KEPT);

async function ask(path, options = {}) {
  const headers = { "Coatcheck-Page": localStorage.getItem(KEPT) ?? "" };
  if (options.body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch(`/page/${path}`, {
    ...options, headers, cache: "no-store", credentials: "same-origin", redirect: "error",
  });
  if (!response.ok) {
    const said = await response.json().catch(() => null);
    throw new Refused(response.status, said?.error);
  }
  return response;
}

export async function read(path) {
  return (await ask(path)).json();
}

export async function post(path, body = {}) {
  const signal = AbortSignal.timeout(35000);
  return (await ask(path, { method: "POST", body: JSON.stringify(body), signal })).json();
}

export async function login(entry) {
  const said = await post("login", entry);
  localStorage.setItem(KEPT, said.key);
}

// Calls `take(line)` for each line until the answer ends. Throws when the daemon falls silent.
export async function follow(take) {
  const stopping = new AbortController();
  let silence = setTimeout(() => stopping.abort(), SILENT_MS);
  try {
    const response = await ask("live", { signal: stopping.signal });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(silence);
      silence = setTimeout(() => stopping.abort(), SILENT_MS);
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      if (rest.length > LONGEST) throw new Error("the daemon sent a line without an end");
      for (const line of lines) take(JSON.parse(line));
    }
  } finally {
    clearTimeout(silence);
    stopping.abort();
  }
}
