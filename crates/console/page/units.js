// Numbers, sizes, durations and moments as the terminal writes and reads them (crates/core/src/units.rs).
// Also what makes text of a server safe to read: nothing here makes markup of it.

const SIZE_UNITS = {
  "": 1,
  b: 1,
  k: 2 ** 10,
  kib: 2 ** 10,
  kb: 1e3,
  m: 2 ** 20,
  mib: 2 ** 20,
  mb: 1e6,
  g: 2 ** 30,
  gib: 2 ** 30,
  gb: 1e9,
  t: 2 ** 40,
  tib: 2 ** 40,
  tb: 1e12,
};
const DURATION_UNITS = { "": 1e3, ms: 1, s: 1e3, m: 6e4, h: 36e5, d: 864e5 };

/** What is shown where nobody knows a number. */
export const UNKNOWN = "-";

const isNumber = (n) => typeof n === "number" && Number.isFinite(n);

/** `1,234,567` */
export function count(n) {
  if (!isNumber(n)) return UNKNOWN;
  return String(Math.round(n)).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/** `1 key`, `2,731 slots` */
export const countOf = (n, name) => `${count(n)} ${name}${n === 1 ? "" : "s"}`;

/** `17 B`, `1.5 KiB`, `64.0 MiB` */
export function bytes(n) {
  if (!isNumber(n)) return UNKNOWN;
  if (n < 1024) return `${Math.round(n)} B`;
  const names = ["KiB", "MiB", "GiB", "TiB", "PiB"];
  // Rounded to tenths before the unit is chosen, or 1,048,575 bytes would be "1024.0 KiB".
  const tenths = (i) => Math.floor((n * 10 + 1024 ** (i + 1) / 2) / 1024 ** (i + 1));
  let i = names.findIndex((_, at) => tenths(at) < 10240);
  if (i < 0) i = names.length - 1;
  return `${Math.floor(tenths(i) / 10)}.${tenths(i) % 10} ${names[i]}`;
}

const two = (n) => String(n).padStart(2, "0");

/** `850 ms`, `2.4 s`, `3m 05s`, `2h 10m`, `4d 06h` */
export function duration(ms) {
  if (!isNumber(ms)) return UNKNOWN;
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  const tenths = Math.floor((ms + 50) / 100);
  if (tenths < 600) return `${Math.floor(tenths / 10)}.${tenths % 10} s`;
  const s = Math.floor((ms + 500) / 1000);
  const [minutes, hours, days] = [Math.floor(s / 60), Math.floor(s / 3600), Math.floor(s / 86400)];
  if (hours === 0) return `${minutes}m ${two(s % 60)}s`;
  if (days === 0) return `${hours}h ${two(minutes % 60)}m`;
  return `${days}d ${two(hours % 24)}h`;
}

/** Latencies: below ten milliseconds with two digits, since what matters there is less than one. */
export function latency(ms) {
  if (!isNumber(ms)) return UNKNOWN;
  return ms < 10 ? `${ms.toFixed(2)} ms` : duration(ms);
}

/** A moment in UTC, of seconds since the epoch: `2026-11-24 21:31:42Z` */
export function time(s) {
  const date = new Date(s * 1000);
  if (!isNumber(s) || Number.isNaN(date.getTime())) return UNKNOWN;
  return `${date.toISOString().slice(0, 19).replace("T", " ")}Z`;
}

/** The same without the day, of milliseconds: `21:31:42Z` */
export const clock = (ms) => (isNumber(ms) ? time(ms / 1000).slice(11) : UNKNOWN);

/** How long ago, rounded up: what is shown is never older than what it says. */
export function ago(ms) {
  const s = Math.max(1, Math.ceil(ms / 1000));
  return s < 120 ? `${s} s ago` : `${duration(s * 1000)} ago`;
}

/** The same for what is looked at for long: it changes once a minute. */
export function agoRoughly(ms) {
  if (!isNumber(ms)) return UNKNOWN;
  if (ms < 60000) return "less than a minute ago";
  return `${duration(Math.floor(ms / 60000) * 60000).replace(/ 00s$/, "")} ago`;
}

/** `37 %` */
export const percent = (n) => (isNumber(n) ? `${Math.floor(n)} %` : UNKNOWN);

/**
 * Text of a server for people. Control characters and those that turn the direction of writing are shown as
 * what they are: a key's name may carry escapes for terminals.
 */
export function clean(text) {
  const unsafe = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;
  return String(text ?? "").replace(unsafe, (c) => {
    const code = c.charCodeAt(0);
    return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u{${code.toString(16)}}`;
  });
}

/** A word as a shell takes it. */
export function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${String(word).replace(/'/g, "'\\''")}'`;
}

/** The beginning of a node's id. */
export const short = (id) => (/^[0-9a-f]{40}$/.test(id ?? "") ? id.slice(0, 8) : String(id ?? ""));

function scaled(text, units, example) {
  const match = /^(\d+(?:\.\d+)?)\s*([a-z]*)$/i.exec(text.trim());
  const unit = match && units[match[2].toLowerCase()];
  if (!unit) throw new Error(`"${text.trim()}" is not understood; write for example ${example}`);
  return Math.floor(Number(match[1]) * unit);
}

export const parseBytes = (text) => scaled(text, SIZE_UNITS, "64MiB, 4k or 1.5GB");
export const parseDuration = (text) => scaled(text, DURATION_UNITS, "5ms, 10s or 2m");

/** `50000`, `50,000`, `50k`, `1m`: here k is a thousand. */
export function parseCount(text) {
  const match = /^(\d+)([km]?)$/i.exec(text.trim().replace(/[,_]/g, ""));
  const n = match ? Number(match[1]) * ({ k: 1e3, m: 1e6 }[match[2].toLowerCase()] ?? 1) : 0;
  if (!Number.isSafeInteger(n) || n === 0)
    throw new Error("write a number above 0, for example 50000 or 50k");
  return n;
}
