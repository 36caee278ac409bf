// The audit log: who has ordered what, and what came of it.

import { get } from "./api.js";
import { failure, h, keyed, refill, row, show, table, text } from "./dom.js";
import { may, serverNow, state } from "./store.js";
import { time } from "./units.js";

/** How often it is read, in milliseconds. */
const PERIOD_MS = 3000;

const COLUMNS = [
  { key: "at", head: "When" },
  { key: "who", head: "Who" },
  { key: "role", head: "Role" },
  { key: "from", head: "From" },
  { key: "order", head: "Order" },
  { key: "target", head: "Of what" },
  { key: "outcome", head: "What came of it" },
];

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
        ? `Your role is ${state.me.role}: the audit log takes administer.`
        : readMs
          ? "Nothing has been ordered yet."
          : "Reading the log …",
    );
    // Several of the same moment are told apart by their place among these.
    const seen = new Map();
    const rows = entries.map((entry) => {
      const place = (seen.get(entry.at_ms) ?? 0) + 1;
      seen.set(entry.at_ms, place);
      return { entry, key: `${entry.at_ms} ${place}` };
    });
    keyed(
      of.body,
      rows,
      (r) => r.key,
      () => row(of, { test: "audit-row" }),
      (line, { entry }) => {
        text(line.cells_.at, time(Math.floor(entry.at_ms / 1000)));
        for (const key of ["who", "role", "from", "order", "target"])
          text(line.cells_[key], entry[key] ?? "");
        text(line.cells_.outcome, entry.outcome ?? "not known");
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
