// Two episodes side by side, the first step at which they part marked.
import { badge, episodeLink, get, h, line, name, visible, who, words } from "./dom.js";
import { again, back, details } from "./episode.js";
import { picture } from "./frame.js";

function side(e, i, name) {
  const step = e.steps[i];
  if (!step) {
    const last = i === e.steps.length;
    return h("div", { class: "side", "aria-label": name, role: "group" }, last ? [picture(e.last_frame, e.last_frame_there, null, null, `${name}: last screen`, "large"), h("p", {}, badge(e.outcome.kind), ` ${words(e.outcome.cause)}`)] : h("p", { class: "muted" }, "has ended"));
  }
  return h("div", { class: "side", "aria-label": name, role: "group" }, picture(step.frame, step.frame_there, step.action, i, `${name}: screen before step ${i + 1}`, "large"),
    h("p", { class: "act" }, h("strong", {}, step.action ? line(step.action_text, 200) : "unreadable")), step.thought ? h("p", { class: "muted" }, line(step.thought, 300)) : null,
    step.parse_error ? h("p", { class: "problem" }, line(step.parse_error, 300)) : null,
    h("details", {}, h("summary", {}, "Details"), details(e, step)));
}

export async function show(main, params, go) {
  const { a, b, difference } = await get(`/api/compare?a=${encodeURIComponent(params.get("a") ?? "")}&b=${encodeURIComponent(params.get("b") ?? "")}`);
  document.title = `Side by side: ${visible(a.template)}`;
  const head = (e) => h("div", { class: "side" }, h("h2", {}, h("a", { href: episodeLink(e.key) }, name(who(e)))), h("p", {}, badge(e.outcome.kind), ` ${words(e.outcome.cause)} · steps: ${e.steps.length}`), h("p", { class: "muted small" }, line(e.task, 200)),
    h("details", { class: "again", open: innerWidth > 640 }, h("summary", {}, "Play it again"), again(e)));
  const length = Math.max(a.steps.length, b.steps.length) + 1;
  const rows = Array.from({ length }, (_, i) => {
    const parts = difference && difference.step === i;
    return h("section", { class: parts ? "pair parts" : "pair", id: parts ? "difference" : null, "aria-labelledby": `pair-${i}` },
      h("h2", { id: `pair-${i}` }, i < length - 1 ? `Step ${i + 1}` : "End", parts ? h("span", { class: "flag" }, `First difference: ${visible(difference.what)}`) : null),
      h("div", { class: "sides" }, side(a, i, "left"), side(b, i, "right")));
  });
  main.replaceChildren(h("article", { class: "compare" }, h("p", { class: "crumbs" }, h("a", { href: back() }, "← all episodes")),
    h("h1", {}, line(a.instruction || b.instruction || "(no instruction)", 400)),
    a.task !== b.task ? h("p", { class: "problem" }, "These are different tasks.") : null,
    h("p", {}, difference ? h("a", { href: "#difference" }, `They part at step ${difference.step + 1}: ${visible(difference.what)}`) : "They do the same at every step."),
    h("div", { class: "sides heads" }, head(a), head(b)), rows));
  return { keys: { u: () => go(back()), j: () => go(episodeLink(b.key)), k: () => go(episodeLink(a.key)) } };
}
