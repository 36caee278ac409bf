// Two servers and what is begun between them: an assessment, a sync, a comparison. Passwords are in their
// fields until they are sent, and nowhere else.

import { get, post } from "./api.js";
import { announce, checkbox, command, failure, field, fill, h, plainTable } from "./dom.js";
import { confirm, form, open } from "./dialogs.js";
import { serverNow } from "./store.js";
import { clock, duration, quoted } from "./units.js";

/** How often an assessment is asked whether it is done, in milliseconds. */
const POLL_MS = 700;

const VERDICTS = {
  ready: "Nothing stands in the way.",
  with_care: "It can begin, with care: read the findings first.",
  blocked: "Something has to be changed first: read the findings.",
};

const SEVERITIES = { blocks: "blocks", warns: "warning", notes: "note" };

export const verdictText = (verdict) => VERDICTS[verdict] ?? "It has no verdict.";

/** The fields. `fixed` are addresses that are known already. */
export function fields(fixed = {}) {
  const address = (test, value, placeholder) => {
    const input = h("input", {
      type: "text",
      test,
      placeholder,
      autocomplete: "off",
      spellcheck: "false",
      autocapitalize: "off",
    });
    input.value = value ?? "";
    return input;
  };
  const secret = (test) => h("input", { type: "password", test, autocomplete: "off" });
  const at = {
    source: address("source", fixed.source, "old:6379"),
    target: address("target", fixed.target, "new:7000"),
    sourcePassword: secret("source-password"),
    targetPassword: secret("target-password"),
  };
  const hint = "HOST:PORT, or redis://USER@HOST:PORT/DB; rediss:// for TLS";
  return {
    node: h(
      "div",
      { class: "fields two" },
      field("Source", at.source, hint),
      field("Password of the source", at.sourcePassword),
      field("Target", at.target, hint),
      field("Password of the target", at.targetPassword),
    ),
    ready: (needsTarget = true) =>
      at.source.value.trim() !== "" && (!needsTarget || at.target.value.trim() !== ""),
    addresses: () => ({ source: at.source.value.trim(), target: at.target.value.trim() || null }),
    /** What is sent. Passwords are left out where there is none. */
    body() {
      const body = { source: at.source.value.trim(), target: at.target.value.trim() || null };
      if (at.sourcePassword.value) body.source_password = at.sourcePassword.value;
      if (at.targetPassword.value) body.target_password = at.targetPassword.value;
      return body;
    },
    forget: () => (at.sourcePassword.value = at.targetPassword.value = ""),
  };
}

export const line = (...words) => ["whimbrel", ...words.filter(Boolean)].map(quoted).join(" ");

/** Assesses, and waits until that is done. The server remembers what was found between two sides. */
export async function assess(body, notify = () => {}) {
  const { id } = await post("assessments", body);
  const began = Date.now();
  for (;;) {
    const answer = await get(`assessments/${encodeURIComponent(id)}`);
    if (answer.state !== "running") {
      const found = { ...answer, at: serverNow() };
      announce(answer.state === "done" ? verdictText(answer.report?.verdict) : "the assessment has failed");
      return found;
    }
    notify(`Assessing for ${duration(Date.now() - began)} …`);
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

function span(value) {
  if (!value) return null;
  return value.least_ms === value.most_ms
    ? duration(value.least_ms)
    : `${duration(value.least_ms)} to ${duration(value.most_ms)}`;
}

/** What an assessment has found. */
export function findings(found) {
  const { report, text = [] } = found;
  const lines = text.length
    ? h(
        "ul",
        { class: "lines" },
        text.map((one) => h("li", {}, one)),
      )
    : null;
  if (!report)
    return [h("p", { class: "failure", test: "assess-verdict" }, "The assessment could not be made."), lines];
  const { estimates = {} } = report;
  const times = [
    ["a copy", estimates.copy],
    ["until a sync has caught up", estimates.sync],
    ["pause of writes", estimates.pause],
  ]
    .map(([what, value]) => (span(value) ? `${what}: ${span(value)}` : null))
    .filter(Boolean);
  const order = ["blocks", "warns", "notes"];
  const all = [...(report.findings ?? [])].sort(
    (a, b) => order.indexOf(a.severity) - order.indexOf(b.severity),
  );
  return [
    h(
      "p",
      { test: "assess-verdict" },
      h("strong", {}, verdictText(report.verdict)),
      ` Assessed at ${clock(found.at)}${found.who ? ` by ${found.who}` : ""}.`,
    ),
    times.length ? h("p", { class: "dim" }, `About how long: ${times.join("; ")}.`) : null,
    all.length
      ? plainTable(
          "Findings, the worst first",
          ["severity", "finding", "what to do"],
          all.map((one) => [
            h(
              "span",
              { class: "badge", "data-mood": { blocks: "bad", warns: "warn" }[one.severity] ?? "plain" },
              SEVERITIES[one.severity] ?? one.severity,
            ),
            one.text ?? one.kind,
            one.remedy ?? "",
          ]),
          { class: "cards" },
        )
      : null,
    report.findings?.length ? null : lines,
  ];
}

/** A dialog for an assessment of two sides that are known. */
export function openAssess(fixed, then) {
  open("Assess", "assess-dialog", () => {
    const sides = fields(fixed);
    const result = h("div", {});
    return [
      h("p", {}, "It reads only: nothing is changed on either side."),
      form({
        test: "assess-form",
        label: "Assess",
        parts: sides.node,
        ready: () => sides.ready(false),
        run: async () => {
          const found = await assess(sides.body());
          sides.forget();
          fill(result, findings(found));
          then?.();
        },
      }).node,
      result,
    ];
  });
}

/** A dialog that begins a comparison of all keys. */
export function openVerify(fixed, then) {
  open("Verify", "verify-dialog", (close) => {
    const sides = fields(fixed);
    return [
      h("p", {}, "It compares the content of all keys, and changes nothing."),
      form({
        test: "verify-form",
        label: "Verify",
        parts: sides.node,
        ready: sides.ready,
        run: async () => {
          const { name } = await post("jobs", { kind: "verify", ...sides.body() });
          announce(`${name} has begun`);
          close();
          then?.(name);
        },
      }).node,
    ];
  });
}

/** Asks for the target's address, then begins a sync. */
function askSync(sides, mirror) {
  const { source, target } = sides.addresses();
  return confirm({
    title: `Sync ${source} to ${target}`,
    test: "start",
    name: target,
    verb: "Begin the sync",
    label: "Keys are written to the target. To confirm, type its address:",
    lines: [
      mirror
        ? "The target is made equal to the source: keys that only the target has are lost."
        : "The target has to be empty.",
      "Clients go on with the source. Nothing of theirs changes before the cutover.",
      h("p", { class: "dim" }, "The same on a terminal:"),
      command(line("sync", source, target, mirror && "--mirror")),
    ],
    run: async (typedTarget, isOpen) => {
      const body = {
        kind: "sync",
        ...sides.body(),
        confirm: typedTarget,
        ...(mirror ? { mirror: true } : {}),
      };
      const { name } = await post("jobs", body);
      sides.forget();
      announce(`${name} has begun`);
      // A user who has closed it is somewhere else.
      if (isOpen()) location.hash = `#/migrations/${encodeURIComponent(name)}`;
    },
  });
}

/** The form with which a migration begins. */
export function beginning() {
  const sides = fields();
  const mirror = checkbox("The target holds keys that may be lost (--mirror)", "mirror");
  const [result, lines] = [h("div", {}), h("div", {})];
  const start = h(
    "button",
    { type: "button", test: "sync-button", on: { click: () => askSync(sides, mirror.input.checked) } },
    "Begin the sync …",
  );
  const made = form({
    test: "assess-form",
    label: "Assess",
    parts: [sides.node, mirror.node],
    ready: () => sides.ready(false),
    run: async () => {
      const waiting = h("p", { role: "status" });
      fill(result, waiting);
      try {
        fill(result, findings(await assess(sides.body(), (words) => (waiting.textContent = words))));
      } catch (error) {
        fill(result, failure(error));
      }
    },
  });
  made.node.dataset.test = "sides-form";
  made.node.querySelector(".actions").append(start);
  const check = () => {
    start.disabled = !sides.ready();
    const { source, target } = sides.addresses();
    fill(
      lines,
      source
        ? [
            h("p", { class: "dim" }, "The same on a terminal:"),
            command(line("assess", source, target), "assess-command"),
            target
              ? command(line("sync", source, target, mirror.input.checked && "--mirror"), "sync-command")
              : null,
          ]
        : null,
    );
  };
  made.node.addEventListener("input", check);
  check();
  return h("div", {}, made.node, lines, result);
}
