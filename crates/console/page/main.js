// The page: who is logged in, which view is open, how old what is shown is, one paint for each frame.
//
// Names for a test driver, as data-test. The button of a form NAME-form or login is NAME-button:
//   frame       nav-cluster nav-jobs nav-migrations nav-fleet nav-audit who theme sign-out age error remedy
//               connection (data-state: connecting, live, lost) command command-copy dialog-close late
//               late-dismiss
//   login       login token login-button
//   cluster     cluster-state cluster-error canary whole-bar finding under-way shard (data-id) silent
//               shard-filter shard-sort shard-more moving (data-job) rebalance reshard drain repair
//   plan        plan-dialog plan-form plan-by plan-use-empty plan-threshold plan-slots plan-to plan-node
//               plan-button plan-summary plan-note plan-nothing plan-node-row plan-move plan-again
//               approve-form approve-confirm approve-button
//   repair      repair-dialog repair-action repair-nothing
//   jobs        job-state-filter job-text-filter job-count job-row (data-job) job-more plan-open cancel-plan
//               cancel-plan-dialog cancel-plan-form cancel-plan-confirm cancel-plan-button
//   job         job-name job-state job-percent job-eta job-message job-slots event report again again-copy
//               keys-chart bytes-chart lag-chart canary-chart (each with -now) pause resume go-on cutover
//               cancel cancel-dialog cancel-form cancel-confirm cancel-button
//               set-form set-keys set-bytes set-latency set-button
//   migrations  migration (data-job) sides-form source target source-password target-password mirror
//               assess-button assess-verdict assess-command sync-command sync-button start-dialog start-form
//               start-confirm start-button
//   migration   step-assess step-sync step-verify step-rehearse step-cutover step-back (data-done: yes, no)
//               true missing step-button assess-dialog assess-form assess-button verify-open verify-dialog
//               verify-form verify-button fence max-pause compare reverse rehearse-button cutover-open
//               back-rehearse back-button cutover-dialog cutover-form cutover-confirm cutover-unverified
//               cutover-unrehearsed cutover-button outcome unfence
//   fleet       fleet-state member backend
//   audit       audit-row

import { forgetToken, get, keepToken, onRefused, takeToken, token } from "./api.js";
import { announce, field, fill, h, show, text } from "./dom.js";
import { closeAll, form } from "./dialogs.js";
import { follow } from "./stream.js";
import { may, reset, serverNow, state, take } from "./store.js";
import { ago, clock } from "./units.js";
import * as audit from "./audit.js";
import * as cluster from "./cluster.js";
import * as fleet from "./fleet.js";
import * as job from "./job.js";
import * as jobs from "./jobs.js";
import * as migration from "./migration.js";
import * as migrations from "./migrations.js";

const VIEWS = {
  cluster: [cluster],
  jobs: [jobs, job],
  migrations: [migrations, migration],
  fleet: [fleet],
  audit: [audit],
};

const byId = (id) => document.getElementById(id);
let view = null;
let stream = null;
let lastGot = Date.now();
let pending = null;
let askedAs = null;

/** The view that the address names, and what it is about. */
function route() {
  const [, page, rest] = /^#\/([a-z]+)(?:\/(.+))?$/.exec(location.hash) ?? [];
  const views = VIEWS[page];
  if (!views) return null;
  let name = rest;
  try {
    name = rest && decodeURIComponent(rest);
  } catch {
    // It is no escape: the name as it is.
  }
  return name && views[1] ? { page, module: views[1], name } : { page, module: views[0] };
}

function openView(moveFocus) {
  const to = route();
  if (!token()) return;
  if (!to) {
    // A part of this page, such as the content that the skip link leads to, is no other view.
    if (!view) location.replace("#/cluster");
    return;
  }
  closeAll();
  view?.close?.();
  view = to.module.open(to.name);
  const main = byId("main");
  fill(main, view.node);
  document.title = `${view.title} - Whimbrel`;
  document.querySelectorAll("nav a").forEach((a) => {
    if (a.getAttribute("href") === `#/${to.page}`) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  });
  view.update?.(null);
  showAge();
  if (moveFocus) {
    scrollTo(0, 0);
    main.querySelector("h1")?.focus({ preventScroll: true });
  }
}

/** Paints what has come, once for each frame however much that was. */
function soon(changed) {
  if (pending) {
    changed.jobs?.forEach((name) => (pending.jobs ??= new Set()).add(name));
    for (const part of ["cluster", "fleet", "canary"]) pending[part] ||= changed[part];
    return;
  }
  pending = changed;
  requestAnimationFrame(() => {
    const now = pending;
    pending = null;
    view?.update?.(now);
    showAge();
  });
}

function showAge() {
  if (!token()) return;
  const node = byId("age");
  const read = view?.readMs ? view.readMs() : state.readMs;
  const age = read ? serverNow() - read : null;
  node.dataset.state = state.connection;
  document.body.classList.toggle("stale", state.connection === "lost");
  const ofWhen = state.everRead && read ? `what you see is from ${clock(read)}` : "nothing has been read yet";
  if (state.connection === "lost") {
    text(byId("age-text"), `connection lost ${ago(Date.now() - state.lostAt)}, trying again: ${ofWhen}`);
  } else if (!state.everRead || age === null) {
    text(byId("age-text"), state.everRead ? "not read yet" : "connecting …");
  } else if (state.trouble) {
    text(byId("age-text"), `jobs cannot be read (${state.trouble}): ${ofWhen}`);
  } else {
    text(byId("age-text"), `read ${ago(age)}`);
  }
}

function showWho() {
  const { me } = state;
  text(byId("who"), me ? `${me.name}: ${me.role}` : "");
  byId("who").title = me ? `whimbrel ${me.version}` : "";
  show(document.querySelector('[data-test="nav-audit"]').parentNode, may("administer"));
  show(document.querySelector('[data-test="nav-audit"]'), may("administer"));
  show(byId("sign-out"), Boolean(token()));
}

/** Asked beside the stream, and again until it is known: no view waits for it. */
async function askMe() {
  const as = token();
  if (state.me || askedAs === as) return;
  askedAs = as;
  try {
    const me = await get("me");
    // Somebody else may have logged in meanwhile.
    if (as !== token()) return;
    state.me = me;
    showWho();
    view?.update?.(null);
  } catch {
    // The stream says what is wrong, and asks again with its next message.
  } finally {
    if (askedAs === as) askedAs = null;
  }
}

function connect() {
  stream?.stop();
  [lastGot, state.connection] = [Date.now(), "connecting"];
  askMe();
  stream = follow({
    message(event, data) {
      const wasLost = state.connection === "lost";
      lastGot = Date.now();
      const changed = take(event, data);
      if (wasLost) announce("connection restored");
      changed.news.forEach(announce);
      if (!state.me) askMe();
      soon(changed);
    },
    lost() {
      if (state.connection !== "lost") announce("connection lost, trying again");
      if (state.connection !== "lost") state.lostAt = lastGot;
      state.connection = "lost";
      showAge();
    },
    refused: () => login("The token is not valid, or not any more."),
  });
}

function login(why) {
  stream?.stop();
  closeAll();
  view?.close?.();
  view = null;
  fill(byId("late"));
  forgetToken();
  reset();
  showWho();
  byId("age").dataset.state = "connecting";
  text(byId("age-text"), "not logged in");
  const input = h("input", { type: "password", test: "token", autocomplete: "off", required: true });
  const made = form({
    test: "login",
    label: "Log in",
    ready: () => input.value.trim() !== "",
    parts: [
      field(
        "Token",
        input,
        "Get one with: whimbrel token add NAME --role view. It is kept until this tab closes.",
      ),
    ],
    run: async () => {
      keepToken(input.value);
      input.value = "";
      start();
    },
  });
  fill(
    byId("main"),
    h(
      "section",
      { class: "login" },
      h("h1", { tabindex: "-1" }, "Log in"),
      why ? h("p", { class: "failure", role: "alert", test: "error" }, why) : null,
      made.node,
    ),
  );
  document.title = "Log in - Whimbrel";
  input.focus();
}

function start() {
  view?.close?.();
  view = null;
  showWho();
  if (!route()) location.replace("#/cluster");
  openView(true);
  connect();
}

const THEMES = ["system", "dark", "light"];

function setTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  text(byId("theme"), `Theme: ${theme}`);
  try {
    if (theme === "system") localStorage.removeItem("whimbrel-theme");
    else localStorage.setItem("whimbrel-theme", theme);
  } catch {
    // Storage that is forbidden: until the page is left, then.
  }
}

byId("theme").addEventListener("click", () => {
  const now = document.documentElement.dataset.theme ?? "system";
  setTheme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
});
byId("skip").addEventListener("click", (event) => {
  event.preventDefault();
  byId("main").focus();
});
byId("sign-out").addEventListener("click", () => login());
addEventListener("hashchange", () => {
  if (location.hash.startsWith("#token=")) {
    takeToken();
    reset();
    start();
  } else {
    openView(true);
  }
});
onRefused(() => token() && login("The token is not valid, or not any more."));
setInterval(showAge, 1000);
document.addEventListener("visibilitychange", showAge);

takeToken();
text(byId("theme"), `Theme: ${document.documentElement.dataset.theme ?? "system"}`);
if (token()) start();
else login();
