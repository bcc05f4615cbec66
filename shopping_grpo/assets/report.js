'use strict';
// Everything shown here was written by models and sellers: it enters the page as text, never as HTML.
const $ = id => document.getElementById(id);
const el = (name, attributes = {}, ...children) => {
  const e = document.createElement(name);
  for (const [k, v] of Object.entries(attributes)) if (v !== false && v != null) e.setAttribute(k, v === true ? '' : v);
  e.append(...children.filter(c => c != null));
  return e;
};
const unpack = async id => {
  const text = atob($(id).textContent), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'))).json();
};

// theme
const dark = () => getComputedStyle(document.documentElement).colorScheme === 'dark' ||
  (!document.documentElement.dataset.theme && matchMedia('(prefers-color-scheme: dark)').matches);
const showTheme = () => { $('theme').setAttribute('aria-pressed', dark()); };
$('theme').onclick = () => { document.documentElement.dataset.theme = dark() ? 'light' : 'dark'; showTheme(); };
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', showTheme);
showTheme();

// the address: filters (q, run, outcome, kind, lang, cell, sort, page) and what is open (at, task, attempt, vs, step)
const FILTERS = ['q', 'run', 'outcome', 'kind', 'lang', 'cell', 'sort', 'page'], OPEN = ['at', 'task', 'attempt', 'vs', 'step'];
let state = {};
const address = s => '#' + new URLSearchParams(Object.entries(s).filter(([, v]) => v !== '' && v != null));
const fromAddress = () => {
  const given = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  if (!location.hash.includes('=')) return Object.fromEntries(Object.entries(state).filter(([k]) => FILTERS.includes(k))); // a section, or nothing
  return Object.fromEntries(Object.entries(given).filter(([k]) => FILTERS.includes(k) || OPEN.includes(k)));
};
const go = changes => { state = {...state, ...changes}; history.replaceState(null, '', address(state)); show(); };
const closed = {at: '', task: '', attempt: '', vs: '', step: ''};
const opened = (e, more) => ({...closed, at: e.run, task: e.task.key, attempt: e.attempt, ...more});

// the list
const SIZE = 25, form = $('filters'), body = document.querySelector('#list tbody');
let all = [], found = [], byName = new Map(), texts = null, loading = null, runs = [];
const nameOf = (run, task, attempt) => JSON.stringify([run, task, String(attempt)]);
const read = data => {
  runs = data.runs;
  const tasks = data.tasks.map(([key, prompt, lang, category, difficulty, split]) => ({key, prompt, lang, category, difficulty, split}));
  all = data.episodes.map(([run, task, attempt, outcome, kind, reward, valid, steps, refused, seed, cell], n) => {
    const e = {n, run: runs[run], task: tasks[task], attempt, outcome, kind, reward, valid, steps, refused, seed, cell};
    e.hay = [e.task.prompt, e.task.key, e.task.category, e.run, outcome, kind, e.task.lang].join('\n').toLowerCase();
    byName.set(nameOf(e.run, e.task.key, attempt), e);
    return e;
  });
  const fill = (name, of) => form.elements[name].append(...[...new Set(all.map(of))].map(v => el('option', {value: v}, v)));
  fill('run', e => e.run); fill('outcome', e => e.outcome); fill('kind', e => e.kind); fill('lang', e => e.task.lang);
  if (all.some(e => e.cell)) { fill('cell', e => e.cell); $('cells').hidden = false; }
};
const valueOf = {prompt: e => e.task.prompt, run: e => runs.indexOf(e.run), outcome: e => e.outcome, kind: e => e.kind, reward: e => e.reward, steps: e => e.steps, refused: e => e.refused, difficulty: e => Number(e.task.difficulty) || 0};
const order = (a, b) => a === b ? 0 : a == null ? 1 : b == null ? -1 : typeof a === 'string' ? a.localeCompare(b) : a - b; // null, an invalid reward, comes last
const search = () => {
  const words = (state.q || '').toLowerCase().split(/\s+/).filter(Boolean);
  found = all.filter(e => (!state.run || e.run === state.run) && (!state.outcome || e.outcome === state.outcome) && (!state.kind || e.kind === state.kind)
    && (!state.lang || e.task.lang === state.lang) && (!state.cell || e.cell === state.cell) && words.every(w => e.hay.includes(w)));
  const key = (state.sort || '').replace('-', ''), sign = (state.sort || '').startsWith('-') ? -1 : 1, of = valueOf[key];
  if (of) found.sort((x, y) => { const a = of(x), b = of(y); return a == null || b == null ? order(a, b) : sign * order(a, b) || x.n - y.n; });
};
const number = x => x == null ? '–' : x.toFixed(2);
const swatch = name => { // the colour that the charts above give to a name
  const from = [...document.querySelectorAll('.legend li')].find(li => li.textContent === name);
  const svg = from && from.querySelector('svg').cloneNode(true);
  if (svg) svg.classList.add('blob');
  return svg || null;
};
const mark = name => el('mark', {}, swatch(name), name);
const cell = (label, value) => el('td', {class: 'num', 'data-label': label}, String(value));
const listRow = e => el('tr', {},
  el('td', {}, el('a', {href: address({...state, ...opened(e)}), lang: e.task.lang}, e.task.prompt || '(no request)'),
    el('span', {class: 'dim'}, `${e.task.key} · ${e.task.category}${e.attempt ? ' · attempt ' + e.attempt : ''}`)),
  el('td', {}, el('bdi', {}, e.run)), el('td', {}, mark(e.outcome)), el('td', {}, mark(e.kind)),
  cell('reward', number(e.reward)), cell('steps', e.steps), cell('refused', e.refused), cell('difficulty', e.task.difficulty));
let listed = null;
const showList = () => {
  const asked = JSON.stringify(FILTERS.map(k => state[k] || ''));
  if (asked === listed) return; // a row keeps the focus while its episode is read
  listed = asked;
  search();
  for (const name of ['q', 'run', 'outcome', 'kind', 'lang', 'cell']) if (form.elements[name].value !== (state[name] || '')) form.elements[name].value = state[name] || '';
  for (const b of document.querySelectorAll('#list th button')) {
    const on = (state.sort || '').replace('-', '') === b.dataset.sort;
    if (on) b.parentNode.setAttribute('aria-sort', state.sort.startsWith('-') ? 'descending' : 'ascending'); else b.parentNode.removeAttribute('aria-sort');
  }
  const pages = Math.max(1, Math.ceil(found.length / SIZE)), page = Math.min(Math.max(1, parseInt(state.page) || 1), pages), first = (page - 1) * SIZE;
  body.replaceChildren(...found.slice(first, first + SIZE).map(listRow));
  if (!found.length) body.append(el('tr', {}, el('td', {colspan: 8}, 'No episode fits. Clear the filters to see all.')));
  $('count').textContent = `${found.length.toLocaleString('en')} of ${all.length.toLocaleString('en')} episodes`;
  $('page').textContent = `page ${page} of ${pages}`;
  $('back').disabled = page <= 1; $('forth').disabled = page >= pages;
};
const links = () => [...body.querySelectorAll('a')];

// an episode
const current = () => byName.get(nameOf(state.at, state.task, state.attempt || 0));
const besides = e => all.filter(o => o.task.key === e.task.key && o !== e);
const lineText = id => texts.texts[id].map(n => texts.lines[n]).join('\n');
const stepsOf = e => {
  const flat = texts.episodes[e.n].steps, out = [];
  for (let i = 0; i < flat.length; i += 3) out.push({action: flat[i], text: flat[i + 1], refused: flat[i + 2]});
  return out;
};
const met = (name, value) => el('li', {}, el('bdi', {}, name), ' ', el('span', {class: value >= 1 ? 'met' : 'unmet'}, value >= 1 ? '✓' : value <= 0 ? '✗' : number(value)));
const evidence = e => {
  const {gates, parts, error, seconds} = texts.episodes[e.n], box = el('div', {class: 'evidence'});
  box.append(el('div', {class: 'chips'}, el('span', {}, 'outcome ', mark(e.outcome)), el('span', {}, 'kind ', mark(e.kind)), el('span', {}, 'reward ', el('mark', {}, e.valid ? number(e.reward) : 'invalid, not counted')),
    el('span', {}, `${e.steps} steps, ${e.refused} refused`), el('span', {}, `attempt ${e.attempt}, seed ${e.seed}`), seconds == null ? null : el('span', {}, `${seconds.toFixed(2)} s`)));
  if (error) box.append(el('p', {class: 'error'}, error));
  for (const [label, list] of [['Gates', gates], ['Parts', parts]]) if (list.length) box.append(el('div', {class: 'dim'}, label), el('ul', {'aria-label': label}, ...list.map(([n, v]) => met(n, v))));
  return box;
};
const argument = ([k, v]) => el('span', {}, k ? el('bdi', {class: 'dim'}, k + ' ') : null, el('bdi', {}, v));
const stepItem = (s, i, lang) => {
  const [name, args] = texts.actions[s.action];
  return el('li', {class: s.refused ? 'refused' : null, tabindex: -1, 'data-step': i + 1},
    el('div', {class: 'act'}, el('span', {class: 'n'}, String(i + 1)), el('code', {}, el('bdi', {}, name)), ...args.map(argument), s.refused ? el('span', {class: 'error'}, 'refused') : null),
    el('pre', {lang}, lineText(s.text)));
};
const pane = e => el('section', {class: 'pane', tabindex: 0, 'aria-label': `${e.run}, attempt ${e.attempt}`}, el('h3', {}, e.run), evidence(e),
  el('ol', {class: 'steps'}, ...stepsOf(e).map((s, i) => stepItem(s, i, e.task.lang))), e.steps ? null : el('p', {class: 'dim'}, 'The episode ended before its first step.'));
const parting = (a, b) => { // the first step at which two episodes differ
  const x = stepsOf(a), y = stepsOf(b), n = Math.max(x.length, y.length);
  for (let i = 0; i < n; i++) if (!x[i] || !y[i] || x[i].action !== y[i].action) return i + 1;
  return 0;
};
let shown = '';
const second = e => { const [run, attempt] = (state.vs || '').split(/\/(?=\d+$)/); return besides(e).find(o => o.run === run && o.attempt === Number(attempt)); };
const showEpisode = e => {
  const other = second(e), both = nameOf(e.run, e.task.key, e.attempt) + (other ? nameOf(other.run, '', other.attempt) : '');
  if (shown !== both) {
    shown = both;
    const t = e.task, apart = other ? parting(e, other) : -1;
    $('viewer-title').textContent = t.prompt; $('viewer-title').lang = t.lang;
    $('about').textContent = [t.key, t.category, `difficulty ${t.difficulty}`, t.lang, t.split, apart > 0 ? `the two first differ at step ${apart}` : apart === 0 ? 'the two do the same' : ''].filter(Boolean).join(' · ');
    const label = o => o.run + (o.attempt || besides(e).some(x => x.run === o.run && x !== o) ? `, attempt ${o.attempt}` : '');
    $('beside').replaceChildren(el('option', {value: ''}, 'nothing'), ...besides(e).map(o => el('option', {value: `${o.run}/${o.attempt}`}, label(o))));
    $('panes').replaceChildren(pane(e), ...(other ? [pane(other)] : []));
  }
  $('beside').value = other ? state.vs : '';
  const n = Math.max(e.steps, other ? other.steps : 0), step = Math.min(Math.max(n ? 1 : 0, parseInt(state.step) || 1), n), at = found.indexOf(e);
  for (const li of document.querySelectorAll('.steps > li')) if (Number(li.dataset.step) === step) li.setAttribute('aria-current', 'step'); else li.removeAttribute('aria-current');
  for (const li of document.querySelectorAll('.steps > li[aria-current]')) if (state.step) li.scrollIntoView({block: 'nearest'});
  $('where').textContent = `step ${step} of ${n}`;
  $('left').disabled = step <= 1; $('right').disabled = step >= n;
  $('earlier').disabled = at <= 0; $('later').disabled = at < 0 || at >= found.length - 1;
  if (!$('viewer').open) { $('viewer').showModal(); $('panes').focus(); }
};
const showViewer = async () => {
  const wanted = state.at != null && state.at !== '', e = wanted && current();
  if (wanted && !e) $('lost').textContent = `The address names an episode that is not in this report: ${state.at}, task ${state.task}, attempt ${state.attempt || 0}.`;
  $('lost').hidden = !wanted || !!e;
  if (!e) { shown = ''; if ($('viewer').open) $('viewer').close(); return; }
  if (!texts) { loading ||= unpack('texts'); texts = await loading; return showViewer(); }
  showEpisode(e);
};
const show = () => { showList(); showViewer(); };
const toStep = d => { const e = current(), o = second(e), n = Math.max(e.steps, o ? o.steps : 0); go({step: Math.min(Math.max(1, (parseInt(state.step) || 1) + d), n)}); };
const toEpisode = d => { const e = found[found.indexOf(current()) + d]; if (e) go(opened(e, second(e) ? {vs: state.vs} : {})); };

// hands
form.addEventListener('input', () => go({...Object.fromEntries(new FormData(form)), page: ''}));
form.addEventListener('submit', ev => ev.preventDefault());
form.addEventListener('reset', () => go({q: '', run: '', outcome: '', kind: '', lang: '', cell: '', sort: '', page: ''}));
for (const b of document.querySelectorAll('#list th button')) b.onclick = () => go({sort: state.sort === b.dataset.sort ? '-' + b.dataset.sort : b.dataset.sort, page: ''});
$('back').onclick = () => go({page: (parseInt(state.page) || 1) - 1});
$('forth').onclick = () => go({page: (parseInt(state.page) || 1) + 1});
body.addEventListener('click', ev => { const a = ev.target.closest('tr')?.querySelector('a'); if (a && !ev.target.closest('a')) a.click(); });
$('left').onclick = () => toStep(-1); $('right').onclick = () => toStep(1); $('earlier').onclick = () => toEpisode(-1); $('later').onclick = () => toEpisode(1);
$('close').onclick = () => $('viewer').close();
$('beside').onchange = () => go({vs: $('beside').value});
$('panes').addEventListener('click', ev => { const li = ev.target.closest('.steps > li'); if (li && !String(getSelection())) go({step: li.dataset.step}); });
$('viewer').addEventListener('close', () => { shown = ''; if (state.at) go(closed); });
document.addEventListener('keydown', ev => {
  if (ev.ctrlKey || ev.metaKey || ev.altKey) return;
  const typing = ev.target.closest('input, select'), press = act => { ev.preventDefault(); act(); };
  if ($('viewer').open) {
    if (typing) return;
    if (ev.key === 'ArrowRight') press(() => toStep(1));
    if (ev.key === 'ArrowLeft') press(() => toStep(-1));
    if (ev.key === 'n') press(() => toEpisode(1));
    if (ev.key === 'p') press(() => toEpisode(-1));
    return;
  }
  if (ev.key === '/' && !typing) press(() => $('q').focus());
  if (ev.key === 'Escape' && ev.target === $('q')) press(() => { go({q: '', page: ''}); $('q').blur(); });
  const at = links().indexOf(document.activeElement), next = links()[at + (ev.key === 'ArrowDown' ? 1 : -1)];
  if (ev.key === 'ArrowDown' && (at >= 0 || ev.target === $('q')) && next) press(() => next.focus());
  if (ev.key === 'ArrowUp' && at >= 0) press(() => (next || $('q')).focus());
});
addEventListener('hashchange', () => { state = fromAddress(); show(); if (state.cell && !state.at) $('episodes').scrollIntoView(); });
unpack('index').then(data => { read(data); state = fromAddress(); show(); document.documentElement.dataset.ready = 'yes'; });
