// The list of episodes: filters, search, sort, pages. The address holds all of it.
import { badge, episodeLink, get, h, instance, line, name as path, number, prose, say, signed, visible, who, words } from "./dom.js";

const FACETS = [["run", "Run"], ["kind", "Kind"], ["recipe", "Recipe"], ["seed", "Seed"], ["checkpoint", "Checkpoint"], ["suite", "Suite"], ["template", "Template"],
  ["domain", "Domain"], ["split", "Split"], ["outcome", "Outcome"], ["cause", "Ended by"]];
const RANGES = [["steps", "Steps"], ["reward", "Reward"], ["iteration", "Iteration"], ["disagreement", "Judge against outcome"]];
const COLUMNS = [["", "Episode"], ["task", "Task"], ["", "Instance"], ["iteration", "Played by"], ["steps", "Steps"], ["reward", "Reward"], ["advantage", "Advantage"], ["disagreement", "Disagreement"]];
const SHOWN = 7;
const unfolded = new Set();

function changed(params, change, go, replace = false) {
  const next = new URLSearchParams(params);
  next.delete("page");
  change(next);
  go(`/${next.size ? `?${next}` : ""}`, { replace, quiet: true });
}

function facet([name, title], values, params, go) {
  const chosen = new Set(params.getAll(name));
  if (values.length < 2 && !chosen.size) return null;
  const open = unfolded.has(name);
  const shown = values.filter(([v], i) => open || i < SHOWN || chosen.has(v));
  const toggle = (value) => changed(params, (p) => {
    p.delete(name);
    for (const v of chosen) if (v !== value) p.append(name, v);
    if (!chosen.has(value)) p.append(name, value);
  }, go);
  const rest = values.length - shown.length;
  return h("fieldset", { "data-facet": name }, h("legend", {}, title),
    shown.map(([value, count]) => h("label", { class: "choice" },
      h("input", { type: "checkbox", name, value, checked: chosen.has(value), on: { change: () => toggle(value) } }),
      h("span", { class: "name" }, value === "" ? "(none)" : name === "cause" || name === "outcome" ? line(words(value), 40) : name === "run" ? path(value) : line(value, 40)),
      h("span", { class: "count" }, count.toLocaleString("en")))),
    rest > 0 || open ? h("button", { type: "button", class: "quiet", on: { click: () => { open ? unfolded.delete(name) : unfolded.add(name); go(location.pathname + location.search, { replace: true, quiet: true }); } } },
      open ? "fewer" : `${rest} more`) : null);
}

function range([name, title], params, go) {
  const field = (end) => h("input", { type: "number", step: "any", inputmode: "decimal", "aria-label": `${title} ${end === "min" ? "at least" : "at most"}`, name: `${name}_${end}`, value: params.get(`${name}_${end}`) ?? "",
    placeholder: end === "min" ? "from" : "to",
    on: { change: (e) => changed(params, (p) => (e.target.value === "" ? p.delete(`${name}_${end}`) : p.set(`${name}_${end}`, e.target.value)), go) } });
  return h("fieldset", { class: "range" }, h("legend", {}, title), field("min"), h("span", { "aria-hidden": "true" }, "–"), field("max"));
}

function row(e, { judged, trained, no_frame }) {
  const key = episodeLink(e.key);
  return h("tr", { "data-key": e.key },
    h("td", { class: "wide" }, h("a", { class: "open", href: key }, e.frame_there ? h("span", { class: "peek", "data-sha": e.frame }) : h("span", { class: "peek none", title: (no_frame[e.kind] ?? "").replaceAll("`", "") }, "no frame"),
      h("span", { class: "what" }, h("span", { class: "say" }, e.instruction ? line(e.instruction) : "(no instruction)"), h("span", { class: "under" }, badge(e.outcome), " ", h("span", { class: "muted" }, words(e.cause)),
        e.unreadable ? h("span", { class: "muted" }, ` · ${e.unreadable} unreadable`) : null),
        h("span", { class: "near muted" }, line(e.template, 40), " ", h("span", { class: "one" }, instance(e.task)), " · ", path(who(e)))))),
    h("td", { class: "far" }, line(e.template, 40), h("br"), h("span", { class: "muted small" }, words(e.split))),
    h("td", { class: "far num one", title: visible(e.task) }, instance(e.task)),
    h("td", { class: "far small" }, who(e)),
    h("td", { class: "num" }, number(e.steps)), h("td", { class: "num" }, number(e.reward)),
    trained ? h("td", { class: "num far" }, signed(e.advantage, 2)) : null, judged ? h("td", { class: "num far" }, number(e.disagreement)) : null);
}

function head(params, judged, trained, go) {
  const sort = params.get("sort") ?? "-id";
  const columns = COLUMNS.filter(([c]) => (c !== "advantage" || trained) && (c !== "disagreement" || judged));
  return h("thead", {}, h("tr", {}, columns.map(([column, title]) => {
    const far = ["task", "iteration", "advantage", "disagreement"].includes(column) || title === "Instance" ? "far" : "";
    if (!column) return h("th", { scope: "col", class: far }, title);
    const now = sort.replace("-", "") === column ? (sort.startsWith("-") ? "descending" : "ascending") : "none";
    const next = now === "descending" ? column : `-${column}`;
    return h("th", { scope: "col", class: far, "aria-sort": now === "none" ? null : now },
      h("button", { type: "button", class: "sort", on: { click: () => changed(params, (p) => p.set("sort", next), go) } }, title, h("span", { "aria-hidden": "true" }, { none: "", descending: " ↓", ascending: " ↑" }[now])));
  })));
}

function pager(data, params, go) {
  const to = (n) => { const p = new URLSearchParams(params); n > 1 ? p.set("page", n) : p.delete("page"); return `/${p.size ? `?${p}` : ""}`; };
  const step = (n, text, id) => (n < 1 || n > data.pages ? h("span", { class: "muted" }, text) : h("a", { href: to(n), id }, text));
  return h("nav", { class: "pager", "aria-label": "Pages" }, step(data.page - 1, "← earlier", "previous"), h("span", {}, `page ${data.page.toLocaleString("en")} of ${data.pages.toLocaleString("en")}`), step(data.page + 1, "later →", "next"));
}

export async function show(main, params, go) {
  const data = await get(`/api/episodes?${params}`);
  sessionStorage.setItem("list", JSON.stringify({ search: params.toString(), keys: data.episodes.map((e) => e.key) }));
  document.title = "Episodes";
  let timer = 0;
  const search = h("input", { type: "search", id: "search", name: "q", value: params.get("q") ?? "", placeholder: "instruction, thought or action", "aria-label": "Search instructions and actions", autocomplete: "off",
    on: { input: (e) => { clearTimeout(timer); timer = setTimeout(() => changed(params, (p) => (e.target.value.trim() ? p.set("q", e.target.value) : p.delete("q")), go, params.has("q")), 250); } } });
  const active = [...params.keys()].filter((k) => !["sort", "page", "size", "q"].includes(k)).length;
  const ranges = RANGES.filter(([n]) => n !== "disagreement" || data.judged);
  const old = document.querySelector("details.filters");
  const wasOpen = old ? old.open : innerWidth > 860;
  const at = document.activeElement;
  const focused = at && main.contains(at) ? (at.id ? `#${at.id}` : at.name ? `[name="${at.name}"]${at.type === "checkbox" ? `[value="${CSS.escape(at.value)}"]` : ""}` : null) : null;
  const caret = at === null ? null : at.selectionStart;
  const typed = at?.id === "search" ? at.value : null;
  const table = h("table", { class: "episodes" }, h("caption", { class: "unseen" }, "Episodes"), head(params, data.judged, data.trained, go),
    h("tbody", {}, data.episodes.map((e) => row(e, data))));
  main.replaceChildren(h("h1", { class: "unseen" }, "Episodes"), h("div", { class: "columns" },
    h("details", { class: "filters", open: wasOpen }, h("summary", {}, active ? `Filters (${active})` : "Filters"),
      active || params.get("q") ? h("a", { href: "/" }, "Clear all filters") : null,
      FACETS.map((f) => facet(f, data.facets[f[0]], params, go)), ranges.map((r) => range(r, params, go))),
    h("section", { class: "results", "aria-label": "Results" },
      h("div", { class: "bar-top" }, search, h("p", { class: "total" }, h("strong", {}, data.total.toLocaleString("en")), data.total === data.all ? " episodes" : ` of ${data.all.toLocaleString("en")} episodes`, data.indexing ? " so far" : "")),
      params.get("task") ? h("p", { class: "muted small" }, "Only task ", h("code", {}, visible(params.get("task")))) : null,
      Object.entries(data.no_frame).map(([kind, why]) => h("p", { class: "muted small" }, h("strong", {}, `No frame (${words(kind)}): `), prose(why))),
      data.total ? table : h("p", { class: "empty" }, data.indexing ? "Nothing yet among what is indexed so far." : data.all ? ["Nothing matches these filters. ", h("a", { href: "/" }, "Show all episodes")] : "No episodes here yet. They appear as soon as a run has stored some."),
      data.total > 0 ? pager(data, params, go) : null)));
  if (focused) {
    const again = main.querySelector(focused);
    again?.focus({ preventScroll: true });
    if (again?.id === "search") { again.value = typed ?? again.value; again.setSelectionRange?.(caret, caret); }
  }
  say(`${data.total} episodes`);
  peeks(table);
  return { changes: data.changes };
}

/** First frames, loaded when they come into view; one that is not kept says so, and the line above the list why. */
function peeks(table) {
  const seen = new IntersectionObserver((entries) => entries.filter((x) => x.isIntersecting).forEach((x) => {
    seen.unobserve(x.target);
    const sha = x.target.dataset.sha;
    if (!sha) return;
    const image = h("img", { src: `/frame/${encodeURIComponent(sha)}.png`, alt: "", on: { error: () => { image.remove(); x.target.classList.add("none"); x.target.append("no frame"); } } });
    x.target.append(image);
  }));
  table.querySelectorAll(".peek").forEach((p) => seen.observe(p));
}
