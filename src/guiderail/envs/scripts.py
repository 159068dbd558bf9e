"""The JavaScript we run in pages.

Guarantees: PRELUDE only takes away what is no part of the task or cannot be drawn (START cover, reward display, native
popups) and draws the list of a <select> inside the page instead; STATE and ORACLE read the page and change nothing.
"""

from __future__ import annotations

WIDTH, HEIGHT = 160, 224

# Runs in every new document, before the page's own scripts. The START cover and the reward display are no part of the
# task: without them the last frame shows the page as the agent left it, and the page is as wide as the screen.
# Native popups live outside the page and stall begin-frame drawing: date and time pickers are switched off (their
# fields take keys), a <select> opens a list of ours.
PRELUDE = """
(() => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(`#sync-task-cover, #reward-display, #click-canvas { display: none !important; }
    ::-webkit-calendar-picker-indicator { display: none !important; }
    #select-list { position: fixed; z-index: 9998; overflow-y: auto; box-sizing: border-box; background: white;
      border: 1px solid #767676; font: 10px Arial; color: black; cursor: default; }
    #select-list div { padding: 1px 4px; white-space: nowrap; overflow: hidden; }
    #select-list div:hover, #select-list div.chosen { background: #1967d2; color: white; }`);
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  window.open = () => null;
  let list = null;
  const shut = () => { if (list) list.remove(); list = null; };
  const choose = (select, index) => {
    shut();
    if (select.selectedIndex === index) return;
    select.selectedIndex = index;
    for (const kind of ['input', 'change']) select.dispatchEvent(new Event(kind, {bubbles: true}));
  };
  const open = select => {
    shut();
    const at = select.getBoundingClientRect(), below = innerHeight - at.bottom, above = at.top;
    list = document.createElement('div');
    list.id = 'select-list';
    [...select.options].forEach((option, index) => {
      const row = document.createElement('div');
      row.textContent = option.text;
      if (index === select.selectedIndex) row.className = 'chosen';
      row.addEventListener('mouseup', () => option.disabled || choose(select, index));
      list.append(row);
    });
    document.body.append(list);
    const height = Math.min(list.scrollHeight + 2, Math.max(below, above));
    const top = below >= height || below >= above ? at.bottom : at.top - height;
    list.style.cssText = `left:${at.left}px;top:${top}px;width:${at.width}px;height:${height}px`;
  };
  const popup = ({target: t}) => t instanceof HTMLSelectElement && !t.multiple && t.size < 2 && !t.disabled;
  document.addEventListener('mousedown', e => {
    if (list && list.contains(e.target)) { e.preventDefault(); e.stopPropagation(); return; }
    const was = list;
    shut();
    if (!popup(e)) return;
    e.preventDefault();
    e.target.focus();
    if (!was && e.button === 0) open(e.target);
  }, true);
  document.addEventListener('click', e => {
    if (e.target instanceof Element && e.target.closest('#select-list')) e.stopPropagation();
    const link = e.target instanceof Element && e.target.closest('a[target]');
    if (link) link.removeAttribute('target');
  }, true);
  document.addEventListener('keydown', e => {
    const opens = e.key === ' ' || e.key === 'F4' || (e.altKey && /^Arrow(Down|Up)$/.test(e.key));
    const kinds = /^(date|time|month|week|color|datetime-local)$/;
    const picker = e.target instanceof HTMLInputElement && kinds.test(e.target.type);
    if (picker && (opens || (e.target.type === 'color' && e.key === 'Enter'))) e.preventDefault();
    if (!popup(e)) return;
    if (list) {
      if (['Enter', ' ', 'Escape', 'Tab'].includes(e.key)) { if (e.key !== 'Tab') e.preventDefault(); shut(); }
    } else if (opens || e.key === 'Enter') { e.preventDefault(); open(e.target); }
  }, true);
  document.addEventListener('change', () => {
    const chosen = document.activeElement.selectedIndex;
    if (list) [...list.children].forEach((row, i) => row.className = i === chosen ? 'chosen' : '');
  }, true);
})();
"""

READY = "document.readyState === 'complete' && typeof core === 'object' && typeof genProblem === 'function'"

# READY, and every picture that the page's styles and scripts name is in memory: loaded later, while virtual time is on,
# it would appear a step sooner or later by chance.
LOADED = """
(() => {
  if (!(READY)) return false;
  if (!window.pictures) {
    const found = new Set(), note = (text, base) => {
      for (const m of text.matchAll(/[\\w.\\/-]+\\.(png|gif|jpe?g|svg)\\b/g)) found.add(new URL(m[0], base).href);
    };
    for (const sheet of document.styleSheets)
      for (const rule of sheet.cssRules) note(rule.cssText, sheet.href || document.baseURI);
    for (const script of document.scripts) if (!script.src) note(script.text, document.baseURI);
    window.pictures = [...found].map(url => Object.assign(new Image(), {src: url}));
  }
  return window.pictures.every(p => p.complete);
})()
""".replace("READY", READY)

STATE = """typeof WOB_DONE_GLOBAL === 'undefined' ? [false, 0, null]
  : [WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL, WOB_REWARD_REASON]"""

# Starts an episode in place; value: the utterance, null when no task page is there.
START = """
(() => {
  if (!(READY)) return null;
  const list = document.getElementById('select-list'), active = document.activeElement;
  if (list) list.remove();
  if (active && active !== document.body) active.blur();
  Math.seedrandom(SEED);
  core.EPISODE_MAX_TIME = 1000000000;
  core.startEpisodeReal();
  window.scrollTo(0, 0);
  let said = core.getUtterance();
  if (said && typeof said === 'object') said = said.utterance;
  return String(said);
})()
""".replace("READY", READY)

ORACLE = """
(() => {
  const W = WIDTH, H = HEIGHT, SKIP = new Set(['SCRIPT', 'STYLE', 'NOSCRIPT', 'TEMPLATE']);
  const HIDE = new Set(['reward-display', 'sync-task-cover', 'click-canvas', 'query']);
  const PROPERTIES = ['type', 'value', 'checked', 'selected', 'disabled', 'placeholder', 'href'];
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
      for (const p of PROPERTIES)
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
