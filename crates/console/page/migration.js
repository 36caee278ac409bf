// The guided way of one migration. Each step says what is true, what is missing, and the command that does
// the same. The page never goes on by itself.

import { attr, button, command, failure, fill, h, refill, show, text } from "./dom.js";
import { lagOf, reader, syncParts } from "./job.js";
import { doneOf, mood } from "./jobs.js";
import { lastVerify, leadsBack, wayBack } from "./migrations.js";
import { ask, outcome, rehearse, settings } from "./cutover.js";
import { assessmentOf, findings, line, openAssess, openVerify, verdictText } from "./sides.js";
import { jobNamed, may, state, stateOf } from "./store.js";
import { clock, count, countOf, duration, time } from "./units.js";

/** What was chosen, rehearsed and done in this page, by job. */
const kept = new Map();

const keptOf = (name) =>
  kept.get(name) ?? kept.set(name, { chosen: {}, rehearsed: null, done: null, back: null }).get(name);

const WORDS = { done: "done", now: "now", todo: "to do", problem: "look here" };

const isEnded = (job) => job.ended;
const isCutOver = (job) => job.ended && job.phase === "cut over";

/** A step: its parts, and how to show what is true and what is missing. */
function step(number, title, test, ...rest) {
  const mark = h("span", { class: "badge" });
  const [trues, missing] = [h("ul", { class: "true" }), h("ul", { class: "missing" })];
  const node = h(
    "li",
    { class: "step", test },
    h("div", { class: "title" }, h("h2", {}, `${number}. ${title}`), mark),
    trues,
    missing,
    rest,
  );
  return {
    node,
    set(how, true_, missing_) {
      attr(node, "data-done", how === "done" ? "yes" : "no");
      text(mark, WORDS[how]);
      attr(mark, "data-mood", { done: "good", now: "busy", todo: "plain", problem: "bad" }[how]);
      const items = (list, word) => () => list.map((one) => h("li", { test: word }, one));
      const [is, lacks] = [true_.filter(Boolean), missing_.filter(Boolean)];
      refill(trues, is, items(is, "true"));
      refill(missing, lacks, items(lacks, "missing"));
    },
  };
}

/** A button that says why it cannot be pressed. */
function gated(label, test, onclick, props) {
  const node = button(label, test, onclick, props);
  const why = h("span", { class: "dim" });
  return {
    node: h("div", { class: "actions" }, node, why),
    set(reason) {
      attr(node, "disabled", Boolean(reason));
      text(why, reason ?? "");
    },
  };
}

const administers = () =>
  may("administer") ? null : `Your role is ${state.me?.role ?? "not known yet"}: this takes administer.`;

function syncStep(job, status, error) {
  const silent = [...(status?.sources ?? []), ...(status?.targets ?? [])].filter((server) => server.silent);
  const broken = (status?.sources ?? []).filter((source) => source.trouble);
  const failed = status?.counts?.failed ?? 0;
  const lag = lagOf({ status });
  const follows = job.phase === "following";
  const true_ = [
    `${job.name}: ${stateOf(job)}`,
    job.keys ? `${count(job.keys_moved)} of ${countOf(job.keys, "key")} are at the target` : null,
    lag !== null && follows ? `the target is ${duration(lag)} behind` : null,
    status && !silent.length ? "all servers answer" : null,
    status && !failed ? "no key has failed" : null,
    status?.doubtful_slots === 0 ? "no slot is in doubt" : null,
  ];
  const missing = isEnded(job)
    ? []
    : [
        job.state === "interrupted" ? "it was interrupted: go on with the command below" : null,
        job.answers === false && job.running ? "its process does not answer" : null,
        job.paused ? "it is paused: resume it before the cutover" : null,
        !follows && job.running ? `it does not follow yet: ${job.phase}, ${doneOf(job)}` : null,
        follows && status && lag === null ? "how far the target is behind is not known" : null,
        ...silent.map((server) => `${server.address} has been silent for ${duration(server.silent_ms)}`),
        ...broken.map((source) => `${source.address}: ${source.trouble}`),
        failed ? `${countOf(failed, "key")} are not on the target: see below` : null,
        status?.doubtful_slots ? `${countOf(status.doubtful_slots, "slot")} are gone through again` : null,
        typeof status?.disk_full_ms === "number" ? "the journal's disk is full" : null,
        error && !status ? `how it stands cannot be read: ${error.message}` : null,
      ];
  const isWrong = silent.length || broken.length || failed || job.state === "interrupted";
  const isDone = isCutOver(job) || (follows && status && !missing.some(Boolean));
  return [isDone ? "done" : isWrong ? "problem" : job.ended ? "todo" : "now", true_, missing];
}

function verifyStep(job) {
  const verify = lastVerify(job);
  if (!verify)
    return ["todo", [], ["not verified yet: a comparison of all keys finds what a sample does not"]];
  const isOld = verify.created_s < job.created_s;
  const told = `${verify.name}: ${stateOf(verify)}${verify.ended_s ? `, ended ${time(verify.ended_s)}` : ""}`;
  if (!verify.ended) return ["now", [`${told}, ${doneOf(verify)}`], []];
  if (verify.phase === "different") return ["problem", [told], ["both sides differ: see the job"]];
  return [
    verify.phase === "equal" && !isOld ? "done" : "todo",
    [told],
    isOld ? ["that was before this sync: verify again"] : [],
  ];
}

/** Why a cutover cannot be asked for now; null where it can. */
function refusal(job) {
  if (administers()) return administers();
  if ((job.can ?? []).includes("cutover")) return null;
  if (isCutOver(job)) return "It is done.";
  if (job.ended) return "The sync has ended.";
  return job.phase === "following"
    ? "As the job stands it cannot be asked."
    : "The sync has to follow first.";
}

function skeleton(name, mine, update) {
  const at = {
    heading: h("h1", { tabindex: "-1" }, `Migration ${name}`),
    badge: h("span", { class: "badge" }),
    lead: h("p", { class: "dim" }),
    error: h("div", {}),
    note: h("p", { class: "note" }),
    choices: settings(mine.chosen),
  };
  const job = () => jobNamed(name);
  const pair = () => ({ source: job()?.source, target: job()?.target });
  const part = (key) => (at[key] = h("div", {}));
  at.assessButton = gated("Assess …", "step-button", () => openAssess(pair(), update));
  at.assess = step(
    1,
    "Assess",
    "step-assess",
    part("assessFound"),
    at.assessButton.node,
    part("assessLine"),
  );
  at.sync = step(
    2,
    "Sync",
    "step-sync",
    h("p", {}, h("a", { href: `#/jobs/${encodeURIComponent(name)}` }, "The job, with its charts")),
    part("syncParts"),
    part("syncLine"),
  );
  at.verifyButton = gated("Verify …", "verify-open", () => openVerify(pair(), update));
  at.verify = step(
    3,
    "Verify",
    "step-verify",
    part("verifyLink"),
    at.verifyButton.node,
    part("verifyLine"),
  );
  at.rehearseSaid = h("div", { role: "status" });
  at.rehearseButton = gated("Rehearse the cutover", "rehearse-button", () =>
    doRehearse(at, name, mine, update),
  );
  at.rehearse = step(
    4,
    "Rehearse the cutover",
    "step-rehearse",
    at.choices.node,
    at.rehearseButton.node,
    at.rehearseSaid,
    part("rehearseLine"),
  );
  at.cutButton = gated("Cut over …", "cutover-open", () => doCutover(at, job(), mine, update), {
    class: "danger",
  });
  at.cutSaid = h("div", {});
  at.cut = step(5, "Cut over", "step-cutover", at.cutButton.node, at.cutSaid, part("cutLine"));
  at.backSaid = h("div", { role: "status" });
  at.backRehearse = gated("Rehearse coming back", "back-rehearse", () =>
    doBack(at, name, mine, true, update),
  );
  at.backButton = gated("Come back …", "back-button", () => doBack(at, name, mine, false, update), {
    class: "danger",
  });
  at.back = step(
    6,
    "Come back",
    "step-back",
    part("backLink"),
    at.backRehearse.node,
    at.backButton.node,
    at.backSaid,
    part("backLine"),
  );
  at.choices.node.addEventListener("input", update);
  at.node = h(
    "div",
    {},
    h("p", {}, h("a", { href: "#/migrations" }, "All migrations")),
    h("div", { class: "title" }, at.heading, at.badge),
    at.lead,
    at.note,
    at.error,
    h(
      "ol",
      { class: "steps" },
      [at.assess, at.sync, at.verify, at.rehearse, at.cut, at.back].map((one) => one.node),
    ),
  );
  return at;
}

function doCutover(at, job, mine, update) {
  const done = (answer) => {
    mine.done = { answer, at: Date.now() };
    update();
  };
  try {
    ask(job, at.choices.values(), at.choices.line(job.name), false, done);
  } catch (error) {
    fill(at.cutSaid, failure(error));
  }
}

async function doRehearse(at, name, mine, update) {
  fill(at.rehearseSaid, h("p", {}, "Rehearsing: nothing is changed …"));
  try {
    const values = at.choices.values();
    mine.rehearsed = { answer: await rehearse(name, values), at: Date.now(), with: JSON.stringify(values) };
    fill(at.rehearseSaid);
  } catch (error) {
    mine.rehearsed = null;
    fill(at.rehearseSaid, failure(error));
  }
  update();
}

async function doBack(at, name, mine, dryRun, update) {
  const job = jobNamed(name);
  const back = leadsBack(job) ? job : wayBack(job);
  try {
    const values = at.choices.values();
    if (!dryRun) {
      ask(
        back,
        values,
        at.choices.line(back.name, { back: true }),
        true,
        (answer) => ((mine.back = { answer, at: Date.now() }), update()),
      );
      return;
    }
    fill(at.backSaid, h("p", {}, "Rehearsing: nothing is changed …"));
    fill(at.backSaid, outcome(await rehearse(back.name, values, true)));
  } catch (error) {
    fill(at.backSaid, failure(error));
  }
}

function paintSteps(at, job, read, mine) {
  const status = read.answer?.details?.status;
  const { source, target } = job;
  const found = assessmentOf(source, target);
  at.assess.set(
    found ? (found.report?.verdict === "blocked" || !found.report ? "problem" : "done") : "todo",
    [found?.report && `Assessed at ${clock(found.at)}: ${verdictText(found.report.verdict)}`],
    [!found && "not assessed in this page; it may have been on a terminal"],
  );
  refill(at.assessFound, found?.at ?? null, () =>
    found ? h("details", {}, h("summary", {}, "What was found"), findings(found)) : [],
  );
  at.assessButton.set(administers());
  at.sync.set(...syncStep(job, status, read.error));
  refill(at.syncParts, status ?? null, () => (status && !job.ended ? syncParts(status) : []));
  at.verify.set(...verifyStep(job));
  const verify = lastVerify(job);
  refill(at.verifyLink, verify?.name ?? null, () =>
    verify
      ? h(
          "p",
          {},
          h("a", { href: `#/jobs/${encodeURIComponent(verify.name)}` }, `The comparison ${verify.name}`),
        )
      : [],
  );
  at.verifyButton.set(administers());
  paintCutover(at, job, mine);
  paintBack(at, job, mine);
  paintLines(at, job);
}

function paintCutover(at, job, mine) {
  let now = null;
  try {
    now = JSON.stringify(at.choices.values());
  } catch {
    // What is in the fields is no duration yet: asked for, it says so.
  }
  const { rehearsed } = mine;
  const fits = rehearsed && rehearsed.with === now;
  const why = refusal(job);
  at.rehearse.set(
    isCutOver(job) || fits ? "done" : rehearsed || !why ? "now" : "todo",
    [rehearsed && `rehearsed at ${clock(rehearsed.at)}`, ...(rehearsed?.answer?.text ?? [])],
    isEnded(job)
      ? []
      : [
          !rehearsed && "not rehearsed in this page",
          rehearsed && !fits && "rehearsed with other choices: rehearse again",
        ],
  );
  at.rehearseButton.set(why);
  const done = mine.done?.answer;
  const verified = lastVerify(job)?.phase === "equal";
  at.cut.set(
    isCutOver(job) ? "done" : job.ended ? "todo" : fits && !why ? "now" : "todo",
    [
      isCutOver(job) && `the target has taken over: ${job.ended_s ? time(job.ended_s) : ""}`,
      ...(done?.text ?? []),
    ],
    isEnded(job)
      ? [isCutOver(job) ? null : "the sync ended without a cutover"]
      : [
          !verified && "no comparison says that both sides are equal",
          !fits && "not rehearsed with these choices",
          job.scheduled && `a cutover is ordered: ${job.scheduled}`,
        ],
  );
  at.cutButton.set(why);
}

function paintBack(at, job, mine) {
  const isBack = Boolean(leadsBack(job));
  const back = isBack ? job : wayBack(job);
  const runs = back?.running && !back.ended;
  const came = back && isCutOver(back) && (isCutOver(job) || isBack);
  const reasons =
    isCutOver(job) || isBack
      ? [
          !runs &&
            !came &&
            "nothing follows the target back: it was cut over without --reverse-sync, or that has ended",
        ]
      : ["this comes after the cutover, and takes the choice to be able to come back"];
  at.back.set(
    came ? "done" : runs && (isCutOver(job) || isBack) ? "now" : "todo",
    [
      runs &&
        (isCutOver(job) || isBack) &&
        `${back.name} follows ${back.source} back into ${back.target}: ${stateOf(back)}`,
      came && `${back.target} has taken over again`,
      ...(mine.back?.answer?.text ?? []),
    ],
    reasons,
  );
  const why = !back || !runs ? "There is no way back now." : refusal(back);
  at.backButton.set(why);
  at.backRehearse.set(why);
  refill(at.backLink, [back?.name, isBack], () =>
    back && !isBack
      ? h(
          "p",
          {},
          h(
            "a",
            { href: `#/migrations/${encodeURIComponent(back.name)}` },
            `The sync that leads back: ${back.name}`,
          ),
        )
      : [],
  );
}

function paintLines(at, job) {
  const put = (node, ...lines) =>
    refill(node, lines, () => [
      h("p", { class: "dim" }, "The same on a terminal:"),
      lines.filter(Boolean).map((one) => command(one)),
    ]);
  const { source, target, name } = job;
  put(at.assessLine, line("assess", source, target));
  put(at.syncLine, job.again ?? line("sync", source, target));
  put(at.verifyLine, line("verify", source, target));
  put(at.rehearseLine, at.choices.line(name, { dryRun: true }));
  put(at.cutLine, at.choices.line(name));
  const back = leadsBack(job) ? job : wayBack(job);
  put(at.backLine, at.choices.line(back?.name ?? name, { back: true }));
}

export function open(name) {
  const mine = keptOf(name);
  const look = reader(name, () => update());
  let last = null;
  const at = skeleton(name, mine, () => update());

  function update() {
    const job = jobNamed(name) ?? look.read.answer?.job ?? last;
    look.tick();
    const isMissing = !job && state.everRead;
    refill(at.error, isMissing, () =>
      isMissing
        ? failure({ message: `there is no job ${name}`, remedy: "see the list of migrations" })
        : [],
    );
    at.node.querySelector(".steps").hidden = !job;
    if (!job) return;
    last = job;
    text(at.badge, stateOf(job));
    attr(at.badge, "data-mood", mood(job));
    text(at.lead, `${job.source} -> ${job.target}`);
    const first = leadsBack(job);
    show(at.note, Boolean(first));
    if (first)
      text(
        at.note,
        `This sync leads back: ${first.name} was cut over before. What counts here is the last step.`,
      );
    paintSteps(at, job, look.read, mine);
  }
  const readMs = () =>
    last && !last.ended && look.read.readMs
      ? Math.min(state.readMs ?? Infinity, look.read.readMs)
      : state.readMs;
  return { node: at.node, title: `Migration ${name}`, update, readMs, close: look.stop };
}
