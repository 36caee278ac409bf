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
    if (error.name === "AbortError") throw error;
    throw new ApiError(
      0,
      "the console's server does not answer",
      method === "GET"
        ? "see whether whimbrel serve runs, and the network to it"
        : "look at the jobs before you try again: it may have been done",
    );
  }
  let value = null;
  try {
    value = await response.json();
  } catch {
    // A body that is no JSON says nothing; the status does.
  }
  if (response.ok) return value;
  if (response.status === 401) whenRefused();
  throw new ApiError(
    response.status,
    value?.error ?? `the server answers ${response.status}`,
    value?.remedy,
  );
}

export const get = (path, signal) => ask("GET", path, undefined, signal);
export const post = (path, body = {}, signal) => ask("POST", path, body, signal);

/** The path of a job. */
export const jobPath = (name, verb) => `jobs/${encodeURIComponent(name)}${verb ? `/${verb}` : ""}`;
