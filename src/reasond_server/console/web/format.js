// Numbers, times and states as people read them.

const GROUPS = new Intl.NumberFormat("en-GB");

// Mark, words, and the colour by meaning: only a run that has an answer is good.
const BADGES = {
  running: ["▶", "running", "busy"],
  suspended: ["◐", "suspended", "wait"],
  awaiting_client: ["◐", "waits for its client", "wait"],
  answered: ["✓", "answered", "good"],
  answered_untagged: ["✓", "answered, not marked", "good"],
  max_iterations: ["◑", "out of steps", "part"],
  budget_exhausted: ["◑", "out of budget", "part"],
  truncated: ["◑", "cut off", "part"],
  content_filtered: ["✕", "withheld by the provider", "bad"],
  cancelled: ["■", "cancelled", "none"],
  failed: ["✕", "failed", "bad"],
  expired: ["◷", "expired", "bad"],
  succeeded: ["◑", "ended", "part"],
};

// State and outcome as one: how it ended once it has, what it does before.
export const badgeOf = (state, reason) => BADGES[reason] ?? BADGES[state] ?? ["•", words(state), "none"];

export const money = (usd) => (usd === null || usd === undefined ? "" : `$${usd.toFixed(usd && usd < 0.01 ? 5 : usd < 1 ? 4 : 2)}`);

export const number = (value) => (value === null || value === undefined ? "–" : GROUPS.format(value));

export function duration(ms) {
  if (!Number.isFinite(ms)) return "–";
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const minutes = Math.floor(ms / 60_000);
  if (minutes >= 120) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${minutes} min ${Math.round((ms - minutes * 60_000) / 1000)} s`;
}

export const clock = (iso) => (iso ? new Date(iso).toLocaleString("en-GB", { hour12: false }) : "–");

// How long ago it began, in the largest unit that says it.
export function since(iso) {
  const seconds = Math.max(0, (Date.now() - Date.parse(iso)) / 1000);
  for (const [unit, size] of [["day", 86_400], ["hour", 3_600], ["minute", 60]]) {
    if (seconds >= size) return `${plural(Math.floor(seconds / size), unit)} ago`;
  }
  return "just now";
}

export const tokens = (usage) => (usage ? usage.input_tokens + usage.output_tokens : 0);

export const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

export const words = (name) => String(name ?? "").replaceAll("_", " ");

const CHECKED = { held_out: "checks it never saw", visible_only: "only the checks it saw", none: "nothing" };

export const checkedWith = ({ verification }) => CHECKED[verification] ?? words(verification);

export const firstLine = (text) => String(text ?? "").trimStart().split("\n", 1)[0].slice(0, 200);

// A saving in words: its sign is never left to a colour.
export function savingInWords(percent) {
  if (percent > 0) return `${percent.toFixed(1)} % saved`;
  return percent < 0 ? `${(-percent).toFixed(1)} % more` : "the same";
}

// Python or shell source of a text in quotes.
export const quoteForShell = (text) => `'${text.replaceAll("'", "'\\''")}'`;
