// Dialogs: the browser's own, so that focus stays in them, Escape closes them, and focus returns.

import { button, checkbox, failure, field, fill, h } from "./dom.js";

/**
 * Opens a dialog. `build(close, closed)` returns what is in it; the signal `closed` ends questions whose
 * answer nobody sees any more. Only one dialog is open at a time; it is taken out when it closes, with all
 * that was typed.
 */
export function open(title, test, build) {
  const heading = h("h2", { id: "dialog-title", tabindex: "-1" }, title);
  const node = h("dialog", { test, "aria-labelledby": "dialog-title" });
  const close = () => node.close();
  const closed = new AbortController();
  const leave = button("Close", "dialog-close", close, { class: "small" });
  node.append(
    h("div", { class: "dialog-head" }, heading, leave),
    h("div", { class: "dialog-body" }, build(close, closed.signal)),
  );
  const before = document.activeElement;
  node.addEventListener("close", () => {
    closed.abort();
    node.remove();
    // The row that it was opened from may have been taken out meanwhile.
    if (before?.isConnected) before.focus();
    else document.querySelector("main h1")?.focus();
  });
  document.body.append(node);
  node.showModal();
  (node.querySelector("input, select, textarea") ?? heading).focus();
  return { node, close, title: (words) => (heading.textContent = words) };
}

/** Closes whatever is open: where somebody else takes the place of what it was about. */
export const closeAll = () => document.querySelectorAll("dialog[open]").forEach((node) => node.close());

/** What became of an order whose dialog was closed meanwhile: closing it does not take the order back. */
function reportLate(title, what) {
  const node = h("div", { class: "note late", test: "late" }, h("strong", {}, title), what);
  node.append(button("Dismiss", "late-dismiss", () => node.remove(), { class: "small" }));
  document.getElementById("late").append(node);
}

/**
 * A form in which a request is made: while it is under way nothing can be sent twice, and what goes wrong is
 * shown in it.
 */
export function form({ test, parts, label, danger, run, ready }) {
  const result = h("div", {});
  const send = h(
    "button",
    { type: "submit", class: danger ? "danger" : "primary", test: `${test.replace(/-form$/, "")}-button` },
    label,
  );
  const node = h(
    "form",
    { test, autocomplete: "off", novalidate: true },
    parts,
    result,
    h("div", { class: "actions" }, send),
  );
  let busy = false;
  const check = () => (send.disabled = busy || (ready ? !ready() : false));
  node.addEventListener("input", check);
  node.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (send.disabled) return;
    busy = true;
    check();
    fill(result, h("p", { role: "status" }, "Asking …"));
    const title = node.closest("dialog")?.querySelector("h2")?.textContent ?? label;
    const report = (what) => (node.isConnected ? fill(result, what) : what && reportLate(title, what));
    try {
      const words = await run();
      report(words ? h("p", { role: "status" }, words) : null);
    } catch (error) {
      if (error.name !== "AbortError") report(failure(error));
    }
    busy = false;
    check();
  });
  check();
  return { node, result, check };
}

/** The parts that have somebody type a name before something is done. */
export function typed(name, test, label) {
  const input = h("input", {
    type: "text",
    test,
    autocomplete: "off",
    autocapitalize: "off",
    spellcheck: "false",
  });
  const node = field(h("span", {}, `${label} `, h("code", {}, name)), input);
  return { node, input, ready: () => input.value.trim() === name };
}

/**
 * Asks for a name to be typed, and then does it. Each of `warnings`, as `[what is missing, what is confirmed,
 * test]`, has to be confirmed besides.
 */
export function confirm({ title, test, lines, name, label, verb, run, warnings = [] }) {
  return open(title, `${test}-dialog`, (close) => {
    const asked = typed(name, `${test}-confirm`, label ?? "To confirm, type the job's name:");
    const boxes = warnings.map(([, label, name]) => checkbox(label, name));
    const warned = warnings.map(([missing], i) =>
      h("div", { class: "failure warning" }, h("p", {}, h("strong", {}, missing)), boxes[i].node),
    );
    const parts = [
      lines.map((line) => (line instanceof Node ? line : h("p", {}, line))),
      warned,
      asked.node,
    ];
    return form({
      test: `${test}-form`,
      parts,
      label: verb,
      danger: true,
      ready: () => asked.ready() && boxes.every((box) => box.input.checked),
      run: async () => {
        const words = await run(asked.input.value.trim(), () => asked.node.isConnected);
        if (!words) close();
        return words;
      },
    }).node;
  });
}
