// Times and numbers in words. The daemon's clock counts, not the one of this machine.

let ahead = 0; // seconds that the daemon's clock is ahead of ours

export function setClock(at) {
  ahead = at - Date.now() / 1000;
}

export const now = () => Date.now() / 1000 + ahead;

export function span(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} days`;
}

export const ago = (at) => {
  const s = now() - at;
  return s < 5 ? "just now" : `${span(s)} ago`;
};

export function clock(at) {
  return new Date(at * 1000).toLocaleTimeString([], { hour12: false });
}

export const short = (session) => session.slice(0, 12);

export const many = (count, one, more) => `${count.toLocaleString("en")} ${count === 1 ? one : more}`;
