// @ts-check
// Questions to the server. Each failure becomes one line that can be shown; a question that was
// overtaken by a newer one ends quietly (AbortError).

/** An answer other than the one hoped for, with the line that the command would print. */
export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {number} status
   * @param {boolean} impossible
   * @param {any} [body]
   */
  constructor(message, status, impossible = false, body = null) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.impossible = impossible;
    this.body = body;
  }
}

let underWay = 0;

/** @param {number} change */
function count(change) {
  underWay += change;
  const root = document.documentElement;
  if (underWay > 0) root.dataset.busy = "1";
  else delete root.dataset.busy;
}

/**
 * Return the server's answer.
 * @param {string} path below api/, relative so that the page also works behind a prefix
 * @param {RequestInit} init
 * @param {{quiet?: boolean, read?: "json"|"blob"}} [how] quiet: the page is not waiting for it
 * @returns {Promise<any>}
 */
async function asked(path, init, { quiet = false, read = "json" } = {}) {
  if (!quiet) count(1);
  try {
    const answer = await fetch(path.replace(/^\//, ""), init);
    if (!answer.ok) throw await failure(answer);
    return await answer[read](); // under way until all of it is here
  } catch (error) {
    if (error instanceof ApiError || isAbort(error)) throw error;
    throw new ApiError("the server cannot be reached: is `shardcost serve` still running?", 0);
  } finally {
    if (!quiet) count(-1);
  }
}

/** @param {Response} answer */
async function failure(answer) {
  let body = null;
  try {
    body = await answer.json();
  } catch {
    // Not JSON: the status says all there is.
  }
  const detail = body && (body.said ?? body.detail);
  const known = { 404: "the server does not know this question", 413: "this is too large" };
  const line =
    typeof detail === "string" && answer.status !== 404
      ? detail
      : known[/** @type {404} */ (answer.status)] || `the server answered ${answer.status}`;
  return new ApiError(line, answer.status, Boolean(body && body.impossible), body);
}

/** Was this question overtaken? @param {any} error */
export function isAbort(error) {
  return Boolean(error) && error.name === "AbortError";
}

/** @param {string} path @param {AbortSignal} [signal] @param {boolean} [quiet] */
export async function get(path, signal, quiet = false) {
  return asked(path, { signal }, { quiet });
}

/** @param {string} path @param {any} body @param {AbortSignal} [signal] */
export async function post(path, body, signal) {
  return asked(path, posted(body, signal));
}

/** Like post, for answers that are files. @param {string} path @param {any} body */
export async function download(path, body) {
  return asked(path, posted(body), { read: "blob" });
}

/** @param {string} path @param {boolean} [leaving] keep the request alive when the page is left */
export async function remove(path, leaving = false) {
  return asked(path, { method: "DELETE", keepalive: leaving }, { quiet: true });
}

/**
 * Send a file as it is.
 * @param {Blob|string} content
 * @param {string} name
 * @param {Record<string, string>} [stated] the machine that it was measured on: on, network, gpus
 */
export async function postFile(content, name, stated = {}) {
  const body = typeof content === "string" ? new Blob([content]) : content;
  const path = `api/file?${new URLSearchParams({ name: name.slice(0, 200), ...stated })}`;
  // The header of ours: no other site's page can send it, so none can post files here.
  const headers = { "Content-Type": "application/octet-stream", "X-Shardcost": "1" };
  return asked(path, { method: "POST", headers, body });
}

/** @param {any} body @param {AbortSignal} [signal] @returns {RequestInit} */
function posted(body, signal) {
  const headers = { "Content-Type": "application/json" };
  return { method: "POST", headers, body: JSON.stringify(body), signal };
}
