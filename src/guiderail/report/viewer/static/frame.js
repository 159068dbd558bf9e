// A frame with the action drawn on it.
import { h, visible } from "./dom.js";

const clamp = (v) => Math.min(1, Math.max(0, Number(v) || 0));

/** The marks of an action as SVG over a frame, in percent of it: ring, path of a drag, typed text. */
function marks(action, step) {
  if (!action || !("x" in action)) return null;
  const [x, y] = [100 * clamp(action.x), 100 * clamp(action.y)];
  const shapes = [];
  let end = null;
  if ("x2" in action) end = [100 * clamp(action.x2), 100 * clamp(action.y2)];
  else if ("dx" in action) end = [clamp(x / 100 + Math.sign(action.dx) * 0.12) * 100, clamp(y / 100 + Math.sign(action.dy) * 0.12) * 100];
  if (end) {
    const at = { x1: `${x}%`, y1: `${y}%`, x2: `${end[0]}%`, y2: `${end[1]}%` };
    shapes.push(h("line", { ...at, class: "under" }), h("line", { ...at, class: "path" }), h("circle", { cx: `${end[0]}%`, cy: `${end[1]}%`, r: 4, class: "end" }));
  }
  shapes.push(h("circle", { cx: `${x}%`, cy: `${y}%`, r: 11, class: "under" }), h("circle", { cx: `${x}%`, cy: `${y}%`, r: 11, class: "ring" }));
  if (step !== null) shapes.push(h("text", { x: `${x}%`, y: `${y}%`, dx: x > 80 ? -24 : 15, dy: y < 12 ? 20 : -8, class: "number" }, String(step + 1)));
  return h("svg", { class: "marks", "aria-hidden": "true" }, shapes);
}

/** `size`: thumb or large. A frame that is not on disk is a card that says so. */
export function picture(sha, there, action, step, alt, size) {
  if (!there) return h("span", { class: `frame none ${size}`, role: "img", "aria-label": `${alt} (frame not kept)` }, size === "thumb" ? "frame not kept" : "frame not kept; the replay command below makes it again");
  const typed = ["text", "keys", "app"].map((k) => action?.[k]).find((v) => v !== undefined);
  // the box has the shape of the screen, so that the marks, which are in percent of the box, stand where they were
  const shape = (e) => box.style.setProperty("--ratio", e.target.naturalWidth / e.target.naturalHeight || 0.75);
  const box = h("span", { class: `frame ${size}` },
    h("img", { src: `/frame/${sha}.png`, alt, loading: size === "thumb" ? "lazy" : false, on: { load: shape } }),
    marks(action, step),
    typed !== undefined && size === "large" ? h("span", { class: "typed" }, "⌨ ", h("bdi", {}, visible(Array.isArray(typed) ? typed.join("+") : typed).slice(0, 120))) : null);
  return box;
}
