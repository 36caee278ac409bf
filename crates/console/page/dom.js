// Builds and changes the page. Text of servers gets in here, as text nodes and attributes only.
// What has not changed is not touched: a thousand rows a second stay cheap, and a selection stays.

import { clean, UNKNOWN } from "./units.js";

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "path", "polyline", "line", "rect", "g"]);

/**
 * An element. `on` has listeners, `test` is the name for a driver, `class` its classes; all else are
 * attributes: true is one without a value, false and null are none.
 */
export function h(tag, props = {}, ...children) {
  const node = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    } else if (name === "test") {
      node.dataset.test = value;
    } else {
      attr(node, name, value);
    }
  }
  add(node, children);
  return node;
}

function add(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(clean(child)));
  }
}

/** Takes out what is there and puts these in. */
export function fill(node, ...children) {
  node.replaceChildren();
  add(node, children);
}

/** Sets the text of an element that has nothing but text. */
export function text(node, value) {
  const wanted = clean(value);
  if (node.shownText === wanted) return;
  node.shownText = wanted;
  node.textContent = wanted;
}

/** Sets the text of a cell; one that says nothing is left out where rows are shown as cards. */
export function cell(node, value) {
  text(node, value);
  attr(node, "data-empty", value === UNKNOWN);
}

export function attr(node, name, value) {
  const wanted = value === true ? "" : value;
  if (wanted === false || wanted === null || wanted === undefined) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(wanted)) {
    node.setAttribute(name, clean(wanted));
  }
}

export function show(node, is) {
  if (node.hidden === is) node.hidden = !is;
}

/**
 * Calls `build` and fills the node only where what it depends on is different from the last time. What had
 * the focus has it again.
 */
export function refill(node, basis, build) {
  const key = JSON.stringify(basis);
  if (node.basis === key) return;
  node.basis = key;
  const { test, of } = node.contains(document.activeElement) ? document.activeElement.dataset : {};
  fill(node, build());
  if (!test) return;
  const called = [...node.querySelectorAll(`[data-test="${CSS.escape(test)}"]`)];
  const same = called.filter((one) => one.dataset.of === of);
  // Where there are several it could be another one's.
  if (same.length === 1) same[0].focus({ preventScroll: true });
}

/** The rows of each parent, by key. */
const ROWS = new WeakMap();

/** The row of this key, where it is shown. */
export const rowOf = (parent, key) => ROWS.get(parent)?.get(key);

/**
 * Keeps the children of a node as the items say: a row for each key, made once, moved where the order
 * changes, updated with what it shows.
 */
export function keyed(parent, items, keyOf, make, update) {
  const rows = ROWS.get(parent) ?? ROWS.set(parent, new Map()).get(parent);
  // First, so that those below stay where they are, with the focus and a click that has begun.
  const wanted = new Set(items.map(keyOf));
  for (const [key, row] of rows) {
    if (wanted.has(key)) continue;
    row.remove();
    rows.delete(key);
  }
  let at = parent.firstChild;
  for (const item of items) {
    const key = keyOf(item);
    let row = rows.get(key);
    if (!row) rows.set(key, (row = make(item)));
    update(row, item);
    if (row === at) {
      at = at.nextSibling;
    } else {
      parent.insertBefore(row, at);
    }
  }
}

/** A region that scrolls can be reached by the keyboard, and one that does not is no stop on the way. */
const scrolling = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (!target.isConnected) {
      // Some browsers keep what is observed for ever.
      scrolling.unobserve(target);
      continue;
    }
    const region = target.closest(".scroll");
    if (!region) continue;
    const is = region.scrollWidth > region.clientWidth + 1 || region.scrollHeight > region.clientHeight + 1;
    attr(region, "tabindex", is ? "0" : null);
    attr(region, "role", is ? "region" : null);
    attr(region, "aria-label", is ? region.querySelector("caption").textContent : null);
  }
});

/**
 * A table: columns are `{key, head, number, wide}`. Roles are said, since narrow screens show rows as cards
 * and some browsers forget then that it is a table.
 */
export function table(caption, columns, props = {}) {
  const heads = columns.map((c) =>
    h(
      "th",
      { scope: "col", role: "columnheader", class: c.number ? "n" : c.class, "data-cell": c.key },
      c.hidden ? h("span", { class: "vh" }, c.head) : c.head,
    ),
  );
  const body = h("tbody", { role: "rowgroup" });
  const node = h(
    "table",
    { role: "table", ...props, class: `grid ${props.class ?? ""}` },
    h("caption", {}, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)),
    body,
  );
  const region = h("div", { class: "scroll" }, node);
  [region, node].forEach((part) => scrolling.observe(part));
  return { node, body, columns, region };
}

/** A row of such a table; `cells` are by key. */
export function row(of, props = {}) {
  const cells = {};
  const nodes = of.columns.map((c, index) => {
    const shape = {
      role: index === 0 ? "rowheader" : "cell",
      class: c.number ? "n" : c.class,
      "data-label": c.head,
      "data-cell": c.key,
    };
    return (cells[c.key] = h(index === 0 ? "th" : "td", index === 0 ? { scope: "row", ...shape } : shape));
  });
  const node = h("tr", { role: "row", ...props }, nodes);
  node.cells_ = cells;
  return node;
}

/** A table that is filled once: rows are lists of text or nodes. */
export function plainTable(caption, heads, rows, props = {}) {
  const of = table(
    caption,
    heads.map((head, key) => (typeof head === "string" ? { key, head } : { key, ...head })),
    props,
  );
  for (const values of rows) {
    const line = row(of);
    values.forEach((value, key) => add(line.cells_[key], [value]));
    of.body.append(line);
  }
  return of.region;
}

/** Progress with its text; without a number it only says so. */
export function progress(label) {
  const bar = h("progress", { max: 100, "aria-label": label });
  const words = h("span", { class: "words" });
  const node = h("span", { class: "progress" }, bar, words);
  return {
    node,
    set(percent, shown) {
      show(bar, percent !== null && percent !== undefined);
      if (percent !== null && percent !== undefined) attr(bar, "value", percent);
      text(words, shown);
    },
  };
}

/** What a click asks for is not asked for again while it is under way. */
export function button(label, test, onclick, props = {}) {
  let busy = false;
  const click = async (event) => {
    if (busy) return;
    busy = true;
    try {
      await onclick(event);
    } finally {
      busy = false;
    }
  };
  return h("button", { type: "button", test, ...props, on: { click } }, label);
}

/** A command to paste, with a button that copies it. */
export function command(line, test = "command") {
  const code = h("code", { test }, line);
  const copy = button(
    "Copy",
    `${test}-copy`,
    async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        announce("copied");
        copy.textContent = "Copied";
      } catch {
        // Without TLS a browser gives pages no clipboard: then it is marked for the keys.
        getSelection().selectAllChildren(code);
        copy.textContent = "Marked: press Ctrl-C";
      }
      setTimeout(() => (copy.textContent = "Copy"), 3000);
    },
    { class: "small", "aria-label": "Copy the command" },
  );
  return h("div", { class: "command" }, code, copy);
}

let waiting = [];
let timer = 0;

/** Says something to screen readers, politely. What comes at the same time is said together. */
export function announce(words) {
  waiting.push(clean(words));
  if (timer) return;
  timer = setTimeout(() => {
    const all = [...new Set(waiting)];
    const rest = all.length - 3;
    const spoken = all.slice(0, 3).join(". ") + (rest > 0 ? `. And ${rest} more changes` : "");
    document.getElementById("announcer").textContent = spoken;
    [waiting, timer] = [[], 0];
  }, 700);
}

/** What went wrong, with what to do. */
export function failure(error) {
  return h(
    "div",
    { class: "failure", role: "alert", test: "error" },
    h("p", {}, h("strong", {}, "Error: "), error.message ?? String(error)),
    error.remedy ? h("p", { test: "remedy" }, `What to do: ${error.remedy}`) : null,
  );
}

/** A label with its field, and a hint below. */
export function field(label, input, hint) {
  input.id ||= `f${++field.last}`;
  const id = `${input.id}-hint`;
  if (hint) attr(input, "aria-describedby", id);
  return h(
    "div",
    { class: "field" },
    h("label", { for: input.id }, label),
    input,
    hint ? h("p", { class: "hint", id }, hint) : null,
  );
}
field.last = 0;

export function checkbox(label, test, checked = false) {
  const input = h("input", { type: "checkbox", test });
  input.checked = checked;
  return { input, node: h("label", { class: "check" }, input, h("span", {}, label)) };
}

export function select(test, options, chosen) {
  const node = h(
    "select",
    { test },
    options.map(([value, label]) => h("option", { value }, label)),
  );
  if (chosen !== undefined) node.value = chosen;
  return node;
}
