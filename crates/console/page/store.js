// What is known: how everything stood when the server last reported, since when, and what went on before, for
// the charts. Bounded, however long the page is open.

/** Points kept of each chart: five minutes. */
export const POINTS = 300;

/** Jobs of which points are kept. */
const TRACED_MAX = 400;

/** By how many messages it is judged how far this clock is from the server's. */
const OFFSETS = 60;

/** How it is before anything is known. */
const nothing = () => ({
  me: null,
  jobs: new Map(),
  cluster: null,
  fleet: null,
  canary: null,
  trouble: null,
  /** `connecting`, `live` or `lost`. */
  connection: "connecting",
  lostAt: 0,
  readMs: null,
  everRead: false,
});

export const state = nothing();

const traces = new Map();
export const canaryTrace = [];
let offsets = [];

/** Points of a job: `{at, keys, bytes, lag}`. */
export const traceOf = (name) => traces.get(name) ?? [];

/** A job by its name, or how the last run of it ended: the server says of which job a run was. */
export function jobNamed(name) {
  const job = state.jobs.get(name);
  if (job) return job;
  let last = null;
  for (const other of state.jobs.values()) {
    if (other.run_of === name && (!last || other.created_s > last.created_s)) last = other;
  }
  return last;
}

/** How a side of a job is named again, with its user and TLS; passwords are nowhere. */
export const urlOf = (job, side) => job?.[`${side}_url`] ?? job?.[side];

/** Jobs of the same plan that have not ended. */
export const openOfPlan = (plan) =>
  plan ? [...state.jobs.values()].filter((job) => job.plan === plan && !job.ended) : [];

function push(points, point) {
  points.push(point);
  if (points.length > POINTS) points.shift();
}

/** Adds what only a job's own page is given: how far a sync lags behind. */
export function noteLag(name, lag) {
  const last = traceOf(name).at(-1);
  if (last && last.lag === null) last.lag = lag;
}

/** The server's clock now, as far as it is known: by the message that took least time to come. */
export function serverNow() {
  return offsets.length ? Date.now() - Math.min(...offsets) : Date.now();
}

/** Forgets everything: somebody else logs in. */
export function reset() {
  Object.assign(state, nothing());
  traces.clear();
  canaryTrace.length = 0;
  offsets = [];
}

/**
 * Takes in a message. Returns what has changed: `{jobs: names or null, cluster, fleet, canary, news}`, where
 * `news` is what is worth announcing to people who do not look.
 */
export function take(event, data) {
  const first = event === "state";
  offsets.push(Date.now() - data.now_ms);
  if (offsets.length > OFFSETS) offsets.shift();
  const changed = { jobs: null, cluster: false, fleet: false, canary: false, news: [] };
  state.trouble = data.trouble ?? null;
  // Jobs that cannot be read are as old as when they last could.
  const readBefore = state.readMs;
  state.readMs = data.read_ms ?? (data.trouble ? state.readMs : data.now_ms);
  if (data.jobs || data.gone || first) changed.jobs = takeJobs(first, data, changed.news);
  // Also of a job that stands still: a line without points would look as if nobody had asked. Messages about
  // other things than jobs come between two readings.
  if (!data.trouble && state.readMs !== readBefore) {
    state.jobs.forEach((job) => job.running && !job.ended && trace(job, state.readMs));
  }
  for (const part of ["cluster", "fleet", "canary"]) {
    if (!(part in data)) continue;
    if (part === "cluster") changed.news.push(...clusterNews(state.cluster, data.cluster));
    state[part] = data[part];
    changed[part] = true;
  }
  if (data.canary) push(canaryTrace, { at: data.canary.at_ms, ...data.canary });
  [state.everRead, state.connection] = [true, "live"];
  return changed;
}

function takeJobs(first, data, news) {
  const names = new Set(data.gone ?? []);
  const before = state.jobs;
  if (first) {
    before.forEach((_, name) => names.add(name));
    state.jobs = new Map();
  }
  names.forEach((name) => state.jobs.delete(name));
  for (const job of data.jobs ?? []) {
    names.add(job.name);
    // One that has ended is kept under another name.
    const known = before.get(job.name) ?? (job.run_of ? before.get(job.run_of) : undefined);
    if (known && stateOf(known) !== stateOf(job)) news.push(`${job.kind} ${job.name}: ${stateOf(job)}`);
    if (!known && state.everRead) news.push(`${job.kind} ${job.name} is new`);
    state.jobs.set(job.name, job);
  }
  for (const name of traces.keys()) if (!state.jobs.has(name)) traces.delete(name);
  return names;
}

function trace(job, at) {
  let points = traces.get(job.name);
  if (!points) {
    if (traces.size >= TRACED_MAX) return;
    traces.set(job.name, (points = []));
  }
  push(points, {
    at,
    keys: job.keys_per_s ?? null,
    bytes: job.bytes_per_s ?? null,
    lag: job.lag_ms ?? null,
  });
}

function clusterNews(before, now) {
  if (!before || !now) return [];
  if (Boolean(before.error) !== Boolean(now.error)) {
    return [now.error ? "the cluster does not answer" : "the cluster answers again"];
  }
  const problems = (cluster) => (cluster.findings ?? []).filter((f) => f.problem).length;
  if (problems(before) === problems(now)) return [];
  return [
    problems(now) ? `the cluster has ${problems(now)} problems` : "the cluster has no problems any more",
  ];
}

/** What people call the state of a job: a phase alone does not say that nobody runs it. */
export function stateOf(job) {
  if (job.state_in_words) return job.state_in_words;
  if (job.state === "ended") return job.phase || "ended";
  const word = job.answers === false ? "does not answer" : job.paused ? "paused" : job.state;
  const state = job.phase ? `${word}: ${job.phase}` : word;
  return job.scheduled ? `${state}, cutover scheduled` : state;
}

const LEVELS = ["view", "operate", "administer"];

/** Whether the role is enough. The server decides; this is so that nothing is offered that it refuses. */
export const may = (role) => LEVELS.indexOf(state.me?.role) >= LEVELS.indexOf(role);
