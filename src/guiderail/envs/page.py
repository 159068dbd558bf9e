"""What we ask of a MiniWoB++ page: its scripts, its instruction, its facts.

Guarantees: `start_script` leaves nothing of the last episode's focus or scroll; `ORACLE` reads the page and changes nothing.
Facts are for scripted experts only and never reach an agent.
"""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from pathlib import Path

WIDTH, HEIGHT = 160, 210

# Runs in every new document, before the page's own scripts. The START cover and the reward display are no part of the task:
# without them the last frame shows the page as the agent left it, and the page is exactly as wide as the screen.
PRELUDE = """
(() => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync('#sync-task-cover, #reward-display, #click-canvas { display: none !important; }');
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  window.open = () => null;
  document.addEventListener('click', e => {
    const link = e.target instanceof Element && e.target.closest('a[target]');
    if (link) link.removeAttribute('target');
  }, true);
})();
"""

READY = "document.readyState === 'complete' && typeof core === 'object' && typeof genProblem === 'function'"

STATE = "typeof WOB_DONE_GLOBAL === 'undefined' ? [false, 0, null] : [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL, WOB_REWARD_REASON]"

_START = """
(() => {
  if (!(READY)) return null;
  const active = document.activeElement;
  if (active && active !== document.body) active.blur();
  Math.seedrandom(SEED);
  core.EPISODE_MAX_TIME = 1000000000;
  core.startEpisodeReal();
  window.scrollTo(0, 0);
  let said = core.getUtterance();
  if (said && typeof said === 'object') said = said.utterance;
  return String(said);
})()
"""

ORACLE = """
(() => {
  const W = WIDTH, H = HEIGHT, SKIP = new Set(['SCRIPT', 'STYLE', 'NOSCRIPT', 'TEMPLATE']);
  const HIDE = new Set(['reward-display', 'sync-task-cover', 'click-canvas', 'query']);
  const clean = s => s.replace(/\\s+/g, ' ').trim();
  const box = r => ({x: r.left / W, y: r.top / H, w: r.width / W, h: r.height / H});
  const out = [];
  const walk = (el, parent) => {
    if (SKIP.has(el.tagName) || HIDE.has(el.id)) return;
    const style = getComputedStyle(el), rect = el.getBoundingClientRect();
    if (style.display === 'none') return;
    let index = parent;
    if (style.visibility === 'visible' && +style.opacity > 0 && rect.width > 0 && rect.height > 0) {
      const attrs = {}, words = [], texts = [];
      for (const a of el.attributes) attrs[a.name] = a.value;
      for (const p of ['type', 'value', 'checked', 'selected', 'disabled', 'placeholder', 'href'])
        if (p in el && ['string', 'boolean', 'number'].includes(typeof el[p])) attrs[p] = el[p];
      if (el.tagName === 'SELECT') attrs.options = [...el.options].map(o => o.text);
      if (el instanceof SVGElement) attrs.fill = style.fill;
      for (const node of el.childNodes) {
        if (node.nodeType !== 3 || !node.data.trim()) continue;
        texts.push(node.data);
        for (const m of node.data.matchAll(/\\S+/g)) {
          const range = document.createRange();
          range.setStart(node, m.index);
          range.setEnd(node, m.index + m[0].length);
          const r = range.getClientRects()[0];
          if (r && r.width > 0) words.push({text: m[0], ...box(r)});
        }
      }
      let text = clean(texts.join(' '));
      if (!text && el.tagName === 'INPUT' && ['button', 'submit', 'reset'].includes(el.type)) text = el.value;
      const hit = document.elementFromPoint(rect.left + rect.width / 2, rect.top + rect.height / 2);
      const cls = el.getAttribute('class') || '';
      index = out.length;
      out.push({tag: el.tagName.toLowerCase(), id: el.id, classes: cls.split(/\\s+/).filter(c => c), text,
        inner: clean(el.innerText || el.textContent || '').slice(0, 400), attrs, ...box(rect), words, parent,
        hit: !!hit && (hit === el || el.contains(hit) || hit.contains(el)),
        focused: document.activeElement === el, color: style.color, background: style.backgroundColor});
    }
    for (const child of el.children) walk(child, index);
  };
  walk(document.body, -1);
  return out;
})()
""".replace("WIDTH", str(WIDTH)).replace("HEIGHT", str(HEIGHT))

WORDINGS = (
    lambda u: f"Please {_lower(u)}",
    lambda u: f"Your task: {u}",
    lambda u: f"Now {_lower(u)}",
    lambda u: f"Do this: {u}",
    lambda u: f"I want you to {_lower(u)}",
    lambda u: f"{u} Thank you.",
)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def reword(utterance: str, wording: int) -> str:
    """Instruction variant `wording`: 0 the page's own words, n > 0 the n-th general rewording (they repeat after the last)."""
    if wording < 0:
        raise ValueError(f"wording {wording}: must be 0 or more")
    return utterance if wording == 0 else WORDINGS[(wording - 1) % len(WORDINGS)](utterance)


def start_script(seed: int) -> str:
    """Script that starts the episode of `seed` in place; its value is the page's utterance, null when no task page is there."""
    return _START.replace("READY", READY).replace("SEED", json.dumps(str(seed)))


@cache
def pages_dir() -> Path:
    """Folder of the task pages of the installed `miniwob` package."""
    spec = importlib.util.find_spec("miniwob")
    if spec is None or spec.origin is None:
        raise RuntimeError("the package miniwob is not installed: pip install miniwob")
    return Path(spec.origin).parent / "html" / "miniwob"


def page_url(template: str) -> str:
    """file:// address of a template's page. Raises ValueError when there is no such page."""
    path = pages_dir() / f"{template}.html"
    if not path.is_file() or path.parent != pages_dir():
        raise ValueError(f"task template {template!r}: no page {path.name} in the miniwob package")
    return path.as_uri()
