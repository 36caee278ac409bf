// One job: how far it is, how fast, what happened to it, and what can be done with it.

import { get, jobPath, order, post } from "./api.js";
import {
  announce,
  attr,
  button,
  command,
  failure,
  field,
  fill,
  h,
  keyed,
  plainTable,
  progress,
  refill,
  show,
  text,
} from "./dom.js";
import { chart } from "./charts.js";
import { between, doneOf, mood, rateOf } from "./jobs.js";
import { confirm, form } from "./dialogs.js";
import { minus, parse, rangesText, shardBar, sizeOf } from "./slots.js";
import {
  canaryTrace,
  jobNamed,
  may,
  noteLag,
  openOfPlan,
  serverNow,
  state,
  stateOf,
  traceOf,
  urlOf,
} from "./store.js";
import {
  bytes,
  clean,
  count,
  countOf,
  duration,
  latency,
  parseBytes,
  parseCount,
  parseDuration,
  percent,
  quoted,
  time,
  UNKNOWN,
} from "./units.js";

/** Events that are shown at once. */
const EVENTS = 50;

/** How often what only this page shows is asked for, in milliseconds. */
const PERIOD_MS = 950;

/** How far a sync is behind: its slowest source. `null` where that is not known. */
export function lagOf(details) {
  const lags = (details?.status?.sources ?? []).map((source) => source.lag_ms);
  return lags.length && lags.every((lag) => typeof lag === "number") ? Math.max(...lags) : null;
}

/**
 * Reads what only a job's own page is given: details, events, the report. `tick` is called with each
 * message; it asks when there is something to ask for, one question at a time.
 */
export function reader(name, then) {
  const abort = new AbortController();
  let [busy, askedAt, ofJob] = [false, 0, null];
  const read = { answer: null, error: null, readMs: null };
  return {
    read,
    stop: () => abort.abort(),
    /** Asks again with the next message: something has become known. */
    again: () => ([ofJob, askedAt] = [null, 0]),
    async tick() {
      const job = jobNamed(name);
      const isDue = !read.answer || !job?.ended || ofJob !== job;
      if (busy || !isDue || Date.now() - askedAt < PERIOD_MS) return;
      [busy, askedAt, ofJob] = [true, Date.now(), job];
      const asked = serverNow();
      try {
        read.answer = await get(jobPath(name), abort.signal);
        [read.error, read.readMs] = [null, asked];
        const lag = lagOf(read.answer.details);
        if (lag !== null) noteLag(name, lag);
      } catch (error) {
        if (error.name === "AbortError") return;
        // Also of a job that has ended: it is asked once more.
        [read.error, ofJob] = [error, null];
      }
      busy = false;
      then();
    },
  };
}

function keysLine(job) {
  if (!job.keys) return "";
  const what = job.kind === "verify" ? "compared" : "at the target";
  return `${count(job.keys_moved)} of ${countOf(job.keys, "key")} are ${what}`;
}

/** How long it took. Moments are known by the second. */
function tookOf(job) {
  const seconds = (job.ended_s ?? job.updated_s) - job.created_s;
  return seconds > 0 ? `took ${duration(seconds * 1000)}` : "took less than 1 s";
}

/** What is true of it, as pairs. */
function facts(job) {
  return [
    ["Kind", job.kind],
    ["Begun by", job.begun_by],
    ["Plan", job.plan],
    ["Source", urlOf(job, "source")],
    ["Target", urlOf(job, "target")],
    ["Cluster", job.cluster],
    ["Method", job.method],
    ["Method changed because", job.fell_back],
    ["Limits", job.limits],
    ["Cutover scheduled", job.scheduled],
    ["Listens on", job.listen],
    ["Started", time(job.created_s)],
    ["Ended", job.ended_s ? time(job.ended_s) : null],
  ].filter(([, value]) => value);
}

/** How a sync stands, with its servers. */
export function syncParts(status) {
  if (!status) return [];
  const { counts = {} } = status;
  const lines = [
    `${countOf(counts.written ?? 0, "key")} and ${bytes(counts.bytes_written ?? 0)} written, ` +
      `${count(counts.gone ?? 0)} removed; ` +
      `${count(counts.retries ?? 0)} retries, ${countOf(counts.failed ?? 0, "key")} failed, ` +
      `${countOf(status.suspect_slots ?? 0, "slot")} in doubt`,
    status.trouble ? `tried again: ${status.trouble}` : null,
    typeof status.disk_full_ms === "number"
      ? `the journal's disk has been full for ${duration(status.disk_full_ms)}`
      : null,
    typeof status.pause_estimate_ms === "number"
      ? `a cutover would pause writes for about ${duration(status.pause_estimate_ms)} now`
      : null,
  ];
  const known = (value, format) => (typeof value === "number" ? format(value) : "unknown");
  const heard = (server) =>
    server.silent ? `silent for ${duration(server.silent_ms)}` : (server.trouble ?? "answers");
  const sources = (status.sources ?? []).map((s) => [
    s.address,
    known(s.lag_ms, duration),
    ["tracking", "notifications"].includes(s.feed) ? "-" : known(s.lag_bytes, bytes),
    count(s.touched),
    s.feed,
    heard(s),
  ]);
  const targets = (status.targets ?? []).map((s) => [s.address, heard(s)]);
  const failures = (status.failures ?? []).map((f) => [f.key, String(f.db), f.reason]);
  return [
    lines.filter(Boolean).map((line) => h("p", {}, line)),
    plainTable(
      "Primaries of the source",
      [
        "primary",
        { head: "lag", number: true },
        { head: "behind", number: true },
        { head: "touched keys", number: true },
        "feed",
        "state",
      ],
      sources,
      { class: "cards" },
    ),
    plainTable("Primaries of the target", ["primary", "state"], targets, { class: "cards" }),
    failures.length
      ? plainTable("Keys that are not on the target", ["key", "database", "reason"], failures, {
          class: "cards",
        })
      : null,
  ];
}

/** A field of a bound: empty leaves it as it is, `none` takes it away. */
const bound = (input, parse) => {
  const word = input.value.trim();
  return word === "" ? undefined : word === "none" ? null : parse(word);
};

/** A bound that a job always has. */
function needed(input, parse) {
  const value = bound(input, parse);
  if (value === null) throw new Error("memory, lanes and the longest pause cannot be none");
  return value;
}

function setForm(name) {
  const input = (test, placeholder) => h("input", { type: "text", test, placeholder, autocomplete: "off" });
  const inputs = [
    input("set-keys", "5k"),
    input("set-bytes", "64MiB"),
    input("set-latency", "5ms"),
    input("set-lag", "64MiB"),
    input("set-load", "60%"),
    input("set-between", "01:00-05:00"),
    input("set-memory", "64MiB"),
    input("set-lanes", "8"),
    input("set-pause", "500ms"),
  ];
  const [keys, size, slow, lag, load, between, memory, lanes, pause] = inputs;
  const same = (word) => word;
  return form({
    test: "set-form",
    label: "Set",
    ready: () => inputs.some((i) => i.value.trim()),
    parts: h(
      "div",
      { class: "fields" },
      field("Keys per second", keys, "5k, or none for no bound"),
      field("Bytes per second", size, "64MiB, or none"),
      field("Slow down above", slow, "a server's latency: 5ms, or none"),
      field("Slow down if replicas are behind", lag, "of the target: 64MiB, 5s, or none"),
      field("Slow down if a server is busy", load, "percent of a core: 60%, or none"),
      field("Only between", between, "a time of the day, in UTC: 01:00-05:00, or none"),
      field("Memory", memory, "values in flight, of a copy or a sync: 64MiB"),
      field("Lanes", lanes, "connections that move keys: 8, or 2:8 to read and to write"),
      field("Longest pause", pause, "of a move of slots, or of a scheduled cutover: 500ms"),
    ),
    run: async () => {
      await order(jobPath(name, "set"), {
        rate_keys: bound(keys, parseCount),
        rate_bytes: bound(size, parseBytes),
        max_latency_ms: bound(slow, parseDuration),
        max_lag: bound(lag, same),
        max_load: bound(load, same),
        between: bound(between, same),
        memory_bytes: needed(memory, parseBytes),
        lanes: needed(lanes, same),
        max_pause_ms: needed(pause, parseDuration),
      });
      inputs.forEach((i) => (i.value = ""));
      return "The limits are set.";
    },
  });
}

function askCancel(job) {
  const what = {
    move: "What is not handed over yet is rolled back. Slots that were handed over stay where they are.",
    sync: "The sync ends for good. What was written to the target stays there.",
    copy: "The copy ends. What was written to the target stays there.",
    verify: "The comparison ends. Nothing is changed.",
  };
  const others = openOfPlan(job.plan).filter((other) => other.name !== job.name);
  confirm({
    title: `Cancel ${job.name}`,
    test: "cancel",
    name: job.name,
    verb: "Cancel the job",
    lines: [
      what[job.kind] ?? "The job ends.",
      others.length
        ? `Other jobs of its plan are not cancelled: ${others.map((other) => other.name).join(", ")}.`
        : null,
      h("p", { class: "dim" }, "The same on a terminal:"),
      command(`whimbrel jobs cancel ${quoted(job.name)}`),
    ].filter(Boolean),
    run: async (confirmed) => {
      await post(jobPath(job.name, "cancel"), { confirm: confirmed });
      announce(`${job.name} is being cancelled`);
    },
  });
}

/** Goes on with a job that was interrupted: passwords are written down nowhere, so they are asked for. */
function askGoOn(job) {
  const secret = (test) => h("input", { type: "password", test, autocomplete: "off" });
  const passwords = [secret("go-on-source-password"), secret("go-on-target-password")];
  confirm({
    title: `Continue ${job.name}`,
    test: "go-on",
    name: job.name,
    verb: "Continue",
    lines: [
      job.kind === "verify"
        ? "It goes on where it stopped."
        : `It goes on where it stopped, and writes to ${job.target} as before.`,
      field("Password of the source", passwords[0], "where it needs one"),
      field("Password of the target", passwords[1], "where it needs one"),
      h(
        "p",
        { class: "dim" },
        "Hooks, lanes, retries and TLS files are not recorded. To continue with them, use a terminal:",
      ),
      command(job.again),
    ],
    run: async (confirmed) => {
      const [source, target] = passwords.map((input) => input.value || undefined);
      const { warning } = await post(jobPath(job.name, "go-on"), {
        confirm: confirmed,
        source_password: source,
        target_password: target,
      });
      announce(`${job.name} goes on`);
      if (warning) return warning;
    },
  });
}

/** Asks whether all jobs of a plan that have not ended are to be cancelled. */
function askCancelPlan(plan) {
  const jobs = openOfPlan(plan);
  const names = jobs.map((job) => job.name);
  confirm({
    title: `Cancel ${countOf(jobs.length, "job")} of one plan`,
    test: "cancel-plan",
    name: jobs[0]?.cluster ?? state.me?.cluster ?? "",
    label: "To confirm, type the cluster's address:",
    verb: `Cancel ${countOf(jobs.length, "job")}`,
    lines: [
      "What is not handed over yet is rolled back. Slots that were handed over stay where they are.",
      h(
        "ul",
        { class: "lines", test: "cancel-plan-jobs" },
        jobs.map((job) => h("li", {}, `${job.name}: ${stateOf(job)}`)),
      ),
      h("p", { class: "dim" }, "The same on a terminal:"),
      command(`whimbrel jobs cancel ${quoted(names[0])} --all`),
    ],
    run: async (confirmed) => {
      const path = `plans/${encodeURIComponent(plan)}/cancel`;
      // No others than these: one that has come meanwhile has it refused.
      const { jobs: cancelled, refused } = await post(path, { confirm: confirmed, jobs: names });
      announce(`${countOf(cancelled.length, "job")} of the plan are being cancelled`);
      if (refused.length)
        return `Not cancelled: ${refused.map((one) => `${one.job}: ${one.error}`).join("; ")}`;
    },
  });
}

/** A button that cancels all jobs of a plan, where several have not ended. */
export function cancelPlanButton(plan) {
  const left = openOfPlan(plan).length;
  return (
    left > 1 &&
    may("operate") &&
    button(`Cancel all ${count(left)} of this plan …`, "cancel-plan", () => askCancelPlan(plan), {
      class: "danger",
      "data-of": plan,
    })
  );
}

/** The buttons, as `can` says. */
function actions(job, result) {
  const can = job.can ?? [];
  const isSteered = can.includes("pause") || can.includes("resume");
  const steer = (verb, done) => async () => {
    fill(result, h("p", {}, "Asking …"));
    try {
      const answer = await order(jobPath(job.name, verb));
      const until = verb === "resume" && answer?.rates?.paused_until_s;
      const words = until ? `${done} Its keys wait for their time of the day: ${time(until)}.` : done;
      fill(result, h("p", {}, words));
    } catch (error) {
      fill(result, failure(error));
    }
  };
  return [
    // Each in its place: a second click must not order the opposite.
    isSteered &&
      button("Pause", "pause", steer("pause", "Paused: no keys move."), { disabled: !can.includes("pause") }),
    isSteered &&
      button("Resume", "resume", steer("resume", "Resumed."), { disabled: !can.includes("resume") }),
    can.includes("go-on") && button("Continue …", "go-on", () => askGoOn(job)),
    can.includes("cutover") &&
      h(
        "a",
        { class: "button", test: "cutover", href: `#/migrations/${encodeURIComponent(job.name)}` },
        "Cut over …",
      ),
    can.includes("cancel") && button("Cancel …", "cancel", () => askCancel(job), { class: "danger" }),
    can.includes("cancel") && cancelPlanButton(job.plan),
    !job.ended &&
      !may("operate") &&
      h("p", { class: "dim" }, "Your role is view. To pause, set or cancel jobs you need the role operate."),
    !job.ended &&
      may("operate") &&
      !can.length &&
      h(
        "p",
        { class: "dim" },
        job.elsewhere
          ? "It runs elsewhere: control it there."
          : job.answers === false
            ? "It does not answer: check its process."
            : "There is nothing to control now: it continues by itself.",
      ),
  ];
}

function eventParts(event) {
  return [
    h("time", {}, time(event.at_s)),
    " ",
    // Many say themselves what they are.
    (event.text ?? "").startsWith(event.event) ? null : [h("span", { class: "kind" }, event.event), " "],
    h("span", {}, event.text ?? ""),
  ];
}

function charts() {
  const plain = (n) => (typeof n === "number" ? `${count(n)}` : "-");
  return {
    keys: chart({
      title: "Throughput, keys a second",
      test: "keys-chart",
      format: plain,
      series: [{ of: "keys", name: "keys/s" }],
    }),
    bytes: chart({
      title: "Throughput, bytes a second",
      base: 1024,
      test: "bytes-chart",
      format: (n) => (typeof n === "number" ? `${bytes(n)}` : "-"),
      series: [{ of: "bytes", name: "bytes/s" }],
    }),
    lag: chart({ title: "Lag", test: "lag-chart", format: duration, series: [{ of: "lag", name: "lag" }] }),
    canary: canaryChart(),
  };
}

/** How long the console's own client waits for answers: the same on the page of the cluster. */
export function canaryChart() {
  return chart({
    title: "Probe latency",
    test: "canary-chart",
    format: latency,
    series: [
      { of: "mean_ms", name: "mean" },
      { of: "longest_ms", name: "longest" },
    ],
  });
}

/** The parts of the page that stay; what they show is put in by `paint`. */
function skeleton(name) {
  const part = (title, ...children) => h("section", {}, h("h2", {}, title), ...children);
  const at = {
    heading: h("h1", { tabindex: "-1", test: "job-name" }, name),
    badge: h("span", { class: "badge", test: "job-state" }),
    lead: h("p", { class: "dim" }),
    message: h("p", { class: "message", test: "job-message" }),
    done: progress(`How much of ${name} is done`),
    eta: h("span", { test: "job-eta" }),
    rate: h("span", {}),
    keys: h("span", {}),
    actions: h("div", { class: "actions" }),
    result: h("div", { role: "status" }),
    facts: h("dl", {}),
    slots: h("p", { test: "job-slots" }),
    bar: shardBar(0),
    again: h("div", {}),
    sync: h("div", {}),
    charts: charts(),
    events: h("ol", { class: "events" }),
    report: h("div", {}),
    set: setForm(name),
    error: h("div", {}),
  };
  attr(at.done.node, "data-test", "job-percent");
  at.move = part("Slots", at.bar.node, at.slots);
  at.rates = part("Limits", at.set.node);
  at.syncPart = part("Sync status", at.sync);
  at.eventsPart = part("Events, newest first", at.events);
  at.reportPart = h("section", { test: "report" }, h("h2", {}, "Report"), at.report);
  const all = Object.values(at.charts).map((one) => one.node);
  at.node = h(
    "div",
    {},
    h("p", {}, h("a", { href: "#/jobs" }, "All jobs")),
    h("div", { class: "title" }, at.heading, at.badge),
    at.lead,
    at.message,
    at.error,
    h("div", { class: "figures" }, at.done.node, at.eta, at.rate, at.keys),
    at.actions,
    at.result,
    at.again,
    at.move,
    h("section", {}, h("h2", {}, "Last five minutes"), h("div", { class: "charts" }, all)),
    at.rates,
    at.syncPart,
    at.eventsPart,
    h("section", {}, h("h2", {}, "About this job"), at.facts),
    at.reportPart,
  );
  return at;
}

function paintCharts(at, job, has) {
  const [points, now] = [traceOf(job.name), serverNow()];
  show(at.charts.keys.node, !job.ended || points.length > 0);
  show(
    at.charts.bytes.node,
    points.some((point) => point.bytes !== null),
  );
  show(at.charts.lag.node, job.kind === "sync" && points.length > 0);
  show(at.charts.canary.node, Boolean(has.canary) && job.kind === "move" && !job.ended);
  at.charts.keys.set(points, now);
  at.charts.bytes.set(points, now);
  at.charts.lag.set(points, now);
  at.charts.canary.set(canaryTrace, now);
  const none = Object.values(at.charts).every((one) => one.node.hidden);
  show(at.charts.keys.node.closest("section"), !none);
}

function paintMove(at, job) {
  show(at.move, job.kind === "move");
  if (job.kind !== "move") return;
  const [planned, moved] = [parse(job.slots), parse(job.moved)];
  const words = `${count(sizeOf(moved))} of ${countOf(sizeOf(planned), "slot")} are handed over`;
  at.bar.set(
    { owned: moved, coming: job.ended ? [] : minus(planned, moved), leaving: [] },
    `${words}: ${rangesText(moved) || "none"}`,
  );
  text(at.slots, `${words}. All: ${rangesText(planned)}.`);
}

function paint(at, job, read) {
  text(at.badge, stateOf(job));
  attr(at.badge, "data-mood", mood(job));
  text(at.lead, `${job.kind} ${between(job)}${job.cluster ? ` in ${job.cluster}` : ""}`);
  text(at.message, job.message ?? "");
  show(at.message, Boolean(job.message));
  const isDone = typeof job.percent === "number" ? percent(job.percent) : doneOf(job);
  at.done.set(job.percent, isDone);
  text(
    at.eta,
    job.ended
      ? tookOf(job)
      : typeof job.eta_ms === "number"
        ? `about ${duration(job.eta_ms)} left`
        : "time left: not known",
  );
  const rate = rateOf(job);
  text(at.rate, job.ended || rate === UNKNOWN ? "" : rate);
  text(at.keys, keysLine(job));
  const left = openOfPlan(job.plan).length;
  refill(at.actions, [job.can, job.ended, job.answers, state.me?.role, left], () => actions(job, at.result));
  show(at.rates, (job.can ?? []).includes("set"));
  refill(at.facts, facts(job), () =>
    facts(job).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
  refill(at.again, job.again ?? null, () =>
    job.again
      ? [
          h(
            "p",
            {},
            "It was interrupted. On a terminal it goes on with this" +
              (job.kind === "move" ? ":" : ", with its passwords and other options:"),
          ),
          command(job.again, "again"),
        ]
      : [],
  );
  paintMove(at, job);
  paintCharts(at, job, state);
  const { answer } = read;
  const status = answer?.details?.status;
  show(at.syncPart, Boolean(status));
  if (status) refill(at.sync, status, () => syncParts(status));
  const events = (answer?.events ?? []).slice(-EVENTS).reverse();
  show(at.eventsPart, events.length > 0);
  const base = (answer?.events ?? []).length - events.length;
  keyed(
    at.events,
    events.map((event, index) => ({ event, key: base + events.length - index })),
    (e) => e.key,
    () => h("li", { test: "event" }),
    // The same place may be another event's by now: the server sends the newest, and a job may begin anew.
    (row, e) => refill(row, e.event, () => eventParts(e.event)),
  );
  show(at.reportPart, Boolean(answer?.report));
  if (answer?.report)
    refill(at.report, answer.report, () =>
      h(
        "details",
        {},
        h("summary", {}, "As JSON, for programs"),
        h("pre", { tabindex: "0", "aria-label": "Report as JSON" }, pretty(answer.report)),
      ),
    );
}

/** JSON in lines: each is made safe by itself, so that its ends stay. */
function pretty(value) {
  return JSON.stringify(value, null, 2)
    .split("\n")
    .map((line) => document.createTextNode(`${clean(line)}\n`));
}

export function open(name) {
  const at = skeleton(name);
  const poller = reader(name, () => update());
  let last = null;

  function update() {
    poller.tick();
    const job = jobNamed(name) ?? poller.read.answer?.job ?? last;
    const { error } = poller.read;
    refill(at.error, error ? [error.message, error.status] : null, () =>
      error
        ? failure(
            error.status === 404
              ? { message: `there is no job ${name}`, remedy: "see the list of all jobs" }
              : error,
          )
        : [],
    );
    if (!job) return;
    last = job;
    paint(at, job, poller.read);
  }
  const readMs = () => {
    const details = poller.read.readMs;
    const isLive = last && !last.ended && details;
    return isLive ? Math.min(state.readMs ?? details, details) : state.readMs;
  };
  return { node: at.node, title: name, update, readMs, close: poller.stop };
}
