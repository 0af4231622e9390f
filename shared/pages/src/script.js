// The script of the pages. Every page is whole without it; it keeps pages up to date and scrolls through long logs.
'use strict';
(() => {
  const one = (query, at = document) => at.querySelector(query);
  const all = (query, at = document) => [...at.querySelectorAll(query)];
  const body = document.body;

  // Times. The clock of this machine may be wrong: the page says what time it was when it was made.
  const skew = Date.now() - Number(body.dataset.now);
  const span = ms => {
    const s = Math.max(0, Math.floor(ms / 1000));
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
    if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
    return `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`;
  };
  const times = () => {
    for (const time of all('time[data-shown]')) {
      const at = Date.parse(time.dateTime);
      const text = span(Date.now() - skew - at) + (time.dataset.shown === 'ago' ? ' ago' : '');
      if (time.textContent !== text) time.textContent = text;
      if (!time.dataset.local) time.dataset.local = time.title = new Date(at).toLocaleString() + ' (' + time.title + ')';
    }
  };
  setInterval(times, 1000);

  // Live parts.
  let source, heard = 0;
  const patch = parts => {
    for (const [name, html] of Object.entries(parts)) {
      const part = one(`[data-part="${name}"]`);
      if (!part) continue;
      const open = all('details[open][id]', part).map(it => it.id);
      const focused = part.contains(document.activeElement) && document.activeElement.id;
      const scrolled = all('[id]', part).filter(it => it.scrollLeft).map(it => [it.id, it.scrollLeft]);
      part.innerHTML = html;
      for (const id of open) { const it = document.getElementById(id); if (it) it.open = true; }
      for (const [id, left] of scrolled) { const it = document.getElementById(id); if (it) it.scrollLeft = left; }
      if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    }
    times();
    copies();
    document.dispatchEvent(new Event('changed'));
  };
  const state = text => { const it = one('#connection'); if (it && it.textContent !== text) it.textContent = text; };
  const listen = () => {
    if (source || document.hidden || !('live' in body.dataset)) return;
    source = new EventSource(location.pathname + location.search);
    let stale = false;
    const hear = it => { heard = Date.now(); stale = it; state(stale ? 'not up to date' : 'live'); };
    const alive = () => hear(false);
    source.onopen = alive;
    source.onmessage = event => { alive(); patch(JSON.parse(event.data)); };
    source.addEventListener('alive', alive);
    source.addEventListener('heartbeat', () => hear(stale));
    source.addEventListener('stale', () => hear(true));
    source.onerror = () => { state('not connected'); if (source?.readyState === EventSource.CLOSED) { rest(); setTimeout(listen, 3000); } };
    source.addEventListener('end', () => { delete body.dataset.live; rest(); state(''); });
  };
  // A server that hangs keeps its connections.
  setInterval(() => { if (source && heard && Date.now() - heard > 20000) state('not up to date'); }, 2000);
  const rest = () => { source?.close(); source = undefined; };
  // A browser opens six connections to a server at most, for all of its tabs.
  document.addEventListener('visibilitychange', () => document.hidden ? rest() : listen());
  addEventListener('pagehide', rest);
  addEventListener('pageshow', listen);

  // Forms prove that they are from this page; parts that were replaced since it was made lack the proof.
  document.addEventListener('submit', ({ target }) => {
    const token = body.dataset.formToken;
    if (!token || target.method !== 'post' || target.elements.form_token) return;
    target.append(Object.assign(document.createElement('input'), { type: 'hidden', name: 'form_token', value: token }));
  });

  // Buttons that copy.
  const copies = () => {
    for (const button of all('button[data-copy][hidden]')) button.hidden = false;
  };
  document.addEventListener('click', async event => {
    const button = event.target.closest('button[data-copy]');
    if (!button) return;
    const text = document.getElementById(button.dataset.copy).textContent;
    try { await navigator.clipboard.writeText(text); button.textContent = 'Copied'; } catch {
      getSelection().selectAllChildren(document.getElementById(button.dataset.copy));
    }
  });

  // Keys; the help page turns them off and on.
  const pages = { b: '/builds', m: '/mine', t: '/tests', f: '/farm', q: '/quota', s: '/simulate', h: '/help' };
  const has = () => localStorage.getItem('keys') !== 'off';
  const choice = one('#keys');
  if (choice) {
    choice.disabled = false;
    choice.checked = has();
    choice.onchange = () => localStorage.setItem('keys', choice.checked ? 'on' : 'off');
  }
  let going = 0;
  document.addEventListener('keydown', event => {
    const typing = event.target.closest('input, select, textarea');
    if (event.key === 'Escape' && typing) typing.blur();
    if (typing || event.ctrlKey || event.altKey || event.metaKey || !has()) return;
    if (event.timeStamp - going < 1500 && pages[event.key]) { location.href = pages[event.key]; return; }
    going = event.key === 'g' ? event.timeStamp : 0;
    const rows = all('tbody tr a.row');
    const at = rows.indexOf(document.activeElement);
    const actions = {
      '?': () => { location.href = '/help'; },
      '/': () => one('input[type=search]')?.focus(),
      j: () => rows[Math.min(at + 1, rows.length - 1)]?.focus(),
      k: () => rows[Math.max(at - 1, 0)]?.focus(),
      e: () => logView?.end(),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  });

  // A log of any length: only the lines in sight are in the page, and a few windows of lines in memory.
  const LINE = 24, WINDOW = 500, KEPT = 8, HEIGHT_MAX = 8e6;
  const show = box => {
    let total = Number(box.dataset.total), complete = box.dataset.complete === 'true';
    let line = 0, marked = 0, expected = -1, following = false, attempt = one('#log-state')?.dataset.attempt;
    const windows = new Map();
    const sizer = document.createElement('div'), rows = document.createElement('div');
    sizer.className = 'sizer';
    rows.className = 'rows';
    sizer.append(rows);
    const seen = () => box.clientHeight / LINE;
    const height = () => Math.min(total * LINE, HEIGHT_MAX);
    const last = () => Math.max(0, total - seen());
    const isLong = () => total * LINE > HEIGHT_MAX;
    const load = async number => {
      const entry = { lines: undefined };
      windows.set(number, entry);
      const lines = [];
      try {
        // A reply has fewer lines if they are long.
        for (let next = 0; next < WINDOW && number * WINDOW + next < total;) {
          const reply = await fetch(`${box.dataset.url}&line=${number * WINDOW + next + 1}&lines=${WINDOW - next}`);
          if (!reply.ok) throw new Error(reply.status);
          const holder = document.createElement('template');
          holder.innerHTML = await reply.text();
          for (const row of [...holder.content.children]) lines[row.dataset.line - 1 - number * WINDOW] = row;
          if (lines.length <= next) break;
          next = lines.length;
        }
        entry.lines = lines;
        entry.full = lines.length === WINDOW;
      } catch {
        windows.delete(number);
        state('the log cannot be read');
        return;
      }
      while (windows.size > KEPT) windows.delete(windows.keys().next().value);
      draw();
    };
    const draw = () => {
      const first = Math.floor(line), end = Math.min(total, first + Math.ceil(seen()) + 1);
      const shown = [];
      for (let at = first; at < end; at++) {
        const number = Math.floor(at / WINDOW);
        const entry = windows.get(number);
        if (!entry) load(number);
        const row = entry?.lines?.[at % WINDOW];
        const holder = row ?? document.createElement('div');
        if (!row) holder.className = 'line';
        holder.classList.toggle('target', at + 1 === marked);
        shown.push(holder);
      }
      rows.replaceChildren(...shown);
      box.style.height = total * LINE < innerHeight * 0.7 ? `${total * LINE + 4}px` : '';
      sizer.style.height = `${height()}px`;
      rows.style.top = `${box.scrollTop - (line - first) * LINE}px`;
    };
    const to = wanted => {
      line = Math.max(0, Math.min(wanted, last()));
      following = !complete && line >= last() - 1;
      sizer.style.height = `${height()}px`;
      const room = height() - box.clientHeight;
      box.scrollTop = isLong() ? (last() ? line / last() * room : 0) : line * LINE;
      expected = box.scrollTop;
      draw();
    };
    box.addEventListener('scroll', () => {
      if (Math.abs(box.scrollTop - expected) < 1) return;
      expected = -1;
      const room = height() - box.clientHeight;
      line = isLong() ? box.scrollTop / Math.max(1, room) * last() : box.scrollTop / LINE;
      following = !complete && line >= last() - 1;
      draw();
    });
    // In a long log a pixel is many lines: keys and wheel move by lines.
    box.addEventListener('wheel', event => {
      if (!isLong() || event.shiftKey) return;
      event.preventDefault();
      to(line + event.deltaY / (event.deltaMode ? 1 : LINE));
    }, { passive: false });
    box.addEventListener('keydown', event => {
      const page = Math.floor(seen()) - 1;
      const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -total, End: total };
      if (!steps[event.key] || event.ctrlKey) return;
      event.preventDefault();
      to(line + steps[event.key]);
    });
    box.addEventListener('click', event => {
      const link = event.target.closest('a.number');
      if (!link || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      history.replaceState(null, '', link.href);
      jump();
    });
    const jump = () => {
      const found = /^#L(\d+)$/.exec(location.hash);
      marked = found ? Number(found[1]) : 0;
      if (marked && (marked < line + 1 || marked > line + seen())) to(marked - 6); else draw();
      return marked > 0;
    };
    addEventListener('hashchange', jump);
    document.addEventListener('changed', () => {
      const news = one('#log-state');
      if (!news) return;
      complete = news.dataset.complete === 'true';
      if (news.dataset.attempt !== attempt) {
        attempt = news.dataset.attempt;
        windows.clear();
        following = !complete;
      }
      if (Number(news.dataset.total) !== total) {
        total = Number(news.dataset.total);
        for (const [number, entry] of windows) if (!entry.full) windows.delete(number);
        if (following) to(total); else draw();
      }
    });
    addEventListener('resize', draw);
    const first = Number(one('.number', box)?.textContent ?? 1);
    const isEnd = !new URLSearchParams(location.search).has('line');
    box.classList.add('windowed');
    box.replaceChildren(sizer);
    if (!jump()) to(isEnd ? total : first - 1);
    for (const it of all('.script-only')) it.hidden = false;
    return { end: () => to(total) };
  };
  const box = one('#log[data-url]');
  const logView = box ? show(box) : undefined;
  one('#log-end')?.addEventListener('click', () => logView?.end());

  times();
  copies();
  listen();
})();
