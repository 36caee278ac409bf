// The audit log: who has ordered what, and what came of it.

import { get } from "./api.js";
import { failure, h, keyed, refill, row, show, table, text } from "./dom.js";
import { may, serverNow, state } from "./store.js";
import { count, countOf, time } from "./units.js";

/** How often it is read, in milliseconds. */
const PERIOD_MS = 3000;

const COLUMNS = [
  { key: "at", head: "When" },
  { key: "who", head: "Who" },
  { key: "role", head: "Role" },
  { key: "order", head: "What" },
  { key: "target", head: "On what" },
  { key: "outcome", head: "Result" },
];

/** What came of an order, in words, and what there is to say besides. */
function resultOf(entry) {
  const text = entry.outcome;
  if (text === undefined || text === null) return ["no result yet, or the console ended meanwhile", null];
  if (!text.startsWith("done: ")) return [text, null];
  let value = null;
  try {
    value = JSON.parse(text.slice("done: ".length));
  } catch {
    // It was too long to be kept as a whole.
    return ["done", { result: text.slice("done: ".length) }];
  }
  if (Array.isArray(value?.text)) return [value.text.join("; "), value.outcome];
  if (Array.isArray(value?.jobs)) {
    const { jobs, refused = [] } = value;
    const what = entry.order.startsWith("cancel") ? "cancelled" : "begun";
    const rest = refused.length ? `, ${count(refused.length)} refused` : "";
    return [`${countOf(jobs.length, "job")} ${what}${rest}`, value];
  }
  if (value?.name) return [`${value.name} has begun`, null];
  return ["done", value && Object.keys(value).length > 1 ? value : null];
}

/** A value of the result as a cell: objects and lists as what they hold. */
function shown(value) {
  if (value === null || value === undefined) return "-";
  if (Array.isArray(value)) return value.map(shown).join(", ");
  if (typeof value === "object")
    return Object.entries(value)
      .map(([key, inner]) => `${key.replaceAll("_", " ")} ${shown(inner)}`)
      .join("; ");
  return String(value);
}

/**
 * An order is written down before it is carried out, and again with its result: that is one row. `entries`
 * are the newest first.
 */
function merged(entries) {
  const results = new Map();
  const rows = [];
  for (const entry of entries) {
    const key = JSON.stringify([entry.who, entry.role, entry.from, entry.order, entry.target]);
    if (entry.outcome !== undefined && entry.outcome !== null) {
      const known = { ...entry };
      rows.push(known);
      results.set(key, [...(results.get(key) ?? []), known]);
      continue;
    }
    // The oldest result after it: of two that are alike the one that was ordered last has the newest.
    const known = (results.get(key) ?? []).pop();
    if (known) known.at_ms = entry.at_ms;
    else rows.push(entry);
  }
  return rows.sort((a, b) => b.at_ms - a.at_ms);
}

/** What is folded away: from where it was ordered, and all of what came of it. */
function details(entry, value) {
  const pairs = [
    ["ordered from", entry.from],
    ...Object.entries(value ?? {}).map(([key, inner]) => [key.replaceAll("_", " "), shown(inner)]),
  ];
  return h(
    "details",
    {},
    h("summary", {}, "Details"),
    h(
      "dl",
      {},
      pairs.map(([name, inner]) => [h("dt", {}, name), h("dd", {}, inner)]),
    ),
  );
}

function make(of) {
  const line = row(of, { test: "audit-row" });
  [line.result, line.more] = [h("span", {}), h("div", {})];
  line.cells_.outcome.append(line.result, line.more);
  return line;
}

export function open() {
  const of = table("Orders, newest first", COLUMNS, { class: "cards" });
  const [none, error] = [h("p", { class: "empty" }), h("div", {})];
  const node = h("div", {}, h("h1", { tabindex: "-1" }, "Audit"), error, none, of.region);
  const abort = new AbortController();
  let [busy, askedAt, readMs, entries] = [false, 0, null, []];

  function paint(failed) {
    refill(error, failed ? [failed.message] : null, () => (failed ? failure(failed) : []));
    show(of.region, entries.length > 0);
    show(none, entries.length === 0 && !failed);
    text(
      none,
      !may("administer") && state.me
        ? `Your role is ${state.me.role}. To see the audit log you need the role administer.`
        : readMs
          ? "Nothing has been ordered yet."
          : "Reading the log …",
    );
    // Several of the same moment are distinguished by their place among these.
    const seen = new Map();
    const rows = merged(entries).map((entry) => {
      const place = (seen.get(entry.at_ms) ?? 0) + 1;
      seen.set(entry.at_ms, place);
      return { entry, key: `${entry.at_ms} ${place}` };
    });
    keyed(
      of.body,
      rows,
      (r) => r.key,
      () => make(of),
      (line, { entry }) => {
        text(line.cells_.at, time(Math.floor(entry.at_ms / 1000)));
        for (const key of ["who", "role", "order"]) text(line.cells_[key], entry[key] ?? "");
        text(line.cells_.target, (entry.target ?? "").replace(" -> ", " to "));
        const [result, value] = resultOf(entry);
        text(line.result, result);
        refill(line.more, entry, () => details(entry, value));
      },
    );
  }

  async function update() {
    if (!may("administer")) return paint(null);
    if (busy || Date.now() - askedAt < PERIOD_MS) return;
    [busy, askedAt] = [true, Date.now()];
    const asked = serverNow();
    let failed = null;
    try {
      entries = (await get("audit", abort.signal)).entries ?? [];
      readMs = asked;
    } catch (problem) {
      if (problem.name === "AbortError") return;
      failed = problem;
    }
    busy = false;
    paint(failed);
  }
  paint(null);
  return { node, title: "Audit", update, readMs: () => readMs, close: () => abort.abort() };
}
