// The guided way of one migration. Each step says what is true, what is missing, and the command that does
// the same. The page never goes on by itself.

import { jobPath, order } from "./api.js";
import { attr, button, command, failure, fill, h, refill, show, text } from "./dom.js";
import { lagOf, reader, syncParts } from "./job.js";
import { doneOf, mood } from "./jobs.js";
import { lastVerify, leadsBack, wayBack } from "./migrations.js";
import { ask, inWords, isSame, outcome, rehearse, settings } from "./cutover.js";
import { findings, line, openAssess, openVerify, verdictText } from "./sides.js";
import { jobNamed, may, serverNow, state, stateOf, urlOf } from "./store.js";
import { agoRoughly, clock, count, countOf, duration, time } from "./units.js";

/** What was chosen and done in this page, by job. What was found out the server remembers. */
const kept = new Map();

const keptOf = (name) =>
  kept.get(name) ?? kept.set(name, { chosen: {}, done: null, back: null }).get(name);

const WORDS = { done: "done", now: "now", todo: "to do", problem: "look here" };

/** What was read of a job longer ago than this is not shown as true, in milliseconds. */
const FRESH_MS = 10000;

const isEnded = (job) => job.ended;
const isCutOver = (job) => job.ended && job.phase === "cut over";

/**
 * A step: its parts, and how to show what is true and what is missing. It folds once it is done, unless
 * something is left to be done then.
 */
function step(number, title, test, ...rest) {
  const mark = h("span", { class: "badge" });
  const short = h("span", { class: "dim short" });
  const [trues, missing] = [h("ul", { class: "true" }), h("ul", { class: "missing" })];
  const body = h(
    "details",
    { open: true },
    h("summary", { class: "title" }, h("h2", {}, `${number}. ${title}`), mark, short),
    trues,
    missing,
    rest,
  );
  const node = h("li", { class: "step", test }, body);
  let was = null;
  return {
    node,
    set(how, true_, missing_, folds = true) {
      attr(node, "data-done", how === "done" ? "yes" : "no");
      // People who open it again find it open.
      if ((how === "done") !== was) body.open = how !== "done" || !folds;
      was = how === "done";
      text(short, how === "done" ? (true_.find(Boolean) ?? "") : "");
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
    set(reason, note) {
      attr(node, "disabled", Boolean(reason));
      text(why, reason || note || "");
    },
  };
}

const administers = () =>
  may("administer")
    ? null
    : `Your role is ${state.me?.role ?? "not known yet"}: this needs the role administer.`;

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
    status?.suspect_slots === 0 ? "no slot is in doubt" : null,
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
        status?.suspect_slots ? `${countOf(status.suspect_slots, "slot")} are gone through again` : null,
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
  const isPart = !verify.whole;
  const age = verify.ended_s ? `, ${agoRoughly(serverNow() - verify.ended_s * 1000)}` : "";
  const summary = `${verify.name}: ${stateOf(verify)}${age}`;
  if (!verify.ended) return ["now", [`${summary}, ${doneOf(verify)}`], []];
  if (verify.phase === "different") return ["problem", [summary], ["both sides differ: see the job"]];
  return [
    verify.phase === "equal" && !isOld && !isPart ? "done" : "todo",
    [summary],
    [
      isOld ? "that was before this sync: verify again" : null,
      isPart ? "it compared only a part of the keys, or not all of them: verify again" : null,
      verify.phase === "unproven" ? "slots kept moving while it compared: verify again" : null,
    ].filter(Boolean),
  ];
}

/** Whether a comparison since the sync began says that both sides are equal. */
function isVerified(job) {
  const verify = lastVerify(job);
  return verify?.phase === "equal" && verify.whole && verify.created_s >= job.created_s;
}

/** The last rehearsal of this run's cutover, as the server remembers it. */
function rehearsalOf(job, remembered) {
  const last = remembered?.rehearsal;
  return last && !last.chosen?.back && last.at_ms >= job.created_s * 1000 ? last : null;
}

/** What is chosen now; null where that is not understood yet: asked for, it says so. */
function chosenNow(at) {
  try {
    return at.choices.values();
  } catch {
    return null;
  }
}

const isRehearsed = (at, job, remembered) => {
  const last = rehearsalOf(job, remembered);
  return Boolean(last && !last.error && isSame(last.chosen, chosenNow(at)));
};

/** Why a cutover cannot be asked for now; null where it can. */
function refusal(job) {
  if (administers()) return administers();
  if ((job.can ?? []).includes("cutover")) return null;
  if (isCutOver(job)) return "It is done.";
  if (job.ended) return "The sync has ended.";
  return job.phase === "following"
    ? "The job cannot be cut over in its present state."
    : "The sync has to follow first.";
}

function skeleton(name, job, mine, update, poller) {
  const at = {
    heading: h("h1", { tabindex: "-1" }, `Migration ${name}`),
    badge: h("span", { class: "badge" }),
    lead: h("p", { class: "dim" }),
    error: h("div", {}),
    note: h("p", { class: "note" }),
    choices: settings(mine.chosen),
  };
  const pair = () => ({ source: urlOf(job(), "source"), target: urlOf(job(), "target") });
  const found = () => (poller.again(), update());
  const part = (key) => (at[key] = h("div", {}));
  at.assessButton = gated("Assess …", "step-button", () => openAssess(pair(), found));
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
  at.rehearseResult = h("div", { role: "status" });
  at.rehearseButton = gated("Rehearse the cutover", "rehearse-button", () =>
    doRehearse(at, name, found),
  );
  at.rehearse = step(
    4,
    "Rehearse the cutover",
    "step-rehearse",
    at.choices.node,
    at.rehearseButton.node,
    at.rehearseResult,
    part("rehearseLine"),
  );
  at.cutButton = gated("Cut over …", "cutover-open", () => doCutover(at, job(), mine, poller, update), {
    class: "danger",
  });
  at.cutResult = h("div", {});
  at.withdraw = button("Withdraw the cutover", "cutover-withdraw", () => doWithdraw(at, name));
  at.cut = step(
    5,
    "Cut over",
    "step-cutover",
    at.cutButton.node,
    at.withdraw,
    at.cutResult,
    part("cutLine"),
  );
  at.backResult = h("div", { role: "status" });
  at.backRehearse = gated("Rehearse the rollback", "back-rehearse", () =>
    doBack(at, job(), mine, true, update),
  );
  at.backButton = gated("Roll back …", "back-button", () => doBack(at, job(), mine, false, update), {
    class: "danger",
  });
  at.back = step(
    6,
    "Roll back",
    "step-back",
    part("backLink"),
    part("fenced"),
    at.backRehearse.node,
    at.backButton.node,
    at.backResult,
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

function doCutover(at, job, mine, poller, update) {
  const done = (answer) => {
    mine.done = { answer, of: job.created_s };
    update();
  };
  const warningsOf = (job) => [
    !isVerified(job) && [
      "Nothing was verified: no comparison of all keys says that both sides are equal.",
      "Cut over without a comparison of all keys",
      "cutover-unverified",
    ],
    !isRehearsed(at, job, poller.read.answer?.remembered) && [
      "This cutover was not rehearsed with these choices.",
      "Cut over without a rehearsal",
      "cutover-unrehearsed",
    ],
  ].filter(Boolean);
  const warnings = warningsOf(job);
  // Of the same run, with no warning that was not confirmed.
  const holds = () => {
    const now = jobNamed(job.name) ?? job;
    const isConfirmed = ([, , test]) => warnings.some((warning) => warning[2] === test);
    return now.created_s === job.created_s && warningsOf(now).every(isConfirmed);
  };
  try {
    const later = at.choices.later();
    ask(job, at.choices.values(), at.choices.line(job.name), { warnings, later, holds, done });
  } catch (error) {
    fill(at.cutResult, failure(error));
  }
}

async function doWithdraw(at, name) {
  try {
    await order(jobPath(name, "cutover/withdraw"));
    fill(at.cutResult, h("p", { role: "status" }, "Withdrawn: no cutover will be made."));
  } catch (error) {
    fill(at.cutResult, failure(error));
  }
}

async function doRehearse(at, name, found) {
  fill(at.rehearseResult, h("p", {}, "Rehearsing: nothing is changed …"));
  try {
    await rehearse(name, at.choices.values());
    fill(at.rehearseResult);
  } catch (error) {
    fill(at.rehearseResult, failure(error));
  }
  found();
}

async function doBack(at, job, mine, dryRun, update) {
  const back = leadsBack(job) ? job : wayBack(job);
  try {
    const values = at.choices.values();
    if (!dryRun) {
      ask(
        back,
        values,
        at.choices.line(back.name, { back: true }),
        {
          back: true,
          done: (answer) => {
            mine.back = { answer, fence: values.fence, of: back.created_s };
            update();
          },
        },
      );
      return;
    }
    fill(at.backResult, h("p", {}, "Rehearsing: nothing is changed …"));
    fill(at.backResult, outcome(await rehearse(back.name, values, true)));
  } catch (error) {
    fill(at.backResult, failure(error));
  }
}

function paintSteps(at, job, read, mine) {
  // What was true of a job that goes on is not true for long.
  const isFresh = job.ended || (read.readMs && serverNow() - read.readMs < FRESH_MS);
  const status = isFresh ? read.answer?.details?.status : undefined;
  const remembered = read.answer?.remembered;
  if (read.answer) at.choices.take(rehearsalOf(job, remembered)?.chosen);
  const last = remembered?.assessment;
  const found = last && { ...last, at: last.at_ms };
  const age = found && agoRoughly(serverNow() - found.at);
  at.assess.set(
    found ? (found.report?.verdict === "blocked" || !found.report ? "problem" : "done") : "todo",
    [found?.report && `${verdictText(found.report.verdict)} Assessed ${age} by ${found.who}.`],
    [
      !found && may("administer") && "not assessed by this console; it may have been on a terminal",
      !found && !may("administer") && "what an assessment found is shown to the role administer",
      found && !found.report && `the assessment ${age} could not be made`,
    ],
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
  paintCutover(at, job, mine, remembered);
  paintBack(at, job, mine);
  paintLines(at, job, remembered);
}

function paintCutover(at, job, mine, remembered) {
  const last = rehearsalOf(job, remembered);
  const fits = isRehearsed(at, job, remembered);
  const why = refusal(job);
  const age = last && agoRoughly(serverNow() - last.at_ms);
  at.rehearse.set(
    isCutOver(job) || fits ? "done" : last?.error && !isEnded(job) ? "problem" : !why ? "now" : "todo",
    last && !last.error
      ? [`Rehearsed ${age} by ${last.who}: ${inWords(last.chosen)}`, ...(last.text ?? [])]
      : [],
    isEnded(job)
      ? []
      : [
          !last && "not rehearsed yet",
          last?.error && `the rehearsal ${age} was refused: ${last.error}`,
          last && !last.error && !fits && "rehearsed with other choices: rehearse again",
        ],
  );
  at.rehearseButton.set(why);
  // Of this run: an earlier one may have had the same name.
  const done = mine.done?.of === job.created_s ? mine.done.answer : undefined;
  // A new order: what was said about one that was taken back is about another.
  const scheduled = job.scheduled ? JSON.stringify(job.scheduled) : null;
  if (scheduled && at.scheduled !== scheduled) fill(at.cutResult);
  at.scheduled = scheduled;
  show(at.withdraw, Boolean(job.scheduled) && !job.ended && may("administer"));
  const verified = isVerified(job);
  const missing = [
    !verified && "nothing was verified: no comparison since the sync began says that both sides are equal",
    !fits && "not rehearsed with these choices",
    job.paused && "the sync is paused",
    job.scheduled && `a cutover is scheduled: ${job.scheduled}`,
  ];
  const chosen = chosenNow(at);
  at.cut.set(
    isCutOver(job) ? "done" : job.ended ? "todo" : fits && !why ? "now" : "todo",
    isCutOver(job)
      ? [`The target took over: ${job.ended_s ? time(job.ended_s) : ""}`, ...(done?.text ?? [])]
      : [
          job.phase === "following" && "the sync follows the source",
          verified && "a comparison of all keys says that both sides are equal",
          fits && "rehearsed with these choices",
          chosen && !job.ended && `chosen in step 4: ${inWords(chosen)}`,
        ],
    isEnded(job) ? [!isCutOver(job) && "the sync ended without a cutover"] : missing,
  );
  at.cutButton.set(why, verified || job.ended ? null : "Nothing was verified: you will be asked once more.");
}

/** What still keeps writers away from the side that was rolled back from. */
function fenceText(back, fence) {
  if (fence === "none") return `nothing keeps writers away from ${back.source}`;
  if (fence === "front") return `the front sends its clients to ${back.target} again`;
  if (fence === "pause") return `${back.source} stays fenced until the pause of its writes is over`;
  return `${back.source} stays fenced: clients that write there get errors until you take the fence down`;
}

function paintBack(at, job, mine) {
  const isBack = Boolean(leadsBack(job));
  const back = isBack ? job : wayBack(job);
  const runs = back?.running && !back.ended;
  const ordered = mine.back?.of === back?.created_s ? mine.back : undefined;
  const came = back && isCutOver(back) && (isCutOver(job) || isBack);
  const reasons =
    isCutOver(job) || isBack
      ? [
          !runs &&
            !came &&
            "nothing follows the target back: the cutover was without --reverse-sync, or that sync has ended",
        ]
      : ["possible after the cutover, if it keeps a way to roll back (step 4)"];
  at.back.set(
    came ? "done" : runs && (isCutOver(job) || isBack) ? "now" : "todo",
    [
      runs &&
        (isCutOver(job) || isBack) &&
        `${back.name} follows ${back.source} back into ${back.target}: ${stateOf(back)}`,
      came && `${back.target} has taken over again`,
      came && fenceText(back, ordered?.fence),
      ...(ordered?.answer?.text ?? []),
    ],
    reasons,
    false,
  );
  const nothing = came ? "It is rolled back." : "There is nothing to roll back to now.";
  const why = !back || !runs ? nothing : refusal(back);
  at.backButton.set(why);
  at.backRehearse.set(why);
  const left = came && ordered?.fence !== "none" && ordered?.fence !== "front" ? back : null;
  refill(at.fenced, left?.name ?? null, () =>
    left
      ? [
          h("p", {}, "To let clients write there again, take the fence down on the machine of the sync:"),
          command(line("unfence", urlOf(left, "source")), "unfence"),
        ]
      : [],
  );
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

function paintLines(at, job, remembered) {
  const put = (node, ...lines) =>
    refill(node, lines, () => [
      h("p", { class: "dim" }, "The same on a terminal:"),
      lines.filter(Boolean).map((one) => command(one)),
    ]);
  const [source, target] = ["source", "target"].map((side) => urlOf(job, side));
  const { name } = job;
  const mirror = remembered?.begun?.mirror && "--mirror";
  put(at.assessLine, line("assess", source, target));
  put(at.syncLine, job.again ?? line("sync", source, target, mirror));
  put(at.verifyLine, line("verify", source, target));
  put(at.rehearseLine, at.choices.line(name, { dryRun: true }));
  put(at.cutLine, at.choices.line(name));
  const back = leadsBack(job) ? job : wayBack(job);
  put(at.backLine, at.choices.line(back?.name ?? name, { back: true }));
}

export function open(name) {
  const mine = keptOf(name);
  const poller = reader(name, () => update());
  let last = null;
  // After a reload the job itself may be there before the list of all jobs.
  const known = () => jobNamed(name) ?? poller.read.answer?.job ?? last;
  const at = skeleton(name, known, mine, () => update(), poller);

  function update() {
    const job = known();
    poller.tick();
    const { error } = poller.read;
    const isMissing = !jobNamed(name) && error?.status === 404;
    const missing = { message: `there is no job ${name}`, remedy: "see the list of migrations" };
    const shown = isMissing ? missing : job ? null : error;
    refill(at.error, shown?.message ?? null, () => (shown ? failure(shown) : []));
    // What the steps say is also of other jobs: before these are known it would be wrong.
    const isKnown = Boolean(job) && state.everRead && !isMissing;
    at.node.querySelector(".steps").hidden = !isKnown;
    if (!isKnown) return;
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
    paintSteps(at, job, poller.read, mine);
  }
  const readMs = () =>
    last && !last.ended && poller.read.readMs
      ? Math.min(state.readMs ?? Infinity, poller.read.readMs)
      : state.readMs;
  return { node: at.node, title: `Migration ${name}`, update, readMs, close: poller.stop };
}
