// A fleet: who is a member, who owns how many partitions, whether all know the same, and what moves.

import { attr, h, keyed, row, show, table, text } from "./dom.js";
import { state } from "./store.js";
import { count, countOf, duration } from "./units.js";

const MEMBERS = [
  { key: "member", head: "Member" },
  { key: "name", head: "Name" },
  { key: "address", head: "Address" },
  { key: "owned", head: "Partitions", number: true },
  { key: "weight", head: "Weight", number: true },
  { key: "silent", head: "Last heard", number: true },
  { key: "lag", head: "Changes missed", number: true },
  { key: "held", head: "Requests", number: true },
  { key: "table", head: "Table" },
  { key: "version", head: "Version" },
  { key: "state", head: "State" },
];

const BACKENDS = [
  { key: "name", head: "Backend" },
  { key: "url", head: "Address" },
  { key: "partitions", head: "Partitions", number: true },
  { key: "weight", head: "Weight", number: true },
];

function headline(fleet) {
  if (fleet.unowned > 0) return [`${countOf(fleet.unowned, "partition")} without an owner`, "bad"];
  if (fleet.remaining > 0)
    return [
      `${countOf(fleet.remaining, "partition")} left to move, ${count(fleet.moving)} moving now`,
      "busy",
    ];
  const settled = fleet.moving === 0 && fleet.members.every((member) => member.equal === true);
  return settled ? ["settled", "good"] : ["nothing left to move; some members do not know it yet", "warn"];
}

function stateOf(member) {
  if (!member.connected) {
    return typeof member.silent_ms === "number"
      ? ["not connected", "bad"]
      : ["not heard from since the coordinator started", "bad"];
  }
  if (member.leaving) return ["leaves", "warn"];
  return member.weight === 0 ? ["drained", "warn"] : ["serves", "good"];
}

const TABLES = new Map([
  [true, "equal"],
  [false, "differs"],
]);

function makeMember(of) {
  const line = row(of, { test: "member" });
  line.badge = h("span", { class: "badge" });
  line.trouble = h("p", { class: "dim" });
  line.cells_.state.append(line.badge, line.trouble);
  return line;
}

function updateMember(line, member) {
  const cells = line.cells_;
  const [word, mood] = stateOf(member);
  text(cells.member, String(member.member));
  text(cells.name, member.name);
  text(cells.address, member.address);
  text(cells.owned, count(member.owned));
  text(cells.weight, String(member.weight));
  text(cells.silent, typeof member.silent_ms === "number" ? `${duration(member.silent_ms)} ago` : "never");
  text(cells.lag, count(member.lag));
  text(cells.held, count(member.held));
  text(cells.table, TABLES.get(member.equal) ?? "unknown");
  text(cells.version, member.version);
  text(line.badge, word);
  attr(line.badge, "data-mood", mood);
  text(line.trouble, member.trouble ? `moves fail there: ${member.trouble}` : "");
  show(line.trouble, Boolean(member.trouble));
}

function updateBackend(line, backend) {
  text(line.cells_.name, backend.name);
  text(line.cells_.url, backend.url);
  text(line.cells_.partitions, count(backend.partitions));
  text(line.cells_.weight, String(backend.weight));
}

export function open() {
  const badge = h("span", { class: "badge", test: "fleet-state" });
  const [lead, none] = [h("p", { class: "dim" }), h("p", { class: "empty" })];
  const members = table("Members, with the partitions that each owns", MEMBERS, { class: "cards" });
  const backends = table("Backends, with the partitions whose data each has", BACKENDS, { class: "cards" });
  const body = h(
    "div",
    {},
    h("section", {}, h("h2", {}, "Members"), members.region),
    h("section", {}, h("h2", {}, "Backends"), backends.region),
  );
  const node = h(
    "div",
    {},
    h("div", { class: "title" }, h("h1", { tabindex: "-1" }, "Fleet"), badge),
    lead,
    none,
    body,
  );

  function update(changed) {
    if (changed && !changed.fleet) return;
    const { fleet } = state;
    [body, badge, lead].forEach((part) => show(part, Boolean(fleet)));
    show(none, !fleet);
    text(
      none,
      !state.everRead
        ? "The fleet has not been read yet."
        : state.me?.fleet
          ? "This coordinator stands by: the one that leads knows how the fleet stands."
          : "This server is the coordinator of no fleet. Start it with whimbrel serve --fleet.",
    );
    if (!fleet) return;
    const [word, mood] = headline(fleet);
    text(badge, word);
    attr(badge, "data-mood", mood);
    text(
      lead,
      `${countOf(fleet.partitions, "partition")}, ${countOf(fleet.members.length, "member")}, ` +
        `term ${count(fleet.term)}; ` +
        `moves: ${count(fleet.moved)} made, ${count(fleet.failed)} given up since the start`,
    );
    keyed(
      members.body,
      fleet.members,
      (m) => m.member,
      () => makeMember(members),
      updateMember,
    );
    keyed(
      backends.body,
      fleet.backends ?? [],
      (b) => b.number,
      () => row(backends, { test: "backend" }),
      updateBackend,
    );
  }
  return { node, title: "Fleet", update };
}
