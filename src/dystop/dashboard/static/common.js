// Helpers of all pages. Text enters a page as text only, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== ""));
  return node;
}

/** An HTML element with attributes and children; strings become text. */
export const el = (tag, attributes = {}, ...children) =>
  filled(document.createElement(tag), attributes, children);

/** An SVG element with attributes and children. */
export const svg = (tag, attributes = {}, ...children) =>
  filled(document.createElementNS(SVG, tag), attributes, children);

export const at = (id) => document.getElementById(id);

/** The address of a run; every part of its name is escaped. */
export const link = (prefix, key) => prefix + key.split("/").map(encodeURIComponent).join("/");

/** How long ago something was. */
export function ago(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 2) return "now";
  if (seconds < 120) return `${Math.round(seconds)} s ago`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

/** Fixed decimals as the server writes them: ties round to even. */
export function fixed(value, digits) {
  const size = Math.abs(value) * 10 ** digits;
  const between = Number.isInteger(value * 2 ** (digits + 1)) && size % 1 === 0.5;
  if (!between) return value.toFixed(digits);
  return ((Math.sign(value) * 2 * Math.round(size / 2)) / 10 ** digits).toFixed(digits);
}

/** Three significant digits, thousands grouped. */
export function number(value) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value) || Math.abs(value) >= 100) {
    return Number(fixed(value, 0)).toLocaleString("en-US");
  }
  return fixed(value, Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value)))));
}

/** A share as a percentage. */
export const percent = (share) => `${fixed(100 * share, 1)} %`;

/** A share at a tick: no digits that say nothing. */
export const percentTick = (share) => `${Number((100 * share).toFixed(6))} %`;

/** Bytes with a unit. */
export function bytes(value) {
  const unit = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]].find(([size]) => value >= size);
  return unit ? `${number(value / unit[0])} ${unit[1]}` : `${number(value)} B`;
}

/** Bytes at a tick. */
export const bytesTick = (value) => bytes(value).replace(/\.0+ /, " ");

/** A number with its noun. */
export const plural = (count, what) => `${number(count)} ${what}${count === 1 ? "" : "s"}`;

/** Show the state: "live", "ended", "unreachable" or "lost"; screen readers announce changes. */
export function showState(state, text) {
  const element = at("state");
  if (!element.classList.contains(state)) at("announcement").textContent = text;
  if (element.textContent !== text) element.textContent = text;
  element.className = `state ${state}`;
}

const LOST = {
  401: "a token is needed: add ?token=TOKEN to the address once",
  404: "this run or study is no longer in the folder",
};

const RETRY_MS = 3000;
const TIMEOUT_MS = 20000;

/** Poll an address while the page is visible; `update` returns the milliseconds to the next request. */
export function follow(address, update) {
  let timer = 0;
  let busy = false;
  async function request() {
    const reply = await fetch(address(), {
      cache: "no-store",
      credentials: "same-origin",
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    if (LOST[reply.status]) return { lost: LOST[reply.status] };
    if (!reply.ok) throw new Error(`status ${reply.status}`);
    return { values: await reply.json() };
  }
  async function poll() {
    if (busy || document.hidden) return;
    busy = true;
    clearTimeout(timer);
    let wait = RETRY_MS;
    try {
      const found = await request().catch(() => null);
      if (found === null) showState("unreachable", "server not reachable, retrying");
      else if (found.lost) showState("lost", found.lost);
      else wait = update(found.values);
    } finally {
      busy = false;
      timer = setTimeout(poll, wait);
    }
  }
  document.addEventListener("visibilitychange", poll);
  poll();
}
