// Small charts of lines. The line is SVG, its numbers are text beside it, and the same is there as a table,
// for screen readers and for people who want to read a number.

import { attr, fill, h, plainTable, text } from "./dom.js";
import { clock, UNKNOWN } from "./units.js";

/** What a chart shows before now, in milliseconds: the shorter one while that holds everything. */
const SPANS_MS = [60 * 1000, 5 * 60 * 1000];

/** A gap longer than this is one: nobody knows what was between. */
const GAP_MS = 5000;

/** Rows of the table. */
const ROWS = 20;

/**
 * Rounds up, so that the axis has a number that can be read: to 1, 2 or 5 of some power of ten, or of the
 * unit of bytes that it is shown in.
 */
function ceiling(value, base) {
  if (!(value > 0)) return 1;
  const unit = base ** Math.floor(Math.log(value) / Math.log(base) + 1e-9);
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 1024];
  return steps.map((n) => n * unit).find((n) => n >= value) ?? base * unit;
}

/** The last value that is known, unless it is old. */
const lastOf = (points, of, now) =>
  points.findLast((point) => typeof point[of] === "number" && now - point.at <= GAP_MS)?.[of];

function line(points, of, now, top, span) {
  const parts = [];
  let before = null;
  for (const point of points) {
    const value = point[of];
    if (value === null || value === undefined || now - point.at > span) {
      continue;
    }
    const x = (1000 * (span - (now - point.at))) / span;
    const y = 100 - (100 * Math.min(value, top)) / top;
    const isNext = before !== null && point.at - before <= GAP_MS;
    // One point alone would be no line: it gets a length.
    parts.push(`${isNext ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}${isNext ? "" : "h1"}`);
    before = point.at;
  }
  return parts.join("");
}

/**
 * A chart with a title. `series` are `{of, name}`: the field of a point, and what it is called; `format`
 * writes a value.
 */
export function chart({ title, series, format, test, empty, base = 10 }) {
  const now = h("span", { class: "now", test: `${test}-now` });
  const lines = series.map((_, index) => h("path", { class: `line s${index}` }));
  const svg = h(
    "svg",
    { viewBox: "0 0 1000 100", preserveAspectRatio: "none", "aria-hidden": "true" },
    lines,
  );
  const [top, middle, since] = [h("span", {}), h("span", {}), h("span", {})];
  const table = h("details", {}, h("summary", {}, "As a table"), h("div", {}));
  const keys =
    series.length > 1
      ? h(
          "p",
          { class: "keys" },
          series.map((s, index) => h("span", { class: `key s${index}` }, s.name)),
        )
      : null;
  const node = h(
    "figure",
    { class: "chart", test },
    h("figcaption", {}, h("span", {}, title), now),
    h(
      "div",
      { class: "plot" },
      h("div", { class: "y", "aria-hidden": "true" }, top, middle, h("span", {}, "0")),
      svg,
    ),
    h("div", { class: "x", "aria-hidden": "true" }, since, h("span", {}, "now")),
    keys,
    table,
  );
  let last = [[], 0];
  const rows = () => {
    const [points] = last;
    const step = Math.max(1, Math.floor(points.length / ROWS));
    const shown = points
      .filter((_, index) => (points.length - 1 - index) % step === 0)
      .slice(-ROWS)
      .reverse();
    fill(
      table.lastChild,
      plainTable(
        `${title}, newest first`,
        ["time", ...series.map((s) => s.name)],
        shown.map((point) => [clock(point.at), ...series.map((s) => format(point[s.of]))]),
      ),
    );
  };
  table.addEventListener("toggle", () => table.open && rows());
  return {
    node,
    set(points, at) {
      last = [points, at];
      const values = points.flatMap((point) => series.map((s) => point[s.of] ?? 0));
      const span = SPANS_MS.find((ms) => at - (points[0]?.at ?? at) <= ms) ?? SPANS_MS.at(-1);
      const most = ceiling(Math.max(0, ...values), base);
      lines.forEach((path, index) => attr(path, "d", line(points, series[index].of, at, most, span)));
      text(since, `${span / 60000} min ago`);
      text(top, format(most));
      text(middle, format(most / 2));
      const texts = series.map((s) => format(lastOf(points, s.of, at)));
      const known = texts.some((word) => word !== UNKNOWN);
      text(
        now,
        known
          ? texts.map((word, i) => (i ? `${series[i].name} ${word}` : word)).join(", ")
          : points.length
            ? (empty ?? "not known")
            : "no points yet",
      );
    },
  };
}
