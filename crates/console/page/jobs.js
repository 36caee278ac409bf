// The list of jobs. A thousand of them change each second: rows are made once, and only cells whose text is
// different are written.

import { attr, button, cell, h, keyed, progress, refill, row, select, show, table, text } from "./dom.js";
import { cancelPlanButton } from "./job.js";
import { slotCount } from "./slots.js";
import { openOfPlan, state, stateOf } from "./store.js";
import { bytes, count, countOf, duration, short, time } from "./units.js";

/** Rows that are shown at once, and by how many more. */
const PAGE = 100;

const COLUMNS = [
  { key: "name", head: "Name" },
  { key: "kind", head: "Kind" },
  { key: "between", head: "From -> to" },
  { key: "state", head: "State" },
  { key: "percent", head: "Done" },
  { key: "eta", head: "Time left", number: true },
  { key: "rate", head: "Rate", number: true },
  { key: "started", head: "Started" },
  { key: "ended", head: "Ended" },
  { key: "by", head: "Begun by" },
];

/** Kept while the page is open: who comes back finds the list as it was. */
const filter = { state: "all", text: "" };

const RANK = { running: 0, interrupted: 1, ended: 2 };

/** Running ones first, then the newest. */
export function order(a, b) {
  return (
    (RANK[a.state] ?? 3) - (RANK[b.state] ?? 3) || b.created_s - a.created_s || (a.name < b.name ? -1 : 1)
  );
}

/** From where to where; nodes of a cluster by the beginning of their ids. */
export const between = (job) => `${short(job.source)} -> ${short(job.target)}`;

/** How fast its keys move. */
export function rateOf(job) {
  if (typeof job.keys_per_s !== "number") return "-";
  const keys = `${count(job.keys_per_s)} keys/s`;
  return typeof job.bytes_per_s === "number" ? `${keys}, ${bytes(job.bytes_per_s)}/s` : keys;
}

/** The share that is done, in words; an ended one has no share left to show. */
export function doneOf(job) {
  if (typeof job.percent === "number") return `${job.percent} %`;
  if (job.kind === "move" && job.slots) {
    return `${count(slotCount(job.moved))} of ${countOf(slotCount(job.slots), "slot")}`;
  }
  return "-";
}

/** What marks a state: its word stays beside it, since colours are not seen by all. */
export function mood(job) {
  const word = stateOf(job);
  if (/failed|different|does not answer/.test(word)) return "bad";
  if (/interrupted|suspended|paused|rolling|cancelled|giving/.test(word)) return "warn";
  return job.state === "ended" ? "good" : "busy";
}

function makeRow(of, job) {
  const line = row(of, { test: "job-row", "data-job": job.name });
  const link = h("a", { href: `#/jobs/${encodeURIComponent(job.name)}` }, job.name);
  const badge = h("span", { class: "badge" });
  const done = progress(`How much of ${job.name} is done`);
  line.cells_.name.append(link);
  const message = h("span", { class: "row-message" });
  line.cells_.state.append(badge, message);
  line.cells_.percent.append(done.node);
  Object.assign(line, { badge, done, message });
  return line;
}

function updateRow(line, job) {
  if (line.job === job) return;
  line.job = job;
  const cells = line.cells_;
  text(cells.kind, job.kind);
  text(cells.between, between(job));
  text(line.badge, stateOf(job));
  attr(line.badge, "data-mood", mood(job));
  line.done.set(job.percent, doneOf(job));
  cell(cells.eta, job.ended ? "-" : duration(job.eta_ms));
  cell(cells.rate, job.ended ? "-" : rateOf(job));
  text(cells.started, time(job.created_s));
  cell(cells.by, job.begun_by ?? "-");
  cell(cells.ended, job.ended_s ? time(job.ended_s) : "-");
  text(line.message, job.message ?? "");
  show(line.message, Boolean(job.message));
}

/** What is looked for in a job. */
function matches(job, words) {
  const { name, kind, source, target, message, cluster, begun_by: by } = job;
  const parts = [name, kind, source, target, stateOf(job), message, cluster, by];
  const lower = parts.join(" ").toLowerCase();
  return words.every((word) => lower.includes(word));
}

function chosen() {
  const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
  const is = (job) =>
    filter.state === "all" || job.state === filter.state || (filter.state === "open" && !job.ended);
  return [...state.jobs.values()]
    .filter((job) => is(job) && (!words.length || matches(job, words)))
    .sort(order);
}

/** The fields of the filter. `narrow` is called when one has changed. */
function filterFields(narrow) {
  const states = select(
    "job-state-filter",
    [
      ["all", "all"],
      ["open", "not ended"],
      ["running", "running"],
      ["interrupted", "interrupted"],
      ["ended", "ended"],
    ],
    filter.state,
  );
  const search = h("input", {
    type: "search",
    test: "job-text-filter",
    value: filter.text,
    placeholder: "name, node, state, who",
  });
  states.addEventListener("change", () => ((filter.state = states.value), narrow()));
  search.addEventListener("input", () => ((filter.text = search.value), narrow()));
  search.value = filter.text;
  return h(
    "div",
    { class: "filters", role: "search", "aria-label": "Jobs" },
    h("label", {}, "State ", states),
    h("label", {}, "Find ", search),
  );
}

/** One plan of which several jobs have not ended, and what cancels them together. */
function openPlan([plan, left]) {
  return h(
    "div",
    { class: "actions", test: "plan-open" },
    h(
      "span",
      {},
      `${count(left.length)} jobs of one plan have not ended` +
        (left[0].begun_by ? `: begun by ${left[0].begun_by}` : "") +
        `, ${time(left[0].created_s)}`,
    ),
    cancelPlanButton(plan),
  );
}

/** Shows such plans in this node. */
function paintPlans(node) {
  const names = new Set([...state.jobs.values()].map((job) => job.plan).filter(Boolean));
  const open = [...names].map((plan) => [plan, openOfPlan(plan)]).filter(([, left]) => left.length > 1);
  const basis = open.map(([plan, left]) => [plan, left.length]);
  refill(node, [basis, state.me?.role], () => open.map(openPlan));
}

export function open() {
  let shown = PAGE;
  const of = table("Jobs of this state folder, running ones first", COLUMNS, { class: "cards jobs" });
  const counted = h("p", { test: "job-count", class: "dim" });
  const more = button("", "job-more", () => {
    shown += PAGE;
    update();
  });
  const none = h("p", { class: "empty" });
  const plans = h("div", {});
  const fields = filterFields(() => ((shown = PAGE), update()));
  const node = h(
    "div",
    {},
    h("h1", { tabindex: "-1" }, "Jobs"),
    fields,
    counted,
    plans,
    of.region,
    none,
    h("div", { class: "actions" }, more),
  );

  function update() {
    paintPlans(plans);
    const all = chosen();
    const part = all.slice(0, shown);
    keyed(
      of.body,
      part,
      (job) => job.name,
      (job) => makeRow(of, job),
      updateRow,
    );
    const open = [...state.jobs.values()].filter((job) => !job.ended).length;
    text(
      counted,
      `${countOf(state.jobs.size, "job")}, of which ${count(open)} have not ended` +
        (all.length === state.jobs.size ? "" : `; ${count(all.length)} match`),
    );
    show(of.region, part.length > 0);
    show(none, part.length === 0);
    text(
      none,
      !state.everRead
        ? "Nothing has been read yet."
        : state.jobs.size
          ? "No job matches."
          : "There are no jobs. Moves, copies and syncs show here once they begin.",
    );
    show(more, all.length > part.length);
    text(more, `Show ${count(Math.min(PAGE, all.length - part.length))} more of ${count(all.length)}`);
  }
  return { node, title: "Jobs", update: (changed) => (!changed || changed.jobs) && update() };
}
