// Migrations: the syncs of this state folder, and the form with which another one begins.

import { attr, h, keyed, progress, row, show, table, text } from "./dom.js";
import { doneOf, mood, order } from "./jobs.js";
import { beginning } from "./sides.js";
import { may, state, stateOf } from "./store.js";
import { time } from "./units.js";

const COLUMNS = [
  { key: "name", head: "Sync" },
  { key: "source", head: "From" },
  { key: "target", head: "To" },
  { key: "state", head: "State" },
  { key: "done", head: "Done" },
  { key: "started", head: "Started" },
  { key: "next", head: "Next" },
];

/** Directions that are looked at, of a migration that was tried again and again. */
const ATTEMPTS_MAX = 16;

/**
 * The sync that was cut over before, where this one follows its target back into its source. What begins
 * after a way back was cut over leads forward again.
 */
export function leadsBack(job, depth = ATTEMPTS_MAX) {
  const before = [...state.jobs.values()]
    .filter(
      (other) =>
        other !== job &&
        other.kind === "sync" &&
        other.phase === "cut over" &&
        other.source === job.target &&
        other.target === job.source &&
        other.created_s <= job.created_s,
    )
    .sort((a, b) => b.created_s - a.created_s)[0];
  return before && depth > 0 && !leadsBack(before, depth - 1) ? before : undefined;
}

/** The sync that follows the target of this one back, where one does. */
export function wayBack(job) {
  return [...state.jobs.values()]
    .filter(
      (other) =>
        other.kind === "sync" &&
        other.source === job.target &&
        other.target === job.source &&
        other.created_s >= job.created_s,
    )
    .sort(order)[0];
}

/** The newest comparison of the same two sides. */
export function lastVerify(job) {
  return [...state.jobs.values()]
    .filter(
      (other) => other.kind === "verify" && other.source === job.source && other.target === job.target,
    )
    .sort((a, b) => b.created_s - a.created_s)[0];
}

function nextOf(job) {
  if (job.phase === "cut over")
    return wayBack(job)?.running ? "roll back, if needed" : "cut over";
  if (job.ended) return "ended";
  if (job.state === "interrupted") return "go on with it";
  if (leadsBack(job)) return "roll back, if needed";
  if (job.phase !== "following") return "wait until it follows";
  const verify = lastVerify(job);
  return verify?.phase === "equal" && verify.whole ? "rehearse the cutover" : "verify";
}

function make(of, job) {
  const line = row(of, { test: "migration", "data-job": job.name });
  line.badge = h("span", { class: "badge" });
  line.done = progress(`How much of ${job.name} is done`);
  line.cells_.name.append(h("a", { href: `#/migrations/${encodeURIComponent(job.name)}` }, job.name));
  line.cells_.state.append(line.badge);
  line.cells_.done.append(line.done.node);
  return line;
}

function update(line, job) {
  const cells = line.cells_;
  text(cells.source, job.source);
  text(cells.target, job.target);
  text(line.badge, stateOf(job));
  attr(line.badge, "data-mood", mood(job));
  line.done.set(job.percent, doneOf(job));
  text(cells.started, time(job.created_s));
  text(cells.next, nextOf(job));
}

export function open() {
  const of = table("Syncs, running ones first", COLUMNS, { class: "cards" });
  const none = h("p", { class: "empty" }, "There is no sync yet.");
  const form = beginning();
  const why = h("p", { class: "dim" });
  const node = h(
    "div",
    {},
    h("h1", { tabindex: "-1" }, "Migrations"),
    h(
      "p",
      {},
      "A migration has these steps: assess, sync, verify, rehearse, cut over, and roll back if needed. " +
        "Clients go on writing to the source until the cutover.",
    ),
    h("section", {}, h("h2", {}, "Migrations so far"), of.region, none),
    h("section", {}, h("h2", {}, "Begin a migration"), form, why),
  );
  return {
    node,
    title: "Migrations",
    update(changed) {
      show(form, may("administer"));
      show(why, Boolean(state.me) && !may("administer"));
      text(why, `Your role is ${state.me?.role}. To begin a migration you need the role administer.`);
      if (changed && !changed.jobs) return;
      const syncs = [...state.jobs.values()]
        .filter((job) => job.kind === "sync")
        .sort(order)
        .slice(0, 200);
      keyed(
        of.body,
        syncs,
        (job) => job.name,
        (job) => make(of, job),
        update,
      );
      show(of.region, syncs.length > 0);
      show(none, syncs.length === 0 && state.everRead);
    },
  };
}
