// Follows what the server sends. fetch instead of EventSource, since the token goes in a header.
// Silence is loss: the server says something each second.

import { headers } from "./api.js";

/** Silence for longer than this is a lost connection, in milliseconds. */
const SILENT_MS = 5000;

/** A server that is asked anew gets more time for its first word: it may have much to read first. */
const FIRST_MS = 15000;

/** Pauses before it is tried again; the last one for as long as it takes. */
const PAUSES_MS = [300, 1000, 2000, 3500, 5000];

/** A message longer than this is none of the server's, in characters. */
const MESSAGE_MAX = 64 << 20;

/** Takes the stream apart: calls `found` for each event. */
export function parser(found) {
  let rest = "";
  return (chunk) => {
    // Looked for where the last chunk ended: a long message comes in many.
    let from = Math.max(0, rest.length - 1);
    rest += chunk;
    for (let end; (end = rest.indexOf("\n\n", from)) >= 0; from = 0) {
      const block = rest.slice(0, end);
      rest = rest.slice(end + 2);
      let [event, data] = ["message", ""];
      for (const line of block.split("\n")) {
        if (line.startsWith("event:")) event = line.slice(6).trim();
        else if (line.startsWith("data:")) data += line.slice(5);
      }
      if (data) found(event, data);
    }
    if (rest.length > MESSAGE_MAX) throw new Error("a message without an end");
  };
}

/**
 * Follows until `stop` of what it returns is called. `on` has `message(event, data)`, `lost()` and
 * `refused()`.
 */
export function follow(on) {
  let [stopped, tries, abort, wake] = [false, 0, null, () => {}];
  let [heardAt, patience] = [Date.now(), FIRST_MS];

  async function once() {
    abort = new AbortController();
    [heardAt, patience] = [Date.now(), FIRST_MS];
    const answer = await fetch("/api/v1/stream", {
      headers: headers({ accept: "text/event-stream" }),
      signal: abort.signal,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
    if (answer.status === 401) return on.refused();
    if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
    const take = parser((event, data) => {
      tries = 0;
      on.message(event, JSON.parse(data));
    });
    const reader = answer.body.getReader();
    const decoder = new TextDecoder();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) throw new Error("the server has ended the connection");
      [heardAt, patience] = [Date.now(), SILENT_MS];
      take(decoder.decode(value, { stream: true }));
    }
  }

  const watch = setInterval(() => {
    if (Date.now() - heardAt > patience) abort?.abort();
  }, 500);
  const hurry = () => wake();
  addEventListener("online", hurry);

  (async () => {
    while (!stopped) {
      try {
        await once();
        if (!stopped) return;
      } catch (error) {
        if (stopped) return;
        // For people who look into why: the page says only that it is lost.
        console.warn(`the stream has ended: ${error.message}`);
        // What could not be read leaves its connection open, and a browser has few.
        abort?.abort();
        on.lost();
      }
      const pause = PAUSES_MS[Math.min(tries++, PAUSES_MS.length - 1)];
      await new Promise((resolve) => {
        wake = resolve;
        setTimeout(resolve, pause);
      });
    }
  })();

  return {
    stop() {
      stopped = true;
      clearInterval(watch);
      removeEventListener("online", hurry);
      abort?.abort();
      wake();
    },
  };
}
