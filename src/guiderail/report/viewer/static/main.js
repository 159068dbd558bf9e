// Which page is shown, keys, and following a run.
import { get, h, say } from "./dom.js";
import * as compare from "./compare.js";
import * as episode from "./episode.js";
import * as group from "./group.js";
import * as list from "./list.js";

const PAGES = { "/": list, "/episode": episode, "/compare": compare, "/group": group };
const POLL_MS = 3000;
const main = document.getElementById("main");
let shown = {};
let turn = 0;

async function render(quiet) {
  const mine = ++turn;
  const page = PAGES[location.pathname] ?? list;
  const target = document.createElement("div");
  try {
    // the page builds into a stand-in, so that an answer that comes too late changes nothing
    const view = { contains: (x) => main.contains(x), querySelector: (s) => main.querySelector(s),
      replaceChildren: (...parts) => { if (mine === turn) main.replaceChildren(...parts); } };
    const found = await page.show(view, new URLSearchParams(location.search), go);
    if (mine !== turn) return;
    shown = found ?? {};
  } catch (error) {
    if (mine !== turn) return;
    shown = {};
    target.append(h("h1", {}, "Not shown"), h("p", { class: "problem", role: "alert" }, error.message), h("p", {}, h("a", { href: "/" }, "All episodes")));
    main.replaceChildren(target);
  }
  document.body.dataset.ready = String(mine);
  if (quiet) return;
  scrollTo(0, 0);
  main.focus({ preventScroll: true });
}

/** Go to one of our addresses without loading the page again. quiet: keep focus and place. */
function go(address, { replace = false, quiet = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", address);
  return render(quiet);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || link.hasAttribute("download")) return;
  const to = new URL(link.href);
  if (to.origin !== location.origin || !(to.pathname in PAGES) || (to.hash && to.pathname === location.pathname && to.search === location.search)) return;
  event.preventDefault();
  go(to.pathname + to.search);
});
addEventListener("popstate", () => render(false));

const help = document.getElementById("help");
document.getElementById("help-button").addEventListener("click", () => help.showModal());

function along(by) {
  const links = [...main.querySelectorAll("a.open")];
  const at = links.indexOf(document.activeElement);
  const next = links[at < 0 ? (by > 0 ? 0 : links.length - 1) : at + by];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

async function search() {
  if (!document.getElementById("search")) await go("/");
  document.getElementById("search")?.focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || help.open) return;
  const typing = event.target.matches?.("input:not([type=checkbox]), textarea, select");
  if (event.key === "Escape" && typing) return event.target.blur();
  if (typing) return;
  const inside = event.target.closest?.("pre, .scroll");
  const keys = { "?": () => help.showModal(), "/": search,
    j: () => along(1), k: () => along(-1), ArrowLeft: () => document.getElementById("previous")?.click(), ArrowRight: () => document.getElementById("next")?.click(), ...shown.keys };
  if (!(event.key in keys) || (inside && event.key.startsWith("Arrow"))) return;
  event.preventDefault();
  keys[event.key]();
});

const live = document.getElementById("live"), follow = document.getElementById("follow");
const indexing = document.getElementById("indexing");
let changes = null;
async function poll() {
  let soon = false;
  try {
    const state = await get("/api/state");
    document.getElementById("follow-box").hidden = !state.live.length;
    live.hidden = !state.live.length && !Object.keys(state.problems).length;
    live.textContent = state.live.length ? `live: ${state.live.join(", ")}` : `${Object.keys(state.problems).length} files could not be read`;
    live.title = Object.entries(state.problems).map(([file, why]) => `${file}: ${why}`).join("\n");
    soon = Boolean(state.indexing);
    const over = !soon && !indexing.hidden;
    const grew = over || (changes !== null && state.changes !== changes);
    changes = state.changes;
    if (soon) {
      const [done, of] = state.indexing;
      indexing.textContent = of ? `Indexing goes on: ${done.toLocaleString("en")} of ${of.toLocaleString("en")} files read, so lists and searches show a part. This page refreshes itself.` : "Indexing: looking for episodes …";
    }
    indexing.hidden = !soon;
    if (grew && (follow.checked || over || soon) && location.pathname === "/" && !document.hidden) { await render(true); say("new episodes"); }
    document.body.classList.remove("offline");
  } catch {
    document.body.classList.add("offline");
    live.hidden = false;
    live.textContent = "the explorer is not running";
  }
  setTimeout(poll, soon ? POLL_MS / 3 : POLL_MS);
}

render(true);
poll();
