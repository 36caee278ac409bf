// Dialogs about the cluster's slots: what is to be planned, the plan as it was made, its approval by typing
// the cluster's address; and what repair would do.

import { get, post } from "./api.js";
import { announce, button, checkbox, command, failure, field, fill, h, plainTable, select } from "./dom.js";
import { form, open, typed } from "./dialogs.js";
import { state } from "./store.js";
import { bytes, count, countOf, duration, quoted, short } from "./units.js";

const TITLES = { rebalance: "Plan a rebalance", drain: "Plan a drain", reshard: "Plan a move of slots" };

/** Rows of a table before the rest is left to scrolling. */
const ROWS_MAX = 1000;

/** How long the server may look at all nodes for what repair would do, in milliseconds. */
const REPAIR_MS = 150000;

const name = (node) => `${node.address ?? ""} ${short(node.id)}`.trim();

function shards() {
  return [...(state.cluster?.shards ?? [])].sort((a, b) =>
    a.address.localeCompare(b.address, "en", { numeric: true }),
  );
}

/** The fields of each kind: what they are, what they ask for, and the same as a command. */
const FIELDS = {
  rebalance(preset) {
    const by = select(
      "plan-by",
      [
        ["slots", "slots"],
        ["keys", "keys"],
        ["bytes", "bytes"],
        ["ops", "operations a second"],
      ],
      preset.by,
    );
    const empty = checkbox(
      "Give primaries without slots a share (--use-empty)",
      "plan-use-empty",
      preset.use_empty ?? false,
    );
    const threshold = h("input", {
      type: "number",
      min: "0",
      max: "100",
      step: "0.5",
      value: preset.threshold ?? 2,
      test: "plan-threshold",
    });
    return {
      parts: h(
        "div",
        { class: "fields" },
        field("Balance by", by),
        field(
          "Threshold, in percent",
          threshold,
          "Nothing moves where every node is within this many percent of its share.",
        ),
        h("div", { class: "field" }, empty.node),
      ),
      ready: () => threshold.value !== "" && threshold.validity.valid,
      wanted: () => ({
        kind: "rebalance",
        by: by.value,
        use_empty: empty.input.checked,
        threshold: Number(threshold.value),
      }),
      line: (w, cluster) => [
        "rebalance",
        cluster,
        "--by",
        w.by,
        ...(w.use_empty ? ["--use-empty"] : []),
        "--threshold",
        String(w.threshold),
      ],
    };
  },
  drain(preset) {
    const node = select(
      "plan-node",
      shards().map((s) => [s.id, `${s.address} ${short(s.id)}`]),
      preset.node?.id ?? preset.node,
    );
    return {
      parts: field("Node that gives all its slots to the others", node),
      ready: () => node.value !== "",
      wanted: () => ({ kind: "drain", node: node.value }),
      line: (w, cluster) => ["drain", cluster, short(w.node)],
    };
  },
  reshard(preset) {
    const slots = h("input", {
      type: "text",
      test: "plan-slots",
      autocomplete: "off",
      placeholder: "0-1023,5000",
    });
    slots.value = preset.slots ?? "";
    const to = select(
      "plan-to",
      shards().map((s) => [s.id, `${s.address} ${short(s.id)}`]),
      preset.to,
    );
    return {
      parts: h(
        "div",
        { class: "fields" },
        field("Slots, as ranges", slots, "for example 0-1023,5000"),
        field("Node that gets them", to),
      ),
      ready: () => slots.value.trim() !== "" && to.value !== "",
      wanted: () => ({ kind: "reshard", slots: slots.value.replace(/\s/g, ""), to: to.value }),
      line: (w, cluster) => ["reshard", cluster, "--slots", w.slots, "--to", short(w.to)],
    };
  },
};

/** Asks what to plan, makes the plan, shows it. Nothing is changed before it is approved. */
export function openPlan(kind, preset) {
  open(TITLES[kind], "plan-dialog", (close, closed) => {
    const body = h("div", {});
    const first = (again) => {
      const fields = FIELDS[kind](again ?? preset);
      const made = form({
        test: "plan-form",
        label: "Show the plan",
        parts: [fields.parts, h("p", { class: "dim" }, "This only makes a plan: nothing is changed.")],
        ready: fields.ready,
        run: async () => {
          const wanted = fields.wanted();
          // The server makes one plan at a time: one that nobody waits for any more keeps none from the next.
          const plan = await post("plans", wanted, closed);
          const line = `whimbrel ${fields.line(wanted, plan.cluster).map(quoted).join(" ")}`;
          fill(
            body,
            shown(plan, wanted, line, close, () => first(wanted)),
          );
          body.querySelector("h3")?.focus();
          announce(
            plan.moves.length
              ? `the plan has ${countOf(plan.moves.length, "move")}`
              : "nothing is to be moved",
          );
        },
      });
      fill(body, made.node);
      made.node.querySelector("input, select")?.focus();
    };
    first();
    return body;
  });
}

/** How often and how long writes are paused, where the notes of the plan do not say so. */
function pauses(plan) {
  if (typeof plan.max_pause_ms !== "number") {
    return ["The servers hand the slots over themselves: how long writes are paused is up to them."];
  }
  const [often, most] = [countOf(plan.pauses_max ?? 0, "time"), duration(plan.max_pause_ms)];
  const isNoted = plan.notes?.some((note) => note.includes("paused"));
  return [
    isNoted ? null : `Writes of a source are paused ${often}, for at most ${most} each time; reads go on.`,
    typeof plan.pause_ms === "number"
      ? `Without writers a handover takes about ${duration(plan.pause_ms)}.`
      : null,
  ].filter(Boolean);
}

function summary(plan) {
  const lines = [
    `${countOf(plan.moves.length, "move")}: ${countOf(plan.slots, "slot")}, ` +
      `${countOf(plan.keys ?? 0, "key")}, about ${bytes(plan.estimated_bytes)}`,
  ];
  lines.push(`Method ${plan.method}${plan.why ? `: ${plan.why}` : ""}`);
  lines.push(...pauses(plan));
  if (typeof plan.estimated_ms === "number") lines.push(`Estimated time: ${duration(plan.estimated_ms)}`);
  return h(
    "ul",
    { class: "lines", test: "plan-summary" },
    lines.map((line) => h("li", {}, line)),
  );
}

/** What each node has before and after, as numbers and as bars. */
function nodesTable(plan, what) {
  const most = Math.max(
    1,
    ...plan.nodes.flatMap((node) => [node.before[what] ?? 0, node.after[what] ?? 0]),
  );
  const bar = (value, kind) => {
    const inside = h("span", { class: kind });
    inside.style.width = `${(100 * (value ?? 0)) / most}%`;
    return h("span", { class: "track" }, inside);
  };
  const format = what === "bytes" ? bytes : count;
  const change = (node) => {
    const by = (node.after.slots ?? 0) - (node.before.slots ?? 0);
    return by > 0 ? `+${count(by)}` : by < 0 ? `-${count(-by)}` : "0";
  };
  // Those that change come first: with a hundred nodes they are what it is about.
  const nodes = [...plan.nodes].sort((a, b) => (change(b) !== "0") - (change(a) !== "0"));
  const n = (head) => ({ head, number: true });
  const region = plainTable(
    `Each node before and after; the bars are of ${what}`,
    [
      "node",
      n("slots before"),
      n("slots after"),
      n("change"),
      n("keys before"),
      n("keys after"),
      n("bytes before"),
      n("bytes after"),
      { head: what, class: "beforeafter" },
    ],
    nodes.slice(0, ROWS_MAX).map((node) => [
      name(node),
      count(node.before.slots),
      count(node.after.slots),
      change(node),
      count(node.before.keys),
      count(node.after.keys),
      bytes(node.before.bytes),
      bytes(node.after.bytes),
      h(
        "span",
        {
          role: "img",
          "aria-label": `${format(node.before[what])} before, ${format(node.after[what])} after`,
        },
        bar(node.before[what], "before"),
        bar(node.after[what], "after"),
      ),
    ]),
    { class: "cards" },
  );
  region.querySelectorAll("tbody tr").forEach((tr) => (tr.dataset.test = "plan-node-row"));
  return region;
}

function movesTable(plan) {
  const n = (head) => ({ head, number: true });
  const region = plainTable(
    "Moves",
    ["from", "to", n("slots"), "which", n("keys"), n("bytes"), n("batches")],
    plan.moves
      .slice(0, ROWS_MAX)
      .map((move) => [
        name(move.source),
        name(move.target),
        count(move.slot_count),
        move.slots,
        count(move.keys),
        bytes(move.estimated_bytes),
        count(move.batches),
      ]),
    { class: "cards" },
  );
  region.querySelectorAll("tbody tr").forEach((tr) => (tr.dataset.test = "plan-move"));
  return region;
}

function shown(plan, wanted, line, close, again) {
  const what = wanted.by === "keys" || wanted.by === "bytes" ? wanted.by : "slots";
  const notes = plan.notes?.length
    ? h(
        "ul",
        { class: "lines" },
        plan.notes.map((note) => h("li", { test: "plan-note" }, note)),
      )
    : null;
  const back = button("Change the plan", "plan-again", again);
  const same = [h("p", { class: "dim" }, "The same on a terminal:"), command(line)];
  if (!plan.moves.length) {
    return [
      h("h3", { tabindex: "-1", test: "plan-nothing" }, "Nothing is to be moved"),
      notes,
      nodesTable(plan, what),
      same,
      back,
    ];
  }
  return [
    h("h3", { tabindex: "-1" }, "The plan"),
    summary(plan),
    notes,
    nodesTable(plan, what),
    movesTable(plan),
    same,
    approval(plan, close),
    h("div", { class: "actions" }, back),
  ];
}

function approval(plan, close) {
  const asked = typed(plan.cluster, "approve-confirm", "To approve, type the cluster's address:");
  return form({
    test: "approve-form",
    label: `Approve ${countOf(plan.moves.length, "move")}`,
    danger: true,
    parts: asked.node,
    ready: asked.ready,
    run: async () => {
      const answer = await post(`plans/${encodeURIComponent(plan.id)}/approve`, {
        confirm: asked.input.value.trim(),
      });
      announce(
        `approved: ${countOf(answer.jobs.length, "job")} ${answer.jobs.length === 1 ? "begins" : "begin"}`,
      );
      // Who has closed it is somewhere else.
      if (!asked.node.isConnected) return;
      close();
      location.hash = "#/jobs";
    },
  }).node;
}

/** What repair would do. The page does not do it: it shows the command. */
export function openRepair() {
  open("What repair would do", "repair-dialog", (_close, closed) => {
    const body = h("div", {}, h("p", { role: "status" }, "Looking at the nodes …"));
    get("cluster/repair", closed, REPAIR_MS).then(
      (answer) => {
        const actions = answer.actions ?? [];
        const list = (title, items, of) =>
          items?.length ? [h("h3", {}, title), h("ul", { class: "lines" }, items.map(of))] : null;
        fill(
          body,
          list("Found", answer.findings, (f) => h("li", {}, f.text ?? f.kind)),
          actions.length
            ? list("It would", actions, (action) =>
                h(
                  "li",
                  { test: "repair-action" },
                  h("p", {}, action.text ?? action.kind),
                  action.why ? h("p", { class: "dim" }, action.why) : null,
                  typeof action.keys === "number"
                    ? h(
                        "p",
                        { class: "dim" },
                        `${countOf(action.keys, "key")}${action.slots ? `, slots ${action.slots}` : ""}`,
                      )
                    : null,
                ),
              )
            : h("p", { test: "repair-nothing" }, "There is nothing to repair."),
          list("It would leave", answer.left, (left) => h("li", {}, left.text ?? String(left))),
          actions.length
            ? [h("p", {}, "It shows this again, and asks, when you run it:"), command(answer.command)]
            : null,
        );
      },
      (error) => fill(body, failure(error)),
    );
    return body;
  });
}
