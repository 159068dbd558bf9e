// The siblings of one group: returns and advantages.
import { badge, compareLink, episodeLink, get, h, line, number, signed, visible, words } from "./dom.js";
import { back } from "./episode.js";

export async function show(main, params, go) {
  const run = params.get("run") ?? "", group = params.get("group") ?? "";
  const { episodes } = await get(`/api/group?run=${encodeURIComponent(run)}&group=${encodeURIComponent(group)}`);
  document.title = `Group ${visible(group)}`;
  const known = episodes.filter((e) => e.reward !== null).map((e) => e.reward);
  const mean = known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
  const spread = known.length > 1 ? Math.sqrt(known.reduce((a, r) => a + (r - mean) ** 2, 0) / (known.length - 1)) : null;
  const widest = Math.max(1e-9, ...episodes.map((e) => Math.abs(e.advantage ?? 0)));
  const bar = (v) => (v === null ? h("span", { class: "muted" }, "–") : h("span", { class: "advantage" }, h("span", { class: "signed" }, h("span", { class: v < 0 ? "minus" : "plus", vars: { "--part": `${(50 * Math.abs(v)) / widest}%` } })), h("span", { class: "value" }, signed(v))));
  const rival = (e) => episodes.find((o) => o !== e && o.outcome !== e.outcome) ?? episodes.find((o) => o !== e);
  const rows = episodes.map((e) => h("tr", { "data-key": e.key }, h("td", {}, h("a", { class: "open", href: episodeLink(e.key) }, `sibling ${e.sibling}${e.attempt ? `, attempt ${e.attempt + 1}` : ""}`)), h("td", {}, badge(e.outcome), " ", h("span", { class: "muted small" }, words(e.cause))),
    h("td", { class: "num" }, number(e.reward)), h("td", {}, bar(e.advantage)), h("td", { class: "num" }, number(e.steps)), h("td", {}, rival(e) ? h("a", { href: compareLink(e.key, rival(e).key), "aria-label": `sibling ${e.sibling} side by side with sibling ${rival(e).sibling}` }, "side by side") : "")));
  const measured = episodes.some((e) => e.advantage !== null);
  main.replaceChildren(h("article", { class: "group" }, h("p", { class: "crumbs" }, h("a", { href: back() }, "← all episodes")),
    h("h1", {}, line(episodes[0].instruction || "(no instruction)", 400)), h("p", { class: "muted" }, `${visible(run)} · group `, line(group, 200)),
    h("p", {}, `${known.length} measured of ${episodes.length}; mean return ${number(mean, 3)}, standard deviation ${number(spread, 3)}.`,
      known.length > 1 && spread === 0 ? " All siblings got the same return, so this group teaches nothing." : ""),
    measured ? null : h("p", { class: "muted" }, "Advantages: not recorded (the update has not happened yet, or the run is older than the record)."),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Siblings" }, h("table", { class: "siblings" }, h("thead", {}, h("tr", {}, ["Sibling", "Outcome", "Return", "Advantage", "Steps", ""].map((t) => (t ? h("th", { scope: "col" }, t) : h("td", {}))))), h("tbody", {}, rows)))));
  return { keys: { u: () => go(back()) } };
}
