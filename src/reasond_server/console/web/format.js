// Numbers, times and states as people read them.

const GROUPS = new Intl.NumberFormat("en-GB");

export const STATES = {
  running: ["▶", "running"],
  succeeded: ["✓", "succeeded"],
  failed: ["✕", "failed"],
  cancelled: ["■", "cancelled"],
  suspended: ["◐", "suspended"],
  awaiting_client: ["◐", "waits for its client"],
  expired: ["◷", "expired"],
};

export const number = (value) => (value === null || value === undefined ? "–" : GROUPS.format(value));

export function duration(ms) {
  if (!Number.isFinite(ms)) return "–";
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const minutes = Math.floor(ms / 60_000);
  return `${minutes} min ${Math.round((ms - minutes * 60_000) / 1000)} s`;
}

export const clock = (iso) => (iso ? new Date(iso).toLocaleString("en-GB", { hour12: false }) : "–");

export const tokens = (usage) => (usage ? usage.input_tokens + usage.output_tokens : 0);

export const plural = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

export const words = (name) => String(name ?? "").replaceAll("_", " ");

export const firstLine = (text) => String(text ?? "").trimStart().split("\n", 1)[0].slice(0, 200);

// A saving in words: its sign is never left to a colour.
export function savingInWords(percent) {
  if (percent > 0) return `${percent.toFixed(1)} % saved`;
  return percent < 0 ? `${(-percent).toFixed(1)} % more` : "the same";
}

// Python or shell source of a text in quotes.
export const quoteForShell = (text) => `'${text.replaceAll("'", "'\\''")}'`;
