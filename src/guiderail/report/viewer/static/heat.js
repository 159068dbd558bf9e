// Tokens with the log-probs of sampling and of training, as bars under each token and as a table.
import { h, number, visible } from "./dom.js";

const colour = (logprob) => `color-mix(in oklab, var(--sure) ${Math.round(100 * Math.exp(logprob))}%, var(--unsure))`;

export function heat(tokens, why) {
  if (!tokens) return h("p", { class: "muted" }, `not recorded${why ? `: ${visible(why)}` : ""}`);
  const { ids, behaviour, trainer, texts } = tokens;
  const name = (i) => (texts ? visible(texts[i]) || "∅" : `#${ids[i]}`);
  const widest = trainer ? Math.max(...ids.map((_, i) => Math.abs(trainer[i] - behaviour[i]))) : null;
  const cells = ids.map((_, i) => h("span", { class: "token", title: `${name(i)}: sampling ${number(behaviour[i], 4)}${trainer ? `, training ${number(trainer[i], 4)}` : ""}` },
    h("span", { class: "word" }, name(i).replaceAll("\n", "⏎").replaceAll(" ", "·")),
    h("span", { class: "bar", vars: { "--heat": colour(behaviour[i]) } }),
    trainer ? h("span", { class: "bar", vars: { "--heat": colour(trainer[i]) } }) : null));
  const rows = ids.map((id, i) => h("tr", {}, h("td", {}, h("code", {}, name(i))), h("td", {}, String(id)), h("td", {}, number(behaviour[i], 4)),
    h("td", {}, trainer ? number(trainer[i], 4) : "–"), h("td", {}, trainer ? number(trainer[i] - behaviour[i], 6) : "–")));
  return h("div", {},
    h("div", { class: "heat", role: "img", "aria-label": `${ids.length} tokens coloured by log-prob; the table below has the numbers` }, cells),
    h("p", { class: "muted small" }, trainer ? `Bars: sampling above, training below (largest difference ${number(widest, 6)} nats). ` : `Bars: sampling. Training: not recorded${why ? ` (${visible(why)})` : ""}. `,
      "Blue: sure; orange: unsure."),
    h("details", {}, h("summary", {}, "Log-probs in numbers"), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Log-probs" }, h("table", {},
      h("thead", {}, h("tr", {}, ["token", "id", "sampling", "training", "difference"].map((t) => h("th", { scope: "col" }, t)))), h("tbody", {}, rows)))));
}
