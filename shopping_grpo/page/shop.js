// The page: choose a task, shop, be graded, watch. What it knows comes from /page/shops; an episode is a list of moves (see shop_view.js).
import { WORDS } from './shop_words.js';
import { describe, fold, h, logList, setLanguage, shopView, sure, t, tile, word } from './shop_view.js';

const S = { language: '', about: null, view: 'choose', family: '', tasks: {}, level: '', kind: '', speech: '', task: 0, recorded: {}, busy: false, failed: null };
const main = document.getElementById('main');
const say = text => { document.getElementById('said').textContent = text; };
const store = { get: k => { try { return localStorage.getItem(k); } catch { return null; } }, set: (k, v) => { try { localStorage.setItem(k, v); } catch { /* a private window */ } } };
const FORM = ['input', 'select', 'textarea'];

// Asking the server. A request that got no answer is sent again: the server knows by its number whether it was done.

async function ask(path, body, { lease = '', method = body ? 'POST' : 'GET' } = {}) {
  for (let tries = 0; ; tries++) {
    let answer;
    try {
      answer = await fetch(`/page/${path}`, { method, headers: { ...(body ? { 'content-type': 'application/json' } : {}), ...(lease ? { authorization: `Bearer ${lease}` } : {}) }, body: body && JSON.stringify(body), cache: 'no-store' });
    } catch { if (tries < 3) { await new Promise(r => setTimeout(r, 300 * 3 ** tries)); continue; } throw new Error(t('fail.network')); }
    const said = await answer.json();
    if (said.error) throw new Error({ no_session: t('fail.session'), capacity: t('fail.capacity') }[said.error.code] ?? t('fail.other', { what: said.error.message }));
    return said;
  }
}

async function busily(work) { // one thing at a time; what fails is said where the person is
  if (S.busy) return null;
  S.busy = true; main.setAttribute('aria-busy', 'true');
  try { S.failed = null; return await work(); } catch (e) { S.failed = e.message; say(e.message); return null; } finally { S.busy = false; main.removeAttribute('aria-busy'); draw(); }
}

// Choosing

const look = () => family().env; // how it is drawn
const family = () => S.about.shops.find(s => s.name === S.family);
const fits = () => (S.tasks[S.family] ?? []).map((x, n) => [n, ...x]).filter(([, level, kind, speech]) => (S.level === '' || String(level) === S.level) && (S.kind === '' || kind === S.kind) && (S.speech === '' || speech === S.speech)).map(x => x[0]);

async function chooseFamily(name) {
  Object.assign(S, { family: name, level: '', kind: '', speech: '' });
  S.tasks[name] ??= (await ask(`shops/${name}/tasks`)).tasks;
  if (!S.tasks[name][S.task]) S.task = 0;
}

function chooseView() {
  const rows = S.tasks[S.family] ?? [], all = i => [...new Set(rows.map(x => x[i]))].sort((a, b) => a > b ? 1 : -1), fit = fits();
  if (fit.length && !fit.includes(S.task)) S.task = fit[0];
  const set = (k, v) => { S[k] = v; draw(); };
  const pick = (k, label, values, name) => values.length > 1 ? h('label', { class: 'field' }, h('span', {}, label), h('select', { 'data-key': k, onchange: e => set(k, e.target.value) }, h('option', { value: '' }, t('choose.any')), values.map(v => h('option', { value: v, selected: String(v) === S[k] }, name(v))))) : null;
  const step = by => set('task', fit[(fit.indexOf(S.task) + by + fit.length) % fit.length]), none = !fit.length;
  const here = recordedHere();
  return h('div', { class: 'choose' }, h('h1', { tabindex: -1, 'data-key': 'head' }, t('choose.title')), h('p', { class: 'dim' }, t('choose.sub')),
    h('fieldset', { class: 'families' }, h('legend', { class: 'hidden' }, t('choose.family')), S.about.shops.map(s => h('label', { class: 'family' }, h('input', { type: 'radio', name: 'family', value: s.name, checked: s.name === S.family, 'data-key': `family ${s.name}`, onchange: () => busily(() => chooseFamily(s.name)) }),
      tile(s.name), h('span', { class: 'what' }, h('strong', {}, word('shop', s.name)), h('span', {}, `about.${s.env}` in WORDS.en ? t(`about.${s.env}`) : t('about.other')), h('span', { class: 'dim' }, t('choose.tasks', { n: s.tasks, split: s.split })))))),
    h('div', { class: 'fields' }, pick('kind', t('choose.kind'), all(1), v => word('kind', v)), pick('level', t('choose.level'), all(0), v => String(v)), pick('speech', t('choose.lang'), all(2), v => word('lang', v))),
    h('div', { class: 'task' }, h('button', { type: 'button', 'aria-label': t('choose.before'), 'data-key': 'before', disabled: none, onclick: () => step(-1) }, '‹'),
      h('label', { class: 'field' }, h('span', {}, t('choose.task')), h('input', { type: 'number', min: 0, max: rows.length - 1, value: S.task, 'data-key': 'task', onchange: e => { const n = Math.min(rows.length - 1, Math.max(0, Number(e.target.value) || 0)); if (!fits().includes(n)) Object.assign(S, { level: '', kind: '', speech: '' }); set('task', n); } })),
      h('button', { type: 'button', 'aria-label': t('choose.after'), 'data-key': 'after', disabled: none, onclick: () => step(1) }, '›'), h('button', { type: 'button', 'data-key': 'random', disabled: none, onclick: () => set('task', fit[Math.floor(Math.random() * fit.length)]) }, t('choose.random')),
      h('span', { class: 'dim' }, none ? t('choose.nofit') : t('choose.of', { n: fit.length, total: rows.length }))),
    h('button', { type: 'button', class: 'main big', 'data-key': 'start', disabled: none, onclick: () => start(S.task) }, t('choose.shop')),
    h('section', { class: 'panel others', 'aria-label': t('choose.or') }, h('h2', {}, t('choose.or')), h('div', { class: 'do' }, policySelect('who'), h('button', { type: 'button', 'data-key': 'watch', disabled: none, onclick: () => watch([{ policy: S.who ?? S.about.policies[0] }]) }, t('choose.watch'))),
      S.recorded[S.family] ? h('ul', { class: 'recorded' }, here.length ? here.map(x => recordedRow(x)) : h('li', { class: 'dim' }, S.recorded[S.family].length ? [...new Set(S.recorded[S.family].map(x => x.task))].slice(0, 24).map(n => h('button', { type: 'button', class: 'quiet', 'data-key': `goto ${n}`, onclick: () => set('task', n) }, t('task_n', { n }))) : t('choose.none')))
        : finder()));
}

const findRecorded = async () => { S.recorded[S.family] = (await ask(`shops/${S.family}/episodes`)).episodes; };
const other = () => S.about.policies.find(p => !S.lanes.some(x => x.name === p)) ?? S.about.policies[0];
const policySelect = (key, first = S.about.policies[0]) => h('label', { class: 'field' }, h('span', {}, t('choose.who')), h('select', { 'data-key': key, onchange: e => { S[key] = e.target.value; } }, S.about.policies.map(p => h('option', { value: p, selected: p === (S[key] ?? first) }, p))));
const recordedRow = (x, ...beside) => h('li', {}, h('button', { type: 'button', 'data-key': `recorded ${x.run} ${x.attempt}`, onclick: () => watch([...beside, { recorded: x }]) }, `${x.policy} #${x.attempt}`), ' ', h('span', { class: x.success ? 'good' : 'dim' }, x.success ? '✓ ' : '✗ ', word('outcome', x.outcome)), ' ', h('span', { class: 'dim' }, x.run));

// Shopping

const fresh = () => ({ products: [], vouchers: '', fields: {} });

async function start(task) {
  await busily(async () => {
    await leave();
    const word = [...crypto.getRandomValues(new Uint8Array(18))].map(x => x.toString(36)).join('-');
    const said = await ask(`shops/${S.family}/sessions`, { task, seed: 0, request: word });
    Object.assign(S, { view: 'shop', task, held: said, n: 0, tools: said.tools.map(x => x.function), draft: fresh(), tab: null, moreFields: false, result: null, moves: [{ action: null, observation: said.observation, done: false }] });
    focusNext = 'head';
  });
}

setInterval(() => { // whoever reads for a long time is still here
  if (S.held && !document.hidden && !S.busy && Date.now() - (S.seen ?? 0) > S.held.idle * 300) { S.seen = Date.now(); ask(`shops/${S.family}/sessions/${S.held.session}/state`, {}, { lease: S.held.lease }).catch(() => {}); }
}, 1000);

async function leave() { // give the session back; nobody waits for the answer
  const held = S.held;
  S.held = null;
  if (held) ask(`shops/${S.family}/sessions/${held.session}`, null, { lease: held.lease, method: 'DELETE' }).catch(() => {});
}

async function act(action) { // true when it was done
  let done = false;
  await busily(async () => {
    const at = `shops/${S.family}/sessions/${S.held.session}`, said = await ask(`${at}/step`, { id: S.n + 1, action }, { lease: S.held.lease });
    S.n++;
    S.moves.push({ action, ...said });
    const { error, data } = said.observation, w = fold(S.moves);
    done = !error;
    if (!error) { S.tab = null; afterwards(action, data, w); }
    say(error ? said.observation.text : describe(action));
    focusNext = error ? null : ['choose_option', 'select_option', 'ask_shopper', 'cart_add', 'cart_set', 'calculate_voucher', 'recommend_product', 'return_check'].includes(action.name) ? null : 'head';
    if (said.done) { S.result = await ask(`${at}/result`, {}, { lease: S.held.lease }); S.view = 'end'; focusNext = 'head'; await leave(); }
  });
  return done;
}

function afterwards(action, data, w) { // what a person would write down now
  if (data.next) S.draft = fresh();
  if (data.page_type === 'returned') S.draft.fields = { ...S.draft.fields, ...w.sent, date: '' };
}

function liveContext(w) {
  const d = S.draft, change = f => { f(); draw(); };
  return { live: true, family: look(), tools: S.tools, draft: d, tab: S.tab, moreFields: S.moreFields, change, act: a => act(typeof a.text === 'string' ? a : { name: a.name, args: a.args }), show: tab => change(() => { S.tab = tab; focusNext = null; }), remember: open => { S.moreFields = open; },
    fill: fields => change(() => Object.assign(d.fields, fields)), empty: () => !d.products.length && !Object.values(d.fields).some(Boolean),
    add: (p, v) => change(() => {
      const i = d.products.findIndex(x => x.id === p.name && x.number === v.number);
      if (i >= 0 && look() === 'shoppingbench') d.products[i].quantity++;
      else if (i >= 0) d.products.splice(i, 1);
      else d.products.push({ id: p.name, number: v.number, quantity: 1, title: p.title, values: v.values.filter(Boolean).join(', '), price: v.price });
    }) };
}

function request(w, extra) {
  const most = family()?.max_turns, now = w.requests.length > 1;
  return h('section', { class: 'request', 'aria-label': t('request') }, h('div', { class: 'asked', tabindex: 0, 'data-key': 'request' }, h('h2', {}, t(now ? 'request.now' : 'request')), h('p', { dir: 'auto' }, w.requests[w.requests.length - 1])), extra && h('div', { class: 'meta' }, extra,
    h('span', { class: 'dim' }, look() === 'ecomrlve' ? t('step', { n: w.steps }) : t('step_of', { n: w.steps, most }))));
}

function giveUp(ctx, w) {
  const how = { shopsim: { name: 'finish_without_purchase', args: { reason: 'no_suitable_product' } }, webshop: { text: 'nothing fits' }, shoppingbench: { name: 'terminate', args: { status: 'failure' } } }[look()];
  return how && !w.recommended ? sure(t('giveup'), t('giveup.sure'), () => ctx.act(how), ctx, { class: 'quiet', 'data-key': 'giveup' }) : null;
}

function shopPage() {
  const w = fold(S.moves), ctx = liveContext(w), [middle, side] = shopView(w, ctx);
  return h('div', { class: 'shopping' }, request(w, giveUp(ctx, w) ?? h('span')), h('div', { class: 'columns' }, h('div', { class: 'middle' }, middle), h('aside', { class: 'side' }, side, extras(w, S.moves))), jumps(w));
}

function jumps(w) { // on a narrow screen, ways to what stands below the shop
  const to = (where, label) => h('button', { type: 'button', 'data-key': `jump ${where}`, onclick: () => { const e = main.querySelector(`.panel.${where}`); e.scrollIntoView({ block: 'center' }); e.querySelector('input, button')?.focus({ preventScroll: true }); } }, label);
  const n = S.draft.products.length, count = label => n ? `${label} (${n})` : label;
  const shown = [w.talks && to('chat', t('chat')), look() === 'shoppingbench' && to('basket', count(t('basket'))), look() === 'ecomrlve' && to('answer', count(t('answer')))].filter(Boolean);
  return shown.length ? h('nav', { class: 'jumps', 'aria-label': t('jumps') }, shown) : null;
}

const extras = (w, moves, now, jump) => [h('details', { class: 'panel', open: innerWidth >= 1000 }, h('summary', {}, t('log')), moves.length > 1 ? logList(moves, fold(moves).known, now, jump) : h('p', { class: 'dim' }, t('log.none'))), h('details', { class: 'panel' }, h('summary', {}, t('agent')), h('pre', { class: 'agent' }, w.text))];

// The end

const percent = g => !g || !g.valid ? '–' : `${g.value > 0 ? '+' : ''}${g.value.toFixed(2)}`;
const mark = ok => h('span', { class: ok == null ? 'dim' : ok ? 'good' : 'bad' }, ok == null ? '–' : ok ? '✓' : '✗');

function gradeView(r) {
  const tone = r.success ? 'good' : !r.reward.valid ? '' : r.reward.value > 0 ? 'half' : 'bad', title = r.success ? 'end.success' : !r.reward.valid ? 'end.none' : ['partial_purchase', 'partial'].includes(r.reward.kind) || r.reward.value > 0 ? 'end.partial' : 'end.wrong';
  const grade = (label, g) => h('div', { class: 'grade' }, h('dt', {}, label), h('dd', { 'data-grade': label }, h('b', {}, percent(g)), ' ', h('span', { class: 'dim' }, g ? g.valid ? word('grade', g.kind) : t('end.notver') : '–')));
  const parts = [r.reward, r.native].map(g => g && g.parts.some(v => v.name) ? [...g.gates, ...g.parts] : []);
  return h('section', { class: `verdict ${tone}`, 'data-kind': r.reward.kind, 'data-value': r.reward.value }, h('h2', { tabindex: -1, 'data-key': 'head' }, r.success ? '✓ ' : '', t(title)), h('p', { class: 'dim' }, `${t('end.kind')}: ${word('outcome', r.outcome)}`),
    h('dl', { class: 'grades' }, grade(t('end.verified'), r.reward), grade(t('end.native'), r.native)), r.final ? h('p', { class: 'hint' }, t('end.final')) : null,
    r.parts.map((p, i) => partView(p, i, r.parts.length)),
    parts.some(p => p.length) ? h('details', { class: 'parts' }, h('summary', {}, t('end.parts')), parts.map((p, i) => p.length ? [h('h4', {}, t(i ? 'end.native' : 'end.verified')), h('ul', {}, p.map(v => h('li', {}, mark(v.ok), ' ', h('bdi', {}, v.name), v.score != null && v.score !== 0 && v.score !== 1 ? h('span', { class: 'dim' }, ` ${v.score.toFixed(2)}`) : null)))] : null)) : null);
}

const offerText = o => [h('bdi', { class: 'title', dir: 'auto' }, o.title), h('span', { class: 'dim' }, h('bdi', {}, o.options.map(([a, x]) => `${a}: ${x}`).join(' · ')), o.options.length ? ' · ' : '', h('bdi', {}, o.price), o.shop ? [' · ', h('bdi', {}, o.shop)] : null)];
const offerLine = o => h('li', { class: 'offer' }, tile(o.title), h('span', { class: 'what' }, offerText(o)));

function partView(p, i, n) {
  const pairs = (title, d) => Object.keys(d).length ? h('div', {}, h('h4', {}, title), h('dl', { class: 'facts' }, Object.entries(d).map(([k, x]) => h('div', {}, h('dt', {}, word('fact', k)), h('dd', {}, h('bdi', {}, x === true ? t('fact.true') : k === 'kind' || k === 'intent' ? word('kind', x) : String(x))))))) : null;
  return h('section', { class: 'part' }, n > 1 ? h('h3', {}, t('end.goal', { n: i + 1 })) : null, p.wants.map((w, j) => wantView(w, j, p.wants.length)), p.besides.length ? [h('h4', {}, t('end.besides')), h('ul', { class: 'offers' }, p.besides.map(offerLine))] : null, h('div', { class: 'two' }, pairs(t('end.asked'), p.asked), pairs(t('end.said'), p.said)));
}

function wantView(w, j, n) {
  const notes = { clarification: 'end.silent', profile: 'end.profile' };
  return h('div', { class: 'want' }, n > 1 || w.quantity > 1 ? h('h4', {}, mark(w.got ? w.ok && w.got.quantity === w.quantity : false), ' ', n > 1 ? t('end.thing', { n: j + 1 }) : '', w.quantity > 1 ? ` ${t('end.pieces', { n: w.quantity })}` : '') : null,
    w.got ? h('ul', { class: 'offers' }, h('li', { class: 'offer' }, tile(w.got.title), h('span', { class: 'what' }, h('span', { class: 'dim' }, t('end.got')), offerText(w.got), w.got.quantity > 1 || w.quantity > 1 ? h('span', { class: w.got.quantity === w.quantity ? 'dim' : 'bad' }, t('end.pieces', { n: w.got.quantity })) : null, w.got.open ? h('span', { class: 'bad' }, t('end.open')) : null))) : h('p', { class: 'dim' }, t('end.unknown')),
    h('table', { class: 'wishes' }, h('thead', {}, h('tr', {}, ['end.wish', 'end.got', 'end.ok'].map(k => h('th', { scope: 'col' }, t(k))))), h('tbody', {}, w.wishes.map(x => h('tr', { class: x.ok === false ? `missed${x.hard ? '' : ' soft'}` : null }, h('th', { scope: 'row' }, h('span', { class: 'dim' }, x.field ? h('bdi', {}, x.field) : word('wish', x.kind), ' ', word('op', x.op)), ' ', h('bdi', {}, x.value), !x.hard || notes[x.source] ? h('small', { class: 'dim' }, ` (${[!x.hard && t('end.soft'), notes[x.source] && t(notes[x.source])].filter(Boolean).join(', ')})`) : null),
      h('td', {}, w.got ? x.has.length ? x.has.map((y, k) => [k ? ', ' : '', h('bdi', {}, y)]) : t('end.nothing') : '–'), h('td', {}, mark(x.ok), h('span', { class: 'hidden' }, t(x.ok == null ? 'end.unknown' : x.ok ? 'end.yes' : 'end.no'))))))),
    w.right.length && !(w.ok && w.got.quantity === w.quantity) ? [h('h4', {}, w.count > 1 ? t('end.rights', { n: w.count }) : t('end.right')), h('ul', { class: 'offers rights' }, w.right.map(offerLine))] : null);
}

const recordedHere = () => (S.recorded[S.family] ?? []).filter(x => x.task === S.task);
const finder = () => h('button', { type: 'button', class: 'quiet', 'data-key': 'recorded', onclick: () => busily(findRecorded) }, t('choose.find'));

function endPage() {
  const w = fold(S.moves), own = { mine: true };
  return h('div', { class: 'ending' }, request(w), gradeView(S.result), h('div', { class: 'do' }, h('button', { type: 'button', class: 'main', 'data-key': 'after', onclick: () => { const fit = fits(); start(fit[(fit.indexOf(S.task) + 1) % fit.length]); } }, t('end.next')), h('button', { type: 'button', 'data-key': 'again', onclick: () => start(S.task) }, t('end.again')), h('button', { type: 'button', 'data-key': 'other', onclick: home }, t('end.other'))),
    h('section', { class: 'panel others', 'aria-label': t('end.compare') }, h('h2', {}, t('end.compare')), h('div', { class: 'do' }, policySelect('who'), h('button', { type: 'button', 'data-key': 'compare', onclick: () => watch([own, { policy: S.who ?? S.about.policies[0] }]) }, t('end.show')), h('button', { type: 'button', class: 'quiet', 'data-key': 'own', onclick: () => watch([own]) }, t('end.watchown'))),
      S.recorded[S.family] ? h('ul', { class: 'recorded' }, recordedHere().length ? recordedHere().map(x => recordedRow(x, own)) : h('li', { class: 'dim' }, t('choose.none'))) : finder()));
}

// Watching: lanes side by side, one position for all. A lane is filled while its policy still plays.

const SPEEDS = { slow: 2600, normal: 1300, fast: 450 };

async function watch(wanted) {
  await busily(async () => {
    const mine = wanted.some(x => x.mine) ? { name: t('watch.you'), mine: true, moves: S.moves, result: S.result } : null;
    if (!mine) await leave();
    const lanes = await Promise.all(wanted.map(async x => x.mine ? mine : x.recorded ? { name: t('watch.recorded', { policy: x.recorded.policy }), ...(await ask(`shops/${S.family}/episodes/${x.recorded.id}`, {})) }
      : { name: x.policy, id: (await ask(`shops/${S.family}/watch`, { task: S.task, policy: x.policy, seed: 0 })).watch, moves: [], result: null }));
    for (const x of lanes) if (x.id) await more(x);
    Object.assign(S, { view: 'watch', lanes, at: 0, playing: !mine });
    focusNext = 'play';
  });
  again();
}

async function beside(policy) { // a second lane
  await busily(async () => {
    const lane = { name: policy, id: (await ask(`shops/${S.family}/watch`, { task: S.task, policy, seed: 0 })).watch, moves: [], result: null };
    await more(lane);
    S.lanes = [...S.lanes, lane];
  });
  again();
}

async function more(lane) { // what its policy has done since
  const said = await ask(`shops/${S.family}/watch/${lane.id}`, { first: lane.moves.length });
  lane.moves.push(...said.moves); Object.assign(lane, { result: said.result, error: said.error });
}

const growing = lane => lane.id && !lane.result && !lane.error;
const end = () => Math.max(0, ...S.lanes.map(x => x.moves.length - 1 + (x.result || x.error ? 1 : 0)));

async function tick() { // every move of the clock, and while somebody is still thinking
  clearTimeout(S.timer);
  if (S.view !== 'watch') return;
  const lanes = S.lanes;
  try { for (const x of lanes.filter(growing)) await more(x); } catch (e) { S.failed = e.message; S.playing = false; for (const x of lanes.filter(growing)) x.error = e.message; }
  if (S.view !== 'watch' || S.lanes !== lanes) return;
  if (S.playing && S.at < end()) S.at++;
  if (S.playing && S.at >= end() && !lanes.some(growing)) S.playing = false;
  moved(); again();
}
const again = () => { clearTimeout(S.timer); if (S.playing || S.lanes.some(growing)) S.timer = setTimeout(tick, S.playing ? SPEEDS[S.speed ?? 'normal'] : 400); };
const go = to => { S.at = Math.min(end(), Math.max(0, to)); moved(); };
const play = on => { if (on && S.at >= end()) S.at = 0; S.playing = on; moved(); again(); };

function moved() { // only what moves is drawn anew: a slider that is dragged and a list that is open stay as they are
  const lanes = main.querySelector('.lanes'), range = main.querySelector('[data-key=range]'), button = main.querySelector('[data-key=play]');
  if (!lanes || S.failed) return draw();
  keeping(lanes, () => lanes.replaceChildren(...S.lanes.map(laneView)));
  range.max = end(); range.value = S.at;
  main.querySelector('.count').textContent = t('watch.step', { n: S.at, most: end() });
  button.textContent = S.playing ? '❚❚' : '▶'; button.title = t(S.playing ? 'watch.pause' : 'watch.play'); button.setAttribute('aria-label', button.title);
}

function keeping(root, work) { // what is open stays open, and the focus where it was
  const kept = document.activeElement?.dataset?.key, inside = root.contains(document.activeElement), name = d => `${[...root.children].indexOf(d.closest('.lane'))} ${d.querySelector('summary')?.textContent}`, open = new Map([...root.querySelectorAll('details')].map(d => [name(d), d.open]));
  work();
  for (const d of root.querySelectorAll('details')) d.open = open.get(name(d)) ?? d.open;
  if (inside && kept) [...root.querySelectorAll('[data-key]')].find(x => x.dataset.key === kept)?.focus({ preventScroll: true });
}

function laneView(lane) {
  const last = lane.moves.length - 1, at = Math.min(S.at, last), graded = S.at > last && (lane.result || lane.error), w = fold(lane.moves, at), next = lane.moves[at + 1]?.action;
  const ctx = { live: false, family: look(), tools: null, next: graded ? null : next }, [middle, side] = last >= 0 ? shopView(w, ctx) : [[], []];
  const known = fold(lane.moves).known, caption = last < 0 ? t('watch.thinking') : describe(lane.moves[at].action, known);
  return h('section', { class: 'lane', 'aria-label': lane.name }, h('header', {}, h('h3', {}, lane.name), h('span', { class: 'dim' }, t('watch.step', { n: Math.max(0, at), most: Math.max(0, last) })), h('p', { class: 'caption' }, h('bdi', {}, caption)),
    h('p', { class: 'dim' }, graded ? t('watch.grade') : next ? t('watch.then', { what: describe(next, known) }) : growing(lane) ? t('watch.thinking') : t('watch.grade'))),
    graded ? [lane.error && h('p', { class: 'alarm' }, t('watch.error', { what: lane.error })), lane.result && gradeView(lane.result)] : h('div', { class: 'still', inert: true }, h('div', { class: 'middle' }, middle), side.length ? h('div', { class: 'side' }, side) : null), last >= 0 ? extras(w, lane.moves, at, go) : null);
}

function watchPage() {
  const first = S.lanes.find(x => x.moves.length), icon = (key, label, sign, act, props = {}) => h('button', { type: 'button', 'aria-label': label, title: label, 'data-key': key, onclick: act, ...props }, sign);
  const theirs = S.lanes.every(x => !x.mine);
  return h('div', { class: 'watching' }, first ? request(fold(first.moves, 0)) : null, h('div', { class: `lanes n${S.lanes.length}` }, S.lanes.map(laneView)),
    h('div', { class: 'controls', role: 'group', 'aria-label': t('watch.title') }, icon('first', t('watch.first'), '⇤', () => go(0)), icon('prev', t('watch.prev'), '←', () => go(S.at - 1)), icon('play', t(S.playing ? 'watch.pause' : 'watch.play'), S.playing ? '❚❚' : '▶', () => play(!S.playing), { class: 'main' }), icon('next', t('watch.next'), '→', () => go(S.at + 1)), icon('last', t('watch.last'), '⇥', () => go(end())),
      h('input', { type: 'range', min: 0, max: end(), value: S.at, 'aria-label': t('watch.steps'), 'data-key': 'range', oninput: e => go(Number(e.target.value)) }), h('span', { class: 'count' }, t('watch.step', { n: S.at, most: end() })),
      h('label', { class: 'field' }, h('span', { class: 'hidden' }, t('watch.speed')), h('select', { 'data-key': 'speed', 'aria-label': t('watch.speed'), onchange: e => { S.speed = e.target.value; } }, Object.keys(SPEEDS).map(k => h('option', { value: k, selected: k === (S.speed ?? 'normal') }, t(`watch.${k}`))))),
      S.lanes.length < 2 && [policySelect('second', other()), h('button', { type: 'button', 'data-key': 'beside', onclick: () => beside(S.second ?? other()) }, t('watch.add'))],
      theirs ? h('button', { type: 'button', 'data-key': 'self', onclick: () => start(S.task) }, t('watch.self')) : h('button', { type: 'button', 'data-key': 'grade', onclick: () => { S.view = 'end'; S.playing = false; focusNext = 'head'; draw(); } }, t('watch.grade'))), h('p', { class: 'dim keys' }, t('watch.keys')));
}

document.addEventListener('keydown', e => {
  const typing = FORM.includes(e.target.tagName?.toLowerCase()) && e.target.type !== 'radio';
  if (e.altKey || e.ctrlKey || e.metaKey) return;
  if (e.key === '/' && !typing) { const q = main.querySelector('input[type=search]'); if (q) { e.preventDefault(); q.focus(); q.select(); } }
  if (S.view !== 'watch' || typing && e.target.type !== 'range') return;
  const to = { ArrowRight: S.at + 1, ArrowLeft: S.at - 1, Home: 0, End: end() }[e.key];
  if (to != null) { e.preventDefault(); go(to); }
  else if (e.key === ' ' && e.target.tagName !== 'BUTTON' && e.target.tagName !== 'SUMMARY') { e.preventDefault(); play(!S.playing); }
});

// Drawing: everything anew, with the focus, the open parts and what was typed kept where they were

let focusNext = null;

function draw() {
  const kept = document.activeElement?.dataset?.key, open = [...main.querySelectorAll('details')].map(d => [d.querySelector('summary')?.textContent, d.open]), top = scrollY;
  const typed = new Map([...main.querySelectorAll('input[data-key], textarea')].filter(x => x.value !== x.defaultValue && x.type !== 'radio' && x.type !== 'range').map(x => [x.dataset.key, x.value]));
  const view = S.about ? { choose: chooseView, shop: shopPage, end: endPage, watch: watchPage }[S.view]() : h('p', { class: 'nothing' }, S.failed ? '' : t('loading'));
  main.replaceChildren(...[S.failed && h('p', { class: 'alarm', role: 'alert' }, S.failed), view].filter(Boolean));
  const before = S.drawn;
  S.drawn = S.view + S.task + (S.moves?.length ?? 0);
  if (before?.[0] === S.drawn[0]) for (const d of main.querySelectorAll('details')) { const was = open.find(([name]) => name === d.querySelector('summary')?.textContent); if (was) d.open = was[1] || d.open && !d.classList.contains('panel'); }
  if (before === S.drawn) for (const x of main.querySelectorAll('input[data-key]')) if (typed.has(x.dataset.key) && x.type !== 'number') x.value = typed.get(x.dataset.key);
  const to = focusNext ?? kept, find = key => key && [...main.querySelectorAll('[data-key]')].find(x => x.dataset.key === key && !x.disabled);
  const target = find(to) ?? (focusNext || kept ? find('head') : null);
  if (target && document.activeElement !== target) target.focus({ preventScroll: true });
  if (focusNext === 'head') scrollTo(0, 0); else scrollTo(0, top);
  focusNext = null;
  main.style.setProperty('--asked', `${main.querySelector('.request')?.offsetHeight ?? 0}px`);
  for (const talk of main.querySelectorAll('.talk')) talk.scrollTop = talk.scrollHeight;
  document.getElementById('where').textContent = S.view === 'choose' || !S.about ? '' : `${word('shop', S.family)} · ${t('task_n', { n: S.task })}`;
  for (const e of document.querySelectorAll('[data-t]')) e.textContent = t(e.dataset.t);
  const other = document.getElementById('language');
  other.textContent = t('other_language'); other.lang = S.language === 'en' ? 'zh' : 'en';
  document.documentElement.lang = S.language === 'en' ? 'en' : 'zh-CN';
  if (S.about) history.replaceState(null, '', `#${S.family}/${S.task}`);
  document.title = [S.view === 'choose' ? '' : document.getElementById('where').textContent, t('brand')].filter(Boolean).join(' · ');
  document.documentElement.dataset.view = S.about ? S.view : '';
}

function speak(language) { S.language = language; setLanguage(language); store.set('language', language); draw(); }
async function home() { clearTimeout(S.timer); S.playing = false; await leave(); Object.assign(S, { view: 'choose', failed: null }); focusNext = 'head'; draw(); }

document.getElementById('language').addEventListener('click', () => speak(S.language === 'en' ? 'zh' : 'en'));
document.getElementById('home').addEventListener('click', home);
addEventListener('pagehide', () => { if (S.held) fetch(`/page/shops/${S.family}/sessions/${S.held.session}`, { method: 'DELETE', keepalive: true, headers: { authorization: `Bearer ${S.held.lease}` } }); });

async function follow(address = location.hash) { // it names a family and a task
  const [name, task] = decodeURIComponent(address.slice(1)).split('/');
  S.task = Number.isInteger(Number(task)) ? Math.max(0, Number(task)) : 0;
  await chooseFamily(S.about.shops.some(s => s.name === name) ? name : S.about.shops[0].name);
}
addEventListener('hashchange', async () => { const to = location.hash; await home(); await busily(() => follow(to)); });

speak(store.get('language') ?? (navigator.language?.startsWith('zh') ? 'zh' : 'en'));
try {
  const about = await ask('shops');
  S.about = about;
  await follow();
} catch (e) { S.failed = e.message; }
draw();
document.documentElement.dataset.ready = 'yes';
