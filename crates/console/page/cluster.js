// The cluster: who owns which slots, what moves, what is wrong, and the ways to plan a change.

import { attr, button, h, keyed, progress, refill, row, rowOf, select, show, table, text } from "./dom.js";
import { canaryChart } from "./job.js";
import { doneOf, order } from "./jobs.js";
import { openPlan, openRepair } from "./plan.js";
import {
  COLOURS,
  glide,
  layers,
  moves,
  ownership,
  rangesText,
  shardBar,
  SLOTS,
  sizeOf,
  wholeBar,
} from "./slots.js";
import { canaryTrace, may, serverNow, state, stateOf } from "./store.js";
import { bytes, clock, count, countOf, duration, latency, percent, short } from "./units.js";

/** Rows that are shown at once. */
const PAGE = 200;

/** Above this many nodes rows are low, and replicas are counted, not named: as on the terminal. */
const NAMED = 24;

/** Moves that are listed here; the page of jobs has all. */
const MOVES = 8;

/** Pairs of nodes between which slots glide at once. */
const GLIDES = 24;

const COLUMNS = [
  { key: "node", head: "Node" },
  { key: "bar", head: "Slots", class: "barcell" },
  { key: "keys", head: "Keys", number: true },
  { key: "bytes", head: "Bytes", number: true },
  { key: "ops", head: "Ops/s", number: true },
  { key: "memory", head: "Memory", number: true },
  { key: "probe", head: "Probe latency", number: true },
  { key: "replicas", head: "Replicas" },
  { key: "do", head: "Actions", hidden: true },
];

const SORTS = {
  address: ["address", (a, b) => a.address.localeCompare(b.address, "en", { numeric: true })],
  slots: ["slots, most first", (a, b) => (b.slot_count ?? 0) - (a.slot_count ?? 0)],
  keys: ["keys, most first", (a, b) => (b.keys ?? 0) - (a.keys ?? 0)],
  memory: ["memory, fullest first", (a, b) => memoryShare(b) - memoryShare(a)],
  ops: ["operations, most first", (a, b) => (b.ops_per_second ?? 0) - (a.ops_per_second ?? 0)],
};

const kept = { filter: "", sort: "address" };

function memoryShare(shard) {
  return shard.maxmemory_bytes > 0 ? (shard.used_memory_bytes / shard.maxmemory_bytes) * 100 : -1;
}

function memoryText(shard) {
  const share = memoryShare(shard);
  if (share >= 0) return `${percent(share)} of ${bytes(shard.maxmemory_bytes)}`;
  return typeof shard.used_memory_bytes === "number" ? `${bytes(shard.used_memory_bytes)}, no limit` : "-";
}

/** For how long a node has given no answer. */
function silence(node) {
  const since = node.silent_since_ms;
  return typeof since === "number"
    ? `no answer for ${duration(Math.max(1000, Math.floor((serverNow() - since) / 1000) * 1000))}`
    : "no answer";
}

/** How long the console's probe waits for answers of this shard. */
function probeText(shard) {
  const probe = (state.canary?.nodes ?? []).find((node) => node.id === shard.id);
  if (!probe) return "-";
  if (typeof probe.silent_ms === "number") return `no answer for ${duration(probe.silent_ms)}`;
  return latency(probe.mean_ms);
}

function replicaText(replica) {
  if (!replica.answers) return `${replica.address} (${silence(replica)})`;
  if (replica.link_up === false) return `${replica.address} (link down)`;
  return replica.lag_bytes > 0
    ? `${replica.address} (${bytes(replica.lag_bytes)} behind)`
    : replica.address;
}

function replicasText(shard, isLarge) {
  const replicas = shard.replicas ?? [];
  if (!replicas.length) return "none";
  if (!isLarge) return replicas.map(replicaText).join(", ");
  const silent = replicas.filter((r) => !r.answers).length;
  const lag = Math.max(0, ...replicas.map((r) => r.lag_bytes ?? 0));
  return [
    String(replicas.length),
    lag ? `${bytes(lag)} behind` : "",
    silent ? `${silent} without answer` : "",
  ]
    .filter(Boolean)
    .join(", ");
}

function makeShard(of, colour) {
  const line = row(of, { test: "shard" });
  const cells = line.cells_;
  const parts = {
    line,
    colour,
    mark: h("span", { class: `mark c${colour}`, "aria-hidden": "true" }),
    id: h("code", {}),
    address: h("span", { class: "address" }),
    version: h("span", { class: "dim version" }),
    silent: h("span", { class: "badge", "data-mood": "bad", test: "silent" }),
    asOf: h("span", { class: "dim as-of" }),
    bar: shardBar(colour),
    slots: h("span", { class: "slots" }),
    drain: button("Drain", "drain", () => openPlan("drain", { node: parts.shard }), { class: "small" }),
  };
  const { mark, address, id, version, silent, asOf } = parts;
  cells.node.append(mark, address, " ", id, " ", version, silent, " ", asOf);
  cells.bar.append(h("span", { class: "barline" }, parts.bar.node, parts.slots));
  cells.do.append(parts.drain);
  line.parts = parts;
  return line;
}

function updateShard(line, { shard, layer, isLarge, stays }) {
  const { parts } = line;
  const cells = line.cells_;
  parts.shard = shard;
  attr(line, "data-id", shard.id);
  text(parts.id, short(shard.id));
  text(parts.address, shard.address);
  text(parts.version, shard.version ?? "");
  const isSilent = shard.answers === false;
  show(parts.silent, isSilent);
  show(parts.asOf, isSilent);
  if (isSilent) {
    text(parts.silent, silence(shard));
    text(parts.asOf, shard.read_ms ? `numbers from ${clock(shard.read_ms)}` : "no numbers yet");
  }
  const [owned, leaving, coming] = [layer.owned, layer.leaving, layer.coming].map(sizeOf);
  const onTheWay = [
    leaving ? `${count(leaving)} to leave` : "",
    coming ? `${count(coming)} to come` : "",
  ].filter(Boolean);
  text(parts.slots, [countOf(owned, "slot"), ...onTheWay].join(", "));
  parts.bar.set(
    layer,
    `${shard.address} owns ${countOf(owned, "slot")}: ${rangesText(layer.owned) || "none"}` +
      (leaving ? `; to leave: ${rangesText(layer.leaving)}` : "") +
      (coming ? `; to come: ${rangesText(layer.coming)}` : ""),
  );
  text(cells.keys, count(shard.keys));
  text(cells.bytes, bytes(shard.bytes));
  text(cells.ops, count(shard.ops_per_second));
  text(cells.memory, memoryText(shard));
  text(cells.probe, probeText(shard));
  text(cells.replicas, replicasText(shard, isLarge));
  attr(parts.drain, "aria-label", `Drain ${shard.address}`);
  show(parts.drain, stays && owned > 0);
}

function makeMove(job) {
  const done = progress(`How much of ${job.name} is done`);
  const [state, between] = [h("span", { class: "dim" }), h("span", {})];
  const node = h(
    "li",
    { test: "moving", "data-job": job.name },
    h("a", { href: `#/jobs/${encodeURIComponent(job.name)}` }, job.name),
    between,
    done.node,
    state,
  );
  return Object.assign(node, { done, state, between });
}

function updateMove(node, job) {
  const shards = state.cluster?.shards ?? [];
  const address = (id) => shards.find((shard) => shard.id === id)?.address ?? short(id);
  text(node.between, `${address(job.source)} -> ${address(job.target)}`);
  node.done.set(job.percent, doneOf(job));
  text(
    node.state,
    stateOf(job) + (typeof job.eta_ms === "number" ? `, about ${duration(job.eta_ms)} left` : ""),
  );
}

function finding(found) {
  return h(
    "li",
    { test: "finding", class: found.problem ? "problem" : "note" },
    h("strong", {}, found.problem ? "Problem: " : "Note: "),
    found.text ?? found.kind,
  );
}

/** What is no problem, but what moves of slots show while they are under way. */
const underWay = (cluster) => (cluster.findings ?? []).filter((found) => found.under_way);

function skeleton() {
  const at = {
    heading: h("h1", { tabindex: "-1" }, "Cluster"),
    badge: h("span", { class: "badge", test: "cluster-state" }),
    lead: h("p", { class: "dim" }),
    error: h("p", { class: "failure", test: "cluster-error" }),
    canary: h("p", { test: "canary" }),
    whole: wholeBar(),
    findings: h("ul", { class: "findings" }),
    moving: h("ul", { class: "moving" }),
    meanwhile: h("ul", { class: "findings" }),
    meanwhileHead: h("summary", {}),
    chart: canaryChart(),
    of: table("Shards, with the slots that they own", COLUMNS, { class: "cards shards" }),
    none: h("p", { class: "empty" }),
    total: h("p", { class: "dim" }),
    filter: h("input", { type: "search", test: "shard-filter", placeholder: "address or id" }),
    sort: select(
      "shard-sort",
      Object.entries(SORTS).map(([key, [name]]) => [key, name]),
      kept.sort,
    ),
    repair: button("What would repair do?", "repair", () => openRepair()),
    orders: h("div", { class: "actions" }),
    more: button("", "shard-more", () => {}),
  };
  attr(at.whole.node, "data-test", "whole-bar");
  at.filter.value = kept.filter;
  at.over = h("div", { class: "over" }, at.of.region);
  at.moreMoves = h("p", {}, h("a", { href: "#/jobs" }, ""));
  at.meanwhilePart = h("details", { test: "under-way" }, at.meanwhileHead, at.meanwhile);
  at.movingPart = h(
    "section",
    {},
    h("h2", {}, "Work under way"),
    at.moving,
    at.moreMoves,
    at.meanwhilePart,
  );
  at.findingsPart = h("section", {}, h("h2", {}, "Health"), at.findings);
  at.chartPart = h(
    "section",
    {},
    h("h2", {}, "Probe latency"),
    at.canary,
    h("div", { class: "charts" }, at.chart.node),
  );
  at.body = h(
    "div",
    {},
    h(
      "section",
      {},
      h("h2", {}, "All slots"),
      at.whole.node,
      h(
        "div",
        { class: "ticks", "aria-hidden": "true" },
        ["0", "4,096", "8,192", "12,288", "16,383"].map((tick) => h("span", {}, tick)),
      ),
      at.total,
    ),
    at.movingPart,
    at.findingsPart,
    h(
      "section",
      {},
      h("h2", {}, "Shards"),
      h(
        "div",
        { class: "filters", role: "search", "aria-label": "Shards" },
        h("label", {}, "Find ", at.filter),
        h("label", {}, "Sort by ", at.sort),
      ),
      at.over,
      h("div", { class: "actions" }, at.more),
    ),
    at.chartPart,
  );
  at.node = h(
    "div",
    {},
    h("div", { class: "title" }, at.heading, at.badge),
    at.lead,
    at.error,
    at.orders,
    at.none,
    at.body,
  );
  return at;
}

function orders(at) {
  const mine = may("operate");
  return [
    mine &&
      button("Plan a rebalance …", "rebalance", () => openPlan("rebalance", {}), { class: "primary" }),
    mine && button("Move slots …", "reshard", () => openPlan("reshard", {})),
    at.repair,
    state.me &&
      !mine &&
      h("p", { class: "dim" }, "Your role is view. To plan and approve moves you need the role operate."),
  ];
}

function paintHead(at, cluster) {
  text(at.heading, `Cluster ${cluster.cluster}`);
  const found = (cluster.findings ?? []).filter((one) => !one.under_way);
  const problems = found.filter((one) => one.problem).length;
  const word = cluster.error ? "does not answer" : problems ? countOf(problems, "problem") : "no problems";
  text(at.badge, word);
  attr(at.badge, "data-mood", cluster.error || problems ? "bad" : "good");
  text(
    at.lead,
    `${countOf((cluster.shards ?? []).length, "shard")}, ${countOf(cluster.nodes ?? 0, "node")}` +
      (cluster.method
        ? `; slots move by the method ${cluster.method}${cluster.why ? `: ${cluster.why}` : ""}`
        : ""),
  );
  show(at.error, Boolean(cluster.error));
  if (cluster.error)
    text(
      at.error,
      `The cluster does not answer: ${cluster.error}. ` +
        (cluster.read_ms ? `What you see is from ${clock(cluster.read_ms)}.` : "Nothing has been read yet."),
    );
  refill(at.findings, found, () => found.map(finding));
  show(at.findingsPart, found.length > 0);
  const meanwhile = underWay(cluster);
  text(at.meanwhileHead, `What the nodes show meanwhile: ${count(meanwhile.length)}`);
  refill(at.meanwhile, meanwhile, () => meanwhile.map((one) => h("li", {}, one.text ?? one.kind)));
  show(at.meanwhilePart, meanwhile.length > 0);
}

function paintCanary(at) {
  show(at.chartPart, Boolean(state.canary));
  if (!state.canary) return;
  const { requests, errors, redirects, mean_ms: mean, longest_ms: longest, nodes = [] } = state.canary;
  const silent = nodes.filter((node) => typeof node.silent_ms === "number");
  text(
    at.canary,
    `The console reads from each primary as a client would. In the last second it sent ` +
      `${countOf(requests, "request")}: ${latency(mean)} on average, ${latency(longest)} at most; ` +
      `${countOf(redirects ?? 0, "redirect")}, ${count(errors ?? 0)} without an answer.` +
      silent.map((node) => ` ${node.address}: no answer for ${duration(node.silent_ms)}.`).join(""),
  );
  at.chart.set(canaryTrace, serverNow());
}

/** The order of rows stays until somebody asks for another: what moves on the page has really moved. */
function ordering() {
  let [basis, ids] = ["", []];
  return (shards) => {
    const now = `${kept.sort} ${kept.filter} ${shards
      .map((shard) => shard.id)
      .sort()
      .join()}`;
    if (now !== basis) {
      const words = kept.filter.toLowerCase().split(/\s+/).filter(Boolean);
      const is = (shard) =>
        words.every((word) => `${shard.address} ${shard.id} ${shard.version}`.toLowerCase().includes(word));
      basis = now;
      ids = shards
        .filter(is)
        .sort(SORTS[kept.sort][1])
        .map((shard) => shard.id);
    }
    const by = new Map(shards.map((shard) => [shard.id, shard]));
    return ids.map((id) => by.get(id));
  };
}

/** A colour for each shard, by address: it stays while others come and go as far as it can. */
function coloursOf(shards) {
  const sorted = [...shards].sort(SORTS.address[1]).map((shard) => shard.id);
  return new Map(sorted.map((id, index) => [id, index % COLOURS]));
}

function glideAll(at, found, colours) {
  for (const [pair, ranges] of [...found].slice(0, GLIDES)) {
    const [from, to] = pair.split(" ").map((id) => rowOf(at.of.body, id)?.parts.bar.node);
    if (from?.isConnected && to?.isConnected)
      glide(at.over, from, to, ranges, colours.get(pair.split(" ")[1]) ?? 0);
  }
}

export function open() {
  const at = skeleton();
  const ordered = ordering();
  let [before, shown] = [null, PAGE];
  at.filter.addEventListener("input", () => ((kept.filter = at.filter.value), paintSlots()));
  at.sort.addEventListener("change", () => ((kept.sort = at.sort.value), paintSlots()));
  at.more.addEventListener("click", () => ((shown += PAGE), paintSlots()));

  function paintSlots() {
    const { cluster } = state;
    const shards = cluster.shards ?? [];
    const now = ownership(cluster, state.jobs.values());
    const of = layers(now);
    const colours = coloursOf(shards);
    at.whole.set(
      of,
      now.ids.map((id) => colours.get(id)),
      shards.length <= NAMED
        ? shards.map((shard, i) => `${shard.address}: ${countOf(sizeOf(of[i].owned), "slot")}`).join("; ")
        : `the slots of ${countOf(shards.length, "shard")}; the table has each`,
    );
    const owned = of.reduce((sum, layer) => sum + sizeOf(layer.owned), 0);
    text(
      at.total,
      owned === SLOTS
        ? `All ${count(SLOTS)} slots have an owner.`
        : `${countOf(SLOTS - owned, "slot")} of ${count(SLOTS)} have no owner.`,
    );
    const all = ordered(shards);
    const isLarge = (cluster.nodes ?? 0) > NAMED;
    attr(at.of.node, "data-large", String(isLarge));
    const at_ = new Map(now.ids.map((id, index) => [id, index]));
    const stays = may("operate") && shards.length > 1;
    const part = all
      .slice(0, shown)
      .map((shard) => ({ shard, layer: of[at_.get(shard.id)], isLarge, stays }));
    keyed(
      at.of.body,
      part,
      (item) => item.shard.id,
      (item) => makeShard(at.of, colours.get(item.shard.id)),
      updateShard,
    );
    show(at.more, all.length > part.length);
    text(at.more, `Show more of ${count(all.length)}`);
    const found = moves(before, now);
    before = now;
    glideAll(at, found, colours);
  }

  function update(changed) {
    refill(at.orders, [state.me?.role, Boolean(state.cluster)], () => (state.cluster ? orders(at) : []));
    show(at.body, Boolean(state.cluster));
    show(at.none, !state.cluster);
    show(at.badge, Boolean(state.cluster));
    if (!state.cluster) {
      text(
        at.none,
        !state.everRead || !state.me || state.me.cluster
          ? "The cluster has not been read yet."
          : "This console has no cluster. Start it with whimbrel serve --cluster HOST:PORT.",
      );
      return;
    }
    if (!changed || changed.cluster) paintHead(at, state.cluster);
    if (!changed || changed.canary) paintCanary(at);
    if (changed && !changed.cluster && !changed.jobs && !changed.canary) return;
    const running = [...state.jobs.values()].filter((job) => job.kind === "move" && !job.ended).sort(order);
    show(at.movingPart, running.length > 0 || underWay(state.cluster).length > 0);
    show(at.moreMoves, running.length > MOVES);
    text(at.moreMoves.firstChild, `${countOf(running.length - MOVES, "more move")}`);
    keyed(at.moving, running.slice(0, MOVES), (job) => job.name, makeMove, updateMove);
    paintSlots();
  }
  return {
    node: at.node,
    title: "Cluster",
    update,
    readMs: () => (state.cluster ? state.cluster.read_ms : state.readMs),
  };
}
