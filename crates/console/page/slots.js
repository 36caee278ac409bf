// The 16,384 slots as bars: who owns which, what is on its way, and what has just moved.
// A bar is one SVG path for each kind of slot, so that a cluster in tiny ranges costs as little as any.

import { attr, h } from "./dom.js";

export const SLOTS = 16384;

/** Colours before they come round again. */
export const COLOURS = 8;

/** How long a slot glides, in milliseconds. */
const GLIDE_MS = 900;

/** `0-99,200` as pairs of first and last; what is none is left out. */
export function parse(ranges) {
  const found = [];
  for (const part of String(ranges ?? "").split(",")) {
    const match = /^\s*(\d+)(?:-(\d+))?\s*$/.exec(part);
    if (!match) continue;
    const [first, last] = [Number(match[1]), Number(match[2] ?? match[1])];
    if (first <= last && last < SLOTS) found.push([first, last]);
  }
  return found;
}

export const sizeOf = (ranges) => ranges.reduce((sum, [first, last]) => sum + last - first + 1, 0);

/** How many slots a text of ranges has. */
export const slotCount = (text) => sizeOf(parse(text));

/** The slots of the first that are not in the second. */
export function minus(ranges, others) {
  const is = new Uint8Array(SLOTS);
  for (const [first, last] of ranges) is.fill(1, first, last + 1);
  for (const [first, last] of others) is.fill(0, first, last + 1);
  return rangesWhere((slot) => is[slot] === 1);
}

/** Pairs as text, the first few of them. */
export function rangesText(ranges, most = 6) {
  const one = ([first, last]) => (first === last ? `${first}` : `${first}-${last}`);
  const shown = ranges.slice(0, most).map(one).join(",");
  return ranges.length > most ? `${shown}, and ${ranges.length - most} more ranges` : shown;
}

/** The ranges of slots for which `is` is true. */
export function rangesWhere(is) {
  const found = [];
  for (let slot = 0, from = -1; slot <= SLOTS; slot++) {
    const inside = slot < SLOTS && is(slot);
    if (inside && from < 0) from = slot;
    if (!inside && from >= 0) {
      found.push([from, slot - 1]);
      from = -1;
    }
  }
  return found;
}

/**
 * Who owns each slot, as index into `ids`, -1 for nobody; and who is to get it. What jobs have handed over
 * since the cluster was read is theirs already.
 */
export function ownership(cluster, jobs) {
  const ids = (cluster?.shards ?? []).map((shard) => shard.id);
  const at = new Map(ids.map((id, index) => [id, index]));
  const [owner, coming] = [new Int16Array(SLOTS).fill(-1), new Int16Array(SLOTS).fill(-1)];
  (cluster?.shards ?? []).forEach((shard, index) => {
    for (const [first, last] of parse(shard.slots)) owner.fill(index, first, last + 1);
  });
  for (const job of jobs) {
    if (job.kind !== "move" || (job.cluster && cluster && job.cluster !== cluster.cluster)) continue;
    const [source, target] = [at.get(job.source), at.get(job.target)];
    if (source === undefined || target === undefined) continue;
    // One that was interrupted says nothing about what has become of its slots since.
    const isNewer = (job.running && !job.ended) || (job.updated_s + 1) * 1000 >= (cluster.read_ms ?? 0);
    const each = (ranges, call) => {
      for (const [first, last] of parse(ranges)) {
        for (let slot = first; slot <= last; slot++) if (owner[slot] === source) call(slot);
      }
    };
    if (isNewer) each(job.moved, (slot) => (owner[slot] = target));
    if (!job.ended) each(job.slots, (slot) => (coming[slot] = target));
  }
  return { ids, owner, coming };
}

/** The ranges of each shard: what it owns, what leaves it, what comes. One walk over the slots. */
export function layers({ ids, owner, coming }) {
  const of = ids.map(() => ({ owned: [], leaving: [], coming: [] }));
  const walk = (array, note) => {
    for (let slot = 1, from = 0; slot <= SLOTS; slot++) {
      if (slot < SLOTS && array[slot] === array[from] && owner[slot] === owner[from]) continue;
      note(from, slot - 1);
      from = slot;
    }
  };
  walk(owner, (first, last) => owner[first] >= 0 && of[owner[first]].owned.push([first, last]));
  walk(coming, (first, last) => {
    if (coming[first] < 0) return;
    of[coming[first]].coming.push([first, last]);
    of[owner[first]].leaving.push([first, last]);
  });
  return of;
}

/** The ranges that have another owner than before, by `from to`. Nodes that are new or gone do not count. */
export function moves(before, now) {
  const found = new Map();
  if (!before) return found;
  for (let slot = 0; slot < SLOTS; slot++) {
    const [from, to] = [before.ids[before.owner[slot]], now.ids[now.owner[slot]]];
    if (from === to || from === undefined || to === undefined) continue;
    const key = `${from} ${to}`;
    let ranges = found.get(key);
    if (!ranges) found.set(key, (ranges = []));
    const last = ranges.at(-1);
    if (last && last[1] === slot - 1) last[1] = slot;
    else ranges.push([slot, slot]);
  }
  return found;
}

const path = (ranges) => ranges.map(([a, b]) => `M${a} 0h${b - a + 1}v10H${a}z`).join("");

function canvas(props) {
  return h("svg", { viewBox: `0 0 ${SLOTS} 10`, preserveAspectRatio: "none", class: "bar", ...props });
}

/** The bar of one shard. */
export function shardBar(colour) {
  const part = (kind, props = {}) => h("path", { class: kind, ...props });
  const owned = part(`owned c${colour}`);
  const comingTint = part(`tint c${colour}`);
  const [comingHatch, leaving] = [
    part("hatch", { fill: "url(#hatch)" }),
    part("hatch", { fill: "url(#hatch)" }),
  ];
  const node = canvas({ role: "img", "aria-label": "" });
  node.append(owned, comingTint, comingHatch, leaving);
  let drawn = "";
  return {
    node,
    set(layer, label) {
      const parts = [path(layer.owned), path(layer.coming), path(layer.leaving)];
      attr(node, "aria-label", label);
      const all = parts.join("|");
      if (all === drawn) return;
      drawn = all;
      attr(owned, "d", parts[0]);
      attr(comingTint, "d", parts[1]);
      attr(comingHatch, "d", parts[1]);
      attr(leaving, "d", parts[2]);
    },
  };
}

/** The bar of all shards. */
export function wholeBar() {
  const node = canvas({ role: "img", "aria-label": "", class: "bar whole" });
  const paths = [];
  const hatch = h("path", { class: "hatch", fill: "url(#hatch)" });
  return {
    node,
    set(of, colours, label) {
      attr(node, "aria-label", label);
      while (paths.length < COLOURS) {
        paths.push(h("path", { class: `owned c${paths.length}` }));
        node.append(paths.at(-1));
      }
      if (!hatch.parentNode) node.append(hatch);
      const by = paths.map(() => []);
      of.forEach((layer, index) => by[colours[index]].push(path(layer.owned)));
      by.forEach((parts, colour) => attr(paths[colour], "d", parts.join("")));
      attr(hatch, "d", of.map((layer) => path(layer.leaving)).join(""));
    },
  };
}

/**
 * Has slots glide from one bar to another, over what is there. Only what has changed its owner comes here.
 * People who asked for less motion see the new owner at once.
 */
export function glide(over, from, to, ranges, colour) {
  if (matchMedia("(prefers-reduced-motion: reduce)").matches || document.hidden) return;
  const [base, start, end] = [over, from, to].map((node) => node.getBoundingClientRect());
  if (!start.width || !end.width) return;
  const slots = canvas({ class: `bar glider c${colour}`, "aria-hidden": "true" });
  slots.append(h("path", { class: `owned c${colour}`, d: path(ranges) }));
  Object.assign(slots.style, {
    left: `${start.left - base.left}px`,
    top: `${start.top - base.top}px`,
    width: `${start.width}px`,
    height: `${start.height}px`,
  });
  over.append(slots);
  // Asked for, so that the browser has painted the beginning before it hears of the end.
  slots.getBoundingClientRect();
  slots.style.transitionDuration = `${GLIDE_MS}ms`;
  slots.style.transform = `translate(${end.left - start.left}px, ${end.top - start.top}px)`;
  setTimeout(() => slots.remove(), GLIDE_MS + 100);
}
