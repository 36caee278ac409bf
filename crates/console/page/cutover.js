// The cutover: what can be chosen, the command that would do the same, the rehearsal, and the real one,
// which is confirmed by typing the job's name.

import { jobPath, post } from "./api.js";
import { checkbox, command, field, h, select } from "./dom.js";
import { confirm } from "./dialogs.js";
import { duration, parseDuration, quoted } from "./units.js";

const FENCES = [
  ["acl", "acl: users lose their right to write"],
  ["readonly-replica", "readonly-replica: the source answers READONLY"],
  ["pause", "pause: writes stay paused for a minute"],
  ["front", "front: clients go through whimbrel front"],
  ["external", "external: you stop the writers"],
  ["none", "none: nothing keeps writers away"],
];

const COMPARES = [
  ["sample", "sample: counts, and 64 keys"],
  ["full", "full: all keys"],
  ["counts", "counts only"],
];

const FENCE_HINT =
  "What keeps writers away from the source afterwards. The rehearsal says whether the servers " +
  "permit it.";

/** The choices, kept by the caller that shows them. Returns the fields and what they say now. */
export function settings(kept = {}) {
  const fence = select("fence", FENCES, kept.fence ?? "acl");
  const pause = h("input", {
    type: "text",
    test: "max-pause",
    value: kept.pause ?? "100ms",
    autocomplete: "off",
  });
  const compare = select("compare", COMPARES, kept.compare ?? "sample");
  const reverse = checkbox("Keep a way to roll back (--reverse-sync)", "reverse", kept.reverse ?? true);
  const later = (test, placeholder) =>
    h("input", { type: "text", test, placeholder, value: kept[test] ?? "", autocomplete: "off" });
  const [at, between] = [
    later("cutover-at", "2026-11-26T02:00Z"),
    later("cutover-between", "01:00-05:00"),
  ];
  const whenReady = checkbox(
    "Only once the pause would be short enough",
    "cutover-ready",
    kept.ready ?? false,
  );
  const node = h(
    "div",
    { class: "fields" },
    field("Fence", fence, FENCE_HINT),
    field("Writes may be paused for", pause, "for example 100ms or 1s"),
    field("Compare", compare),
    h("div", { class: "field" }, reverse.node),
    field("Not before", at, "empty for now; a time with its offset orders it for later"),
    field("Only between", between, "empty for any; a time of the day, in UTC"),
    h("div", { class: "field" }, whenReady.node),
  );
  const keep = () =>
    Object.assign(kept, {
      fence: fence.value,
      pause: pause.value,
      compare: compare.value,
      reverse: reverse.input.checked,
      "cutover-at": at.value,
      "cutover-between": between.value,
      ready: whenReady.input.checked,
    });
  node.addEventListener("input", keep);
  let wasAsked = false;
  return {
    node,
    /** Takes over what was chosen before, where nothing was chosen here yet. */
    take(chosen) {
      // Once: what somebody else rehearses later changes nothing under a user's eyes.
      if (wasAsked) return;
      wasAsked = true;
      if (!chosen || Object.keys(kept).length) return;
      fence.value = chosen.fence;
      pause.value = `${chosen.max_pause_ms}ms`;
      if (COMPARES.some(([value]) => value === chosen.compare)) compare.value = chosen.compare;
      reverse.input.checked = chosen.reverse;
      keep();
    },
    values: () => ({
      fence: fence.value,
      max_pause_ms: parseDuration(pause.value),
      compare: compare.value,
      reverse: reverse.input.checked,
    }),
    /** When it is due, where that is not now. */
    later: () => ({
      at: at.value.trim() || undefined,
      between: between.value.trim() || undefined,
      when_ready: whenReady.input.checked || undefined,
    }),
    /** The same as a command. */
    line(job, { dryRun = false, back = false } = {}) {
      const words = ["whimbrel", "cutover", job, "--fence", fence.value, "--max-pause", pause.value.trim()];
      if (compare.value !== "sample") words.push("--compare", compare.value);
      if (back) words.push("--back");
      else if (reverse.input.checked) words.push("--reverse-sync");
      if (dryRun) words.push("--dry-run");
      else if (!back) {
        if (at.value.trim()) words.push("--at", at.value.trim());
        if (between.value.trim()) words.push("--between", between.value.trim());
        if (whenReady.input.checked) words.push("--when-ready");
      }
      return words.map(quoted).join(" ");
    },
  };
}

/** Whether what was chosen then is what is chosen now. */
export const isSame = (chosen, values) =>
  ["fence", "max_pause_ms", "compare", "reverse"].every((key) => chosen?.[key] === values?.[key]);

/** What was chosen, in words. */
export const inWords = (chosen) =>
  `fence ${chosen.fence}, pause of at most ${duration(chosen.max_pause_ms)}, compare ${chosen.compare}, ` +
  (chosen.reverse ? "with a way to roll back" : "without a way to roll back");

/** Finds out whether it could be done, and how long writes would be paused. Nothing is changed. */
export async function rehearse(name, values, back = false) {
  const reverse = values.reverse && !back;
  return post(jobPath(name, "cutover"), { ...values, reverse, back, dry_run: true });
}

/**
 * Asks for the job's name, and for each warning to be confirmed, then cuts over; `done` gets what came of
 * it.
 */
export function ask(
  job,
  values,
  line,
  { back = false, later = {}, warnings = [], holds = () => true, done },
) {
  const [from, to] = [job.source, job.target];
  const due = [
    later.at && `not before ${later.at}`,
    later.between && `between ${later.between}`,
    later.when_ready && "once the pause would be short enough",
  ].filter(Boolean);
  return confirm({
    title: back ? `Roll back to ${to}` : `Cut over to ${to}`,
    test: "cutover",
    name: job.name,
    verb: back ? "Roll back" : due.length ? "Cut over later" : "Cut over",
    warnings,
    lines: [
      due.length ? `Later, without asking again: ${due.join(", ")}. You can withdraw it until then.` : null,
      `Writes are paused for at most ${duration(values.max_pause_ms)}. Then ${to} takes over from ${from}.`,
      values.fence === "none"
        ? "Nothing keeps writers away from the source afterwards."
        : `Afterwards the fence ${values.fence} keeps writers away from ${from}. Send clients to ${to} then.`,
      back
        ? null
        : values.reverse
          ? "You can roll back afterwards: changes are followed back from then on."
          : "You cannot roll back afterwards: what clients write from then on is on the target only.",
      h("p", { class: "dim" }, "The same on a terminal:"),
      command(line),
    ].filter(Boolean),
    run: async (name) => {
      if (!holds()) throw new Error("the job has changed meanwhile: close this, check the job, and retry");
      const reverse = values.reverse && !back;
      const body = { ...values, ...later, reverse, back, dry_run: false, confirm: name };
      done(await post(jobPath(job.name, "cutover"), body));
    },
  });
}

/** What came of it, in lines. */
export function outcome(answer) {
  return h(
    "ul",
    { class: "lines", test: "outcome" },
    (answer?.text ?? []).map((line) => h("li", {}, line)),
  );
}
