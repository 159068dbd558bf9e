// Draws a sheet of random pages, each 160x210 on a 160x224 screen, and says what is on them. No page comes from a
// benchmark. The order of the random draws is part of the format: the same seed must give the very same page.

const CHARACTERS = 'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789';

// mulberry32: numbers in [0, 1) from a 32-bit seed.
function rng(seed) {
  let a = seed >>> 0;
  return () => {
    a = (a + 0x6D2B79F5) >>> 0;
    let t = a;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

// Draw page `seed` into `host` with the word lists `W`; returns its items [{e: element, kind, name}].
function page(host, seed, W) {
  const r = rng(seed);
  const ri = (a, b) => a + Math.floor(r() * (b - a + 1)); // a whole number, both ends included
  const pick = a => a[Math.floor(r() * a.length)];
  const p = x => r() < x; // true with probability x
  const cap = s => s[0].toUpperCase() + s.slice(1);
  const rnd = () => {
    const n = ri(1, 7);
    let s = '';
    for (let i = 0; i < n; i++) s += CHARACTERS[ri(0, p(.7) ? 51 : 61)];
    return s;
  };
  const style = p(.5) ? 0 : p(.5) ? 1 : 2;
  const word = () => {
    const k = r();
    if (k >= .72) return k < .8 ? pick(W.names) : k < .86 ? String(ri(1, 60)) : rnd();
    const w = pick(k < .4 ? W.ui : W.lorem);
    if (style == 1 || p(.35)) return cap(w);
    return k < .4 && p(.08) ? w.toUpperCase() : w;
  };
  const lorem = n => Array.from({length: n}, (_, i) => {
    const w = p(.85) ? pick(W.lorem) : pick(W.ui);
    return i == 0 && p(.5) ? cap(w) : w;
  });
  const items = [];
  const el = (tag, css, parent) => {
    const e = document.createElement(tag);
    if (css) e.style.cssText = css;
    (parent || body).appendChild(e);
    return e;
  };
  host.innerHTML = '';
  host.style.background = p(.75) ? '#fff' : pick(['#f5f5f5', '#eef', '#ffe', '#efe', '#ddd']);
  const fs = p(.65) ? 10 : ri(9, 14);
  const bar = p(.75);
  if (bar) {
    const b = document.createElement('div');
    const colour = p(.7) ? '#FF0' : pick(['#fd8', '#cf8', '#8df', '#ddd', '#fcc']);
    b.style.cssText = 'position:absolute;left:0;top:0;width:154px;height:44px;padding:3px;overflow:hidden;' +
      `font-size:10px;background:${colour}`;
    b.textContent = cap(lorem(ri(3, 9)).join(' ')) + (p(.5) ? ` "${word()}"` : '') + '.';
    b.dataset.bar = 1;
    host.appendChild(b);
  }
  const body = document.createElement('div');
  body.style.cssText = `position:absolute;left:0;top:${bar ? 50 : 0}px;width:156px;height:${bar ? 158 : 208}px;` +
    `padding:2px;overflow:hidden;font-size:${fs}px`;
  host.appendChild(body);
  const H = bar ? 160 : 210;
  const mark = (e, kind, name) => items.push({e, kind, name});
  const labelled = e => mark(e, 'text', ''); // every word of a text element is a target
  const spell = (w, parent, css) => { // one word of a text, each a target of its own
    const s = el('span', css, parent);
    s.textContent = w;
    labelled(s);
    parent.appendChild(document.createTextNode(' '));
  };
  const button = (parent, css) => {
    const b = el('button', css || (p(.4) ? `padding:${ri(1, 8)}px ${ri(3, 25)}px` : ''), parent);
    b.textContent = p(.85) ? word() : word() + ' ' + word();
    if (p(.2)) {
      b.style.background = pick(['#ddd', '#cfe', '#acf', '#fff', '#555']);
      b.style.color = b.style.background == 'rgb(85, 85, 85)' ? '#fff' : '#000';
    }
    if (p(.3)) b.style.fontSize = ri(10, 14) + 'px';
    labelled(b);
    return b;
  };
  const input = (parent, css) => {
    const tag = p(.85) ? 'input' : 'textarea';
    const size = `;width:${ri(40, 140)}px` + (p(.5) ? '' : `;height:${ri(12, 24)}px`);
    const i = el(tag, (css || '') + size, parent);
    if (i.tagName == 'INPUT') i.type = p(.8) ? 'text' : 'password';
    if (p(.25)) i.value = word();
    mark(i, 'textbox', 'textbox');
    return i;
  };
  const shape = (x, y, s) => {
    const c = pick(W.colours);
    const k = pick(['box', 'box', 'circle', 'triangle', 'box']);
    const hex = {grey: '#888', gray: '#888', cyan: '#0ff', magenta: '#f0f', lime: '#0f0'}[c] || c;
    const d = el('div', `position:absolute;left:${x}px;top:${y}px;width:${s}px;height:${s}px`);
    if (k == 'box') d.style.cssText += `;background:${hex};border:1px solid #000;box-sizing:border-box`;
    if (k == 'circle') d.style.cssText += `;background:${hex};border-radius:50%`;
    if (k == 'triangle') d.style.cssText += `;background:${hex};clip-path:polygon(50% 0,100% 100%,0 100%)`;
    mark(d, 'shape', c + ' ' + k);
  };
  const kinds = ['scatter', 'flow', 'flow', 'form', 'checks', 'para', 'dialog', 'tabs', 'grid', 'flow', 'para', 'menu'];
  const kind = pick(kinds);
  if (kind == 'scatter' || kind == 'grid') {
    const n = kind == 'grid' ? ri(4, 9) : ri(1, 5);
    const used = [];
    const clash = (x, y, w, h) => used.some(u => x < u[0] + u[2] && x + w > u[0] && y < u[1] + u[3] && y + h > u[1]);
    for (let i = 0; i < n; i++) {
      const k = r();
      let x, y, w = ri(22, 70), h = ri(14, 30), t = 0;
      if (kind == 'grid') {
        x = 4 + (i % 3) * 50 + ri(0, 4);
        y = 4 + Math.floor(i / 3) * 48 + ri(0, 4);
        w = ri(20, 44);
        h = ri(16, 40);
      } else {
        do {
          x = ri(1, 158 - w);
          y = ri(1, H - 4 - h);
        } while (clash(x, y, w, h) && ++t < 20);
      }
      if (t >= 20) continue;
      used.push([x, y, w, h]);
      if (k < .45) {
        button(body, `position:absolute;left:${x}px;top:${y}px;width:${w}px;height:${h}px;padding:0`);
      } else if (k < .78) {
        shape(x, y, Math.min(w, h, 40));
      } else if (k < .88) {
        input(body, `position:absolute;left:${x}px;top:${y}px;max-width:${w}px`);
      } else {
        const s = el('span', `position:absolute;left:${x}px;top:${y}px`);
        s.textContent = word();
        labelled(s);
      }
    }
  } else if (kind == 'flow') {
    for (let i = ri(2, 6); i > 0; i--) {
      const k = r();
      if (k < .4) {
        button();
        if (p(.5)) el('br');
      } else if (k < .7) {
        const d = el('div');
        d.textContent = lorem(ri(1, 4)).join(' ');
        labelled(d);
      } else {
        if (p(.5)) {
          const s = el('span');
          s.textContent = lorem(ri(1, 3)).join(' ') + ': ';
          labelled(s);
        }
        input();
        el('br');
      }
    }
  } else if (kind == 'form') {
    const f = el('div', `margin:${ri(0, 18)}px 0 0 ${ri(0, 18)}px`);
    for (let i = ri(1, 3); i > 0; i--) {
      const q = el('p', `margin:${ri(2, 9)}px 0`, f);
      if (p(.7)) {
        const l = el('label', p(.5) ? 'font-weight:bold' : '', q);
        l.textContent = word() + (p(.4) ? ':' : '');
        labelled(l);
        if (p(.5)) el('br', '', q);
      }
      input(q, p(.6) ? 'width:120px' : '');
    }
    button(f, `margin-top:${ri(0, 20)}px;padding:6px 25px`);
  } else if (kind == 'checks') {
    const type = p(.5) ? 'checkbox' : 'radio';
    const n = ri(2, 7);
    const top = el('div', `margin-top:${ri(0, 12)}px`);
    for (let i = 0; i < n; i++) {
      const l = el('label', '', top);
      const c = el('input', '', l);
      c.type = type;
      c.name = 'g' + seed;
      c.checked = p(.2);
      const s = el('span', '', l);
      s.textContent = word();
      if (p(.2)) s.textContent += ' ' + word();
      el('br', '', top);
      mark(c, type, s.textContent);
      labelled(s);
    }
    if (p(.8)) {
      el('br');
      button(body, 'padding:6px 25px');
    }
  } else if (kind == 'para') {
    if (p(.3)) {
      const h = el('h3', 'margin:2px 0;font-size:13px');
      h.textContent = lorem(ri(1, 2)).join(' ');
      labelled(h);
    }
    const d = el('div');
    lorem(ri(8, 26)).forEach(w => spell(w, d, p(.2) ? 'color:#00f;text-decoration:underline' : ''));
    if (p(.3)) button();
  } else if (kind == 'dialog') {
    const w = ri(90, 140);
    const h = ri(60, 110);
    const d = el('div', `position:absolute;left:${ri(2, 156 - w)}px;top:${ri(2, H - h - 4)}px;width:${w}px;` +
      `height:${h}px;border:1px solid #aaa;border-radius:3px;background:#fff;overflow:hidden`);
    const t = el('div', `background:${pick(['#e9e9e9', '#ddd', '#cde', '#fff'])};height:18px;border-radius:3px;` +
      'margin:2px;position:relative;font-weight:bold', d);
    if (p(.6)) {
      const s = el('span', '', t);
      s.textContent = word();
      labelled(s);
    }
    const x = el('div', 'position:absolute;right:3px;top:2px;width:13px;height:13px;border:1px solid #aaa;' +
      'border-radius:2px;line-height:12px;text-align:center;background:#f6f6f6;color:#555;font-size:11px', t);
    x.textContent = p(.6) ? '✕' : '×';
    mark(x, 'x', 'X');
    const b = el('div', 'margin:4px', d);
    b.textContent = lorem(ri(2, 7)).join(' ');
    labelled(b);
    if (p(.6)) {
      const f = el('div', 'position:absolute;right:4px;bottom:4px', d);
      for (let i = ri(1, 2); i > 0; i--) button(f, 'padding:2px 8px;margin-left:4px');
    }
  } else if (kind == 'tabs') {
    const t = el('div', 'border-bottom:1px solid #999;white-space:nowrap');
    const n = ri(2, 4);
    const same = p(.5) && word();
    for (let i = 1; i <= n; i++) {
      const s = el('span', `display:inline-block;padding:${ri(2, 5)}px ${ri(3, 8)}px;border:1px solid #aaa;` +
        `border-radius:3px 3px 0 0;background:${pick(['#eee', '#ddd', '#fff'])};margin-right:2px`, t);
      s.textContent = same ? same + ' ' + i : word();
      labelled(s);
    }
    const d = el('div', 'margin-top:6px');
    lorem(ri(4, 14)).forEach(w => spell(w, d));
  } else if (kind == 'menu') {
    const n = ri(3, 7);
    const m = el('div', `position:absolute;left:${ri(0, 60)}px;top:${ri(0, 30)}px;width:${ri(60, 95)}px;` +
      'border:1px solid #bbb;background:#fff');
    for (let i = 0; i < n; i++) {
      const s = el('div', `padding:2px 6px;border-bottom:1px solid #eee${p(.3) ? ';font-weight:bold' : ''}`, m);
      s.textContent = (p(.3) ? '▸ ' : '') + word() + (p(.2) ? ' #' + ri(1, 50) : '');
      labelled(s);
    }
  }
  return items;
}

// [[kind, name, centre x, centre y, width, height]] of what can be seen, in pixels of the page; words by Range.
function describe(host, items) {
  const o = host.getBoundingClientRect();
  const out = [];
  const push = (kind, name, b) => {
    const x = b.left - o.left;
    const y = b.top - o.top;
    const inside = x >= 0 && y >= 0 && x + b.width <= 160 && y + b.height <= 210;
    if (!inside || b.width <= 2 || b.height <= 2) return;
    const t = document.elementFromPoint(b.left + b.width / 2, b.top + b.height / 2);
    if (t && host.contains(t)) out.push([kind, name, x + b.width / 2, y + b.height / 2, b.width, b.height]);
  };
  for (const it of items) {
    if (it.kind != 'text') {
      push(it.kind, it.name, it.e.getBoundingClientRect());
      continue;
    }
    const walk = document.createTreeWalker(it.e, NodeFilter.SHOW_TEXT);
    let n;
    while ((n = walk.nextNode())) {
      const re = /\S+/g;
      let m;
      while ((m = re.exec(n.data))) {
        const g = document.createRange();
        g.setStart(n, m.index);
        g.setEnd(n, m.index + m[0].length);
        push('word', m[0], g.getBoundingClientRect());
      }
    }
  }
  return out;
}

// Draw pages first .. first + cols * rows - 1 side by side; returns `describe` of each, as JSON.
function sheet(first, cols, rows, words) {
  document.body.innerHTML = '';
  document.body.style.cssText = 'margin:0;background:#fff;font-family:Arial;color:#000';
  const all = [];
  for (let i = 0; i < cols * rows; i++) {
    const h = document.createElement('div');
    h.style.cssText = 'position:absolute;overflow:hidden;width:160px;height:224px;background:#555;' +
      `left:${(i % cols) * 160}px;top:${Math.floor(i / cols) * 224}px`;
    const q = document.createElement('div');
    q.style.cssText = 'position:absolute;overflow:hidden;width:160px;height:210px;left:0;top:0';
    h.appendChild(q);
    document.body.appendChild(h);
    all.push([q, page(q, first + i, words)]);
  }
  return JSON.stringify(all.map(([h, it]) => describe(h, it)));
}
