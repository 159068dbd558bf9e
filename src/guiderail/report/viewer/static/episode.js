// One episode: film strip, one step at a time, what is known about it and what is not.
import { badge, block, compareLink, episodeLink, get, groupLink, h, line, number, prose, say, signed, visible, who, words } from "./dom.js";
import { picture } from "./frame.js";
import { heat } from "./heat.js";

const fact = (name, ...value) => [h("dt", {}, name), h("dd", {}, ...value)];
const gap = (e, name) => (e.missing[name] ? h("span", { class: "muted" }, "not recorded: ", prose(e.missing[name])) : h("span", { class: "muted" }, "not recorded"));

export function command(text, label) {
  const copied = h("button", { type: "button", class: "quiet", on: { click: async () => {
    try { await navigator.clipboard.writeText(text); copied.textContent = "copied"; } catch { copied.textContent = "copy it by hand"; }
  } } }, "copy");
  return h("p", { class: "command" }, h("span", { class: "muted small" }, label), h("code", {}, visible(text)), copied);
}

function votes(e, step) {
  if (!step.votes) return gap(e, "votes");
  const said = (step.votes.valid || []).map((v) => (v > 0 ? "+1" : "−1")).join(", ") || "none valid";
  return `${said}${step.votes.invalid ? ` (${step.votes.invalid} invalid)` : ""}`;
}

export function details(e, step) {
  const timing = step.seconds_policy === null ? gap(e, "timing") : `policy ${number(step.seconds_policy)} s, environment ${number(step.seconds_env)} s`;
  return h("div", { class: "details" },
    h("h2", {}, `Step ${step.step + 1}: `, step.action ? line(step.action_text, 200) : "unreadable"),
    step.parse_error ? h("p", { class: "problem" }, h("strong", {}, "Not done: "), line(step.parse_error, 600)) : null,
    h("dl", { class: "facts" },
      fact("Thought", step.thought ? h("bdi", {}, visible(step.thought).slice(0, 2000)) : h("span", { class: "muted" }, "none")),
      fact("Reward of the step", step.reward === null ? h("span", { class: "muted" }, "none: the episode is judged as a whole") : number(step.reward, 4)),
      step.matched === null ? null : fact("Did what the expert did", step.matched ? "yes" : "no"),
      fact("Judge's votes", votes(e, step)),
      fact("Advantage", step.advantage === null ? (e.advantage === null ? gap(e, "advantage") : h("span", { class: "muted" }, `not trained on (advantage of the episode ${signed(e.advantage)})`)) : signed(step.advantage)),
      fact("Time", timing),
      step.sampling ? fact("Sampling", `temperature ${number(step.sampling.temperature)}, top-p ${number(step.sampling.top_p)}, seed `, String(step.sampling.seed)) : null),
    h("h3", {}, "What the model wrote"), step.text === null ? h("p", { class: "muted" }, "nothing: a scripted expert") : block(step.text, "Text of the model"),
    h("h3", {}, "Action as read"), step.action ? block(JSON.stringify(step.action), "Action") : h("p", { class: "muted" }, step.parse_error ? `none: ${visible(step.parse_error).slice(0, 300)}` : "none could be read"),
    h("h3", {}, "Tokens"), heat(step.tokens, e.missing[step.tokens ? "trainer" : "tokens"]));
}

function evidence(e) {
  const o = e.outcome;
  return h("dl", { class: "facts" },
    fact("Outcome", badge(o.kind), ` ${words(o.cause)}`),
    fact("Reward", o.reward === null ? "not measured" : number(o.reward)),
    fact("Expected", e.spec ? `raw reward of the page at least ${number(e.spec.threshold)}` : "raw reward of the page at least the task's threshold"),
    fact("Actual", o.detail ? block(o.detail, "The judge's evidence") : h("span", { class: "muted" }, "the raw reward is not kept; the replay tells it")),
    fact("Advantage", e.advantage === null ? gap(e, "advantage") : signed(e.advantage)),
    e.disagreement === null ? null : fact("Judge against outcome", number(e.disagreement)),
    e.side_effects === null ? null : fact("What else changed", e.side_effects.length ? effects(e.side_effects) : "nothing: no other file was made, changed or removed"),
    fact("Time", e.seconds === null ? gap(e, "timing") : `${number(e.seconds)} s`),
    fact("Task", line(e.task, 200), ` · ${words(e.split)}`, e.spec ? ` · at most ${e.spec.max_steps} steps` : ""),
    fact("Played by", who(e)));
}

const LISTED = 20, OTHERS = 30;
/** Files that the episode changed and nobody asked for: the guest's own words, the first of them. */
function effects(lines) {
  return [h("ul", { class: "effects" }, lines.slice(0, LISTED).map((t) => h("li", {}, line(t, 300)))), lines.length > LISTED ? `and ${lines.length - LISTED} more` : null];
}

/** The commands that play an episode again, or why there are none. */
export function again(e) {
  if (!e.replay.recorded) return h("p", { class: "muted small" }, "Its screens are those of a recording: there is no page to play it on.");
  return [command(e.replay.recorded, "its actions"), e.replay.policy ? command(e.replay.policy, "the checkpoint asked again") : h("p", { class: "muted small" }, "The weights that played it were not kept, so only its actions can be played again.")];
}

export async function show(main, params, go) {
  const key = params.get("key") ?? "";
  const e = await get(`/api/episode?key=${encodeURIComponent(key)}`);
  const views = [...e.steps.map((s) => ({ step: s })), { step: null }];
  const stage = h("div", { class: "stage" });
  const thumbs = views.map(({ step }, i) => h("button", { type: "button", class: "thumb", "aria-label": step ? `Step ${i + 1}: ${visible(step.action_text || "unreadable").slice(0, 80)}` : "Last screen", on: { click: () => select(i) } },
    step ? picture(step.frame, step.frame_there, step.action, i, "", "thumb") : picture(e.last_frame, e.last_frame_there, null, null, "", "thumb"),
    h("span", { class: "under" }, step ? `${i + 1} ` : "end", step && !step.action ? h("span", { class: "bad", "aria-hidden": "true" }, "✗") : null)));
  let now = -1;
  function select(i, quiet = false) {
    if (i < 0 || i >= views.length || i === now) return;
    now = i;
    thumbs.forEach((t, n) => (n === i ? t.setAttribute("aria-current", "step") : t.removeAttribute("aria-current")));
    thumbs[i].scrollIntoView({ block: "nearest", inline: "nearest" });
    const { step } = views[i];
    const shown = step ? picture(step.frame, step.frame_there, step.action, step.step, `Screen before step ${i + 1}`, "large") : picture(e.last_frame, e.last_frame_there, null, null, "Last screen", "large");
    stage.replaceChildren(shown, step ? details(e, step) : h("div", { class: "details" }, h("h2", {}, "The end"), evidence(e)));
    if (quiet) return;
    const p = new URLSearchParams(params);
    p.set("step", i + 1);
    history.replaceState(null, "", `/episode?${p}`);
    say(step ? `Step ${i + 1} of ${e.steps.length}` : "Last screen");
  }
  const other = e.others[0];
  const missing = Object.entries(e.missing);
  document.title = `${visible(e.template)}: ${words(e.outcome.kind)}`;
  main.replaceChildren(h("article", { class: "episode" },
    h("header", {}, h("p", { class: "crumbs" }, h("a", { href: back(), id: "back" }, "← all episodes"), " ", line(e.key, 200)),
      h("h1", {}, line(e.instruction || "(no instruction)", 400)),
      h("p", { class: "badges" }, badge(e.outcome.kind), h("span", { class: "chip" }, words(e.outcome.cause)), h("span", { class: "chip" }, who(e)), h("span", { class: "chip" }, line(e.template, 60)), h("span", { class: "chip" }, words(e.split)),
        h("span", { class: "chip" }, e.steps.length === 1 ? "1 step" : `${e.steps.length} steps`), e.advantage === null ? null : h("span", { class: "chip" }, `advantage ${signed(e.advantage, 2)}`),
        e.side_effects?.length ? h("span", { class: "badge" }, e.side_effects.length === 1 ? "1 other file changed" : `${e.side_effects.length} other files changed`) : null),
      h("nav", { class: "tools", "aria-label": "This episode" }, e.group ? h("a", { href: groupLink(e.run, e.group), id: "to-group" }, "its group") : null,
        other ? h("a", { href: compareLink(e.key, best(e).key), id: "to-compare" }, "side by side") : null,
        h("a", { href: `/export/gif?key=${encodeURIComponent(e.key)}`, download: "" }, "as GIF"), h("a", { href: `/export/html?key=${encodeURIComponent(e.key)}`, download: "" }, "as HTML file"))),
    h("div", { class: "strip", role: "group", "aria-label": "Steps" }, thumbs), stage,
    h("section", { "aria-labelledby": "how" }, h("h2", { id: "how" }, "How it ended"), evidence(e)),
    h("section", { "aria-labelledby": "again" }, h("h2", { id: "again" }, "Play it again"), again(e)),
    missing.length ? h("section", { "aria-labelledby": "missing" }, h("h2", { id: "missing" }, "Not recorded"), h("ul", {}, missing.map(([k, v]) => h("li", {}, `${words(k)}: `, prose(v))))) : null,
    e.others.length ? h("section", { "aria-labelledby": "others" }, h("h2", { id: "others" }, `The same task elsewhere (${e.others_total.toLocaleString("en")})`),
      e.others_total > OTHERS ? h("p", { class: "small" }, `The first ${OTHERS} of ${e.others_total.toLocaleString("en")}. `, h("a", { href: `/?task=${encodeURIComponent(e.task)}`, id: "all-others" }, "All episodes of this task")) : null, h("ul", { class: "others" }, e.others.slice(0, OTHERS).map((o) => h("li", {}, badge(o.outcome), " ", h("a", { href: episodeLink(o.key) }, who(o)), " · ", h("a", { href: compareLink(e.key, o.key) }, "side by side"))))) : null));
  select(Math.min(views.length, Math.max(1, Number(params.get("step")) || 1)) - 1, true);
  const list = JSON.parse(sessionStorage.getItem("list") ?? "null");
  const place = list ? list.keys.indexOf(e.key) : -1;
  const near = (d) => (place >= 0 && list.keys[place + d] ? go(episodeLink(list.keys[place + d])) : say("end of this page of the list"));
  return { keys: { ArrowLeft: () => select(now - 1), ArrowRight: () => select(now + 1), j: () => near(1), k: () => near(-1),
    g: () => e.group && go(groupLink(e.run, e.group)), c: () => other && go(compareLink(e.key, best(e).key)), u: () => go(back()) } };
}

/** The most telling other episode: for one of RL what it began from (SFT of the same recipe and seed, else base), then
 * another checkpoint of the same run, with another outcome. */
function best(e) {
  const rl = ["training", "rl"].includes(e.checkpoint);
  const began = (o) => (!rl || o.recipe !== e.recipe || o.seed !== e.seed ? 0 : { sft: 16, base: 8 }[o.checkpoint] ?? 0);
  const score = (o) => began(o) + 4 * (o.run === e.run) + 2 * (o.outcome !== e.outcome.kind) + (o.checkpoint !== e.checkpoint);
  return e.others.reduce((a, b) => (score(b) > score(a) ? b : a));
}

export function back() {
  const list = JSON.parse(sessionStorage.getItem("list") ?? "null");
  return list?.search ? `/?${list.search}` : "/";
}
