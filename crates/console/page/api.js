// Asks the server. The token is kept for this tab only, and goes in a header: no other site can send it.

const KEY = "whimbrel-token";

/** What the server refused, or that it could not be asked. */
export class ApiError extends Error {
  constructor(status, message, remedy) {
    super(message);
    this.status = status;
    this.remedy = remedy ?? null;
  }
}

let whenRefused = () => {};

/** What happens when the token is not taken any more. */
export const onRefused = (callback) => (whenRefused = callback);

/** Takes a token out of the address, before anything else can read it there. */
export function takeToken() {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (found) {
    let token = found[1];
    try {
      token = decodeURIComponent(token);
    } catch {
      // It is no escape: the token as it is.
    }
    sessionStorage.setItem(KEY, token);
    history.replaceState(null, "", `${location.pathname}#/cluster`);
  }
  return token();
}

export const token = () => sessionStorage.getItem(KEY);
export const keepToken = (value) => sessionStorage.setItem(KEY, value.trim());
export const forgetToken = () => sessionStorage.removeItem(KEY);

/** The headers of a request; a token that no header can carry is none. */
export function headers(more = {}) {
  const value = token();
  return value && /^[\x21-\x7e]+$/.test(value) ? { authorization: `Bearer ${value}`, ...more } : more;
}

async function ask(method, path, body, signal) {
  const sent = token();
  const unanswered = () =>
    new ApiError(
      0,
      "the console's server does not answer",
      method === "GET"
        ? "check that whimbrel serve runs, and that this machine can reach it"
        : "check the jobs before you try again: it may have been done",
    );
  let response;
  try {
    response = await fetch(`/api/v1/${path}`, {
      method,
      signal,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      headers: headers(body === undefined ? {} : { "content-type": "application/json" }),
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    throw error.name === "AbortError" ? error : unanswered();
  }
  let value = null;
  try {
    value = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (error.name === "TimeoutError") throw unanswered();
    // A body that is no JSON says nothing; the status does.
  }
  // A proxy may give up, or answer in the server's place, while an order is carried out.
  const unsure = method === "GET" ? null : "look at the jobs before you try again: it may have been done";
  if (response.ok && value !== null) return value;
  if (response.ok) throw new ApiError(0, "the answer did not come from the console's server", unsure);
  // Of a token that has been replaced meanwhile it says nothing about the new one.
  if (response.status === 401 && sent === token()) whenRefused();
  throw new ApiError(
    response.status,
    value?.error ?? `the server answers ${response.status}`,
    value?.remedy ?? (response.status >= 500 ? unsure : null),
  );
}

/** A question that has no answer for so long has none, in milliseconds: others wait for it. */
const ANSWERED_MS = 30000;

/** An order that one process carries out at once. The server waits for that process, for less than this. */
const ORDERED_MS = 60000;

/** `signal` may be none. A plan of a repair takes longer than other answers. */
export function get(path, signal, within = ANSWERED_MS) {
  const signals = [signal, AbortSignal.timeout(within)].filter(Boolean);
  return ask("GET", path, undefined, AbortSignal.any ? AbortSignal.any(signals) : signal);
}
export const post = (path, body = {}, signal) => ask("POST", path, body, signal);

/** Over a link that is gone, silence would last for as long as the network's own patience. */
export const order = (path, body = {}) => post(path, body, AbortSignal.timeout(ORDERED_MS));

/** The path of a job. */
export const jobPath = (name, verb) => `jobs/${encodeURIComponent(name)}${verb ? `/${verb}` : ""}`;
