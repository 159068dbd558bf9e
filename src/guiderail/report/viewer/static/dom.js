// Building the page. Stored text only ever becomes text nodes and attribute values of a fixed few names, never markup.

const ATTRIBUTES = /^(aria-[a-z]+|data-[a-z]+|class|id|href|src|alt|title|type|name|value|for|role|tabindex|scope|colspan|loading|width|height|min|max|step|placeholder|download|viewBox|cx|cy|r|x|y|x1|y1|x2|y2|dx|dy|points|preserveAspectRatio|autocomplete|dir|open|checked|disabled|selected|hidden|for|rel|list|inputmode)$/;
const SVG = new Set(["svg", "circle", "line", "text", "polygon", "g", "rect"]);

/** An element: h("a", {href: "/"}, "text", child, ...). `on`: {event: function}. Falsy children and attributes are left out. */
export function h(tag, attributes = {}, ...children) {
  const el = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") for (const [event, run] of Object.entries(value)) el.addEventListener(event, run);
    else if (name === "vars") for (const [key, v] of Object.entries(value)) el.style.setProperty(key, v);
    else if (value === false || value === null || value === undefined) continue;
    else if (!ATTRIBUTES.test(name)) throw new Error(`attribute ${name}`);
    else if ((name === "href" || name === "src") && !/^[/#]/.test(value)) throw new Error("only our own addresses");
    else el.setAttribute(name, value === true ? "" : String(value));
  }
  el.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false && c !== ""));
  return el;
}

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** Text with what cannot be seen, or turns the writing round, made visible as ⟨U+202E⟩. */
export function visible(text) {
  return String(text ?? "").replace(HIDDEN, (c) => `⟨U+${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

/** Our own sentence: what stands between backticks as code. */
export const prose = (text) => visible(text).split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));

/** Which instance of its template a task is: its seed, the end of a long one, and a wording other than the first. */
export function instance(task) {
  const [seed = "", ...rest] = String(task ?? "").split("/").slice(2);
  return visible((seed.length > 7 ? `…${seed.slice(-6)}` : seed) + (rest.length && rest.join("/") !== "0" ? `/${rest.join("/")}` : ""));
}

/** Stored text on one line, cut. */
export function line(text, limit = 160) {
  const flat = visible(String(text ?? "").slice(0, limit * 4).replace(/\s+/g, " "));
  return h("bdi", {}, flat.length > limit ? flat.slice(0, limit) + "…" : flat);
}

/** Our own names, which may break after a slash or an underscore. */
export const name = (text) => visible(text).split(/(?<=[/_])/).map((part, i) => [i ? h("wbr") : null, part]);

const LONG = 3000;
/** Stored text in full; the end of a long one waits for a click. */
export function block(text, label) {
  const whole = String(text ?? "");
  const pre = h("pre", { dir: "auto", tabindex: "0", "aria-label": label, role: "region" }, visible(whole.slice(0, LONG)));
  if (whole.length <= LONG) return pre;
  const more = h("button", { type: "button", class: "quiet", on: { click: () => { pre.textContent = visible(whole); more.remove(); } } },
    `Show all ${whole.length.toLocaleString("en")} characters`);
  return h("div", {}, pre, more);
}

export const number = (v, digits = 2) => (v === null || v === undefined ? "–" : Number(v).toLocaleString("en", { maximumFractionDigits: digits }));
export const signed = (v, digits = 3) => (v === null || v === undefined ? "–" : `${v > 0 ? "+" : ""}${Number(v).toFixed(digits)}`);
export const words = (v) => String(v ?? "").replaceAll("_", " ");

export const OUTCOME = { success: "success", failure: "failure", infra_error: "infrastructure error", judge_error: "judge error" };
const MARK = { success: "✓", failure: "✗" };
/** An outcome in word, sign and colour. */
export const badge = (outcome) => h("span", { class: `badge ${outcome in OUTCOME ? outcome : ""}` }, h("span", { "aria-hidden": "true" }, MARK[outcome] || "!"), ` ${OUTCOME[outcome] || visible(outcome)}`);

export const episodeLink = (key) => `/episode?key=${encodeURIComponent(key)}`;
export const groupLink = (run, group) => `/group?run=${encodeURIComponent(run)}&group=${encodeURIComponent(group)}`;
export const compareLink = (a, b) => `/compare?a=${encodeURIComponent(a)}&b=${encodeURIComponent(b)}`;

/** JSON of our own API; an error's text becomes the Error's. */
export async function get(path) {
  const reply = await fetch(path);
  const data = await reply.json();
  if (!reply.ok) throw new Error(data.error || `${reply.status}`);
  return data;
}

export function say(text) { document.getElementById("said").textContent = text; }

/** Who played it: run, checkpoint, iteration. */
export function who(e) {
  const parts = [e.run, e.kind === "evaluation" ? e.checkpoint : "", e.iteration !== null ? `iteration ${e.iteration}` : ""];
  return visible(parts.filter(Boolean).join(" · "));
}
