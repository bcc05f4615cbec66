// A shop drawn from moves: `fold` makes a world of what was seen so far, `shopView` draws it. The same code draws an episode that is played and one that is watched.
import { WORDS } from './shop_words.js';

let lang = 'en';
export const setLanguage = to => { lang = to; };
export const t = (key, values = {}) => (WORDS[lang][key] ?? WORDS.en[key] ?? key).replace(/\{(\w+)\}/g, (_, name) => values[name] ?? '');
const word = (prefix, name) => `${prefix}.${name}` in WORDS.en ? t(`${prefix}.${name}`) : String(name);
export { word };

export function h(tag, props = {}, ...kids) { // an element; texts become text nodes, never markup
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(props)) {
    if (v == null || v === false) continue;
    if (k.startsWith('on')) e.addEventListener(k.slice(2), v);
    else e.setAttribute(k, v === true ? '' : v);
  }
  e.append(...kids.flat(Infinity).filter(x => x != null && x !== false && x !== ''));
  return e;
}

// The world of an episode

const TAB = { search_home: 'search', search_results: 'search', product_detail: 'product', information_subpage: 'product', results: 'search', ranked: 'search', history: 'search', products: 'product', web: 'facts', code: 'facts',
  cart: 'cart', orders: 'orders', order: 'orders', eligible: 'orders', returned: 'orders', terms: 'terms' };

export function fold(moves, n = moves.length - 1) {
  const w = { requests: [], tab: 'search', chat: [], known: new Map(), cart: [], checked: {}, returned: new Set(), page: {}, steps: 0, legal: [], error: '', text: '' };
  moves.slice(0, n + 1).forEach((m, k) => take(w, m, k));
  return w;
}

function take(w, { action, observation, done, outcome, same }, k) {
  const { text, data = {}, error, legal } = observation, args = typeof action?.args === 'object' && action.args || {};
  Object.assign(w, { text, legal, error: error ? text : '', done, outcome, plain: same === false, last: action });
  if (k) w.steps++;
  else { w.requests.push(text); w.talks = legal.includes('ask_shopper') || legal.includes('answer'); if (w.talks) w.chat.push(['shopper', text]); }
  if (action?.name === 'ask_shopper') w.chat.push(['agent', String(args.question ?? '')]);
  if (error) return;
  const kind = data.page_type;
  if (kind === 'said') w.chat.push(['shopper', data.text]);
  else if (action?.name === 'ask_shopper') w.chat.push(['shopper', text.replace(/^[^:：]{1,10}[:：]\s*/, '')]);
  if (kind === 'said' && data.next) { w.requests.push(data.text); Object.assign(w, { cart: [], checked: {}, returned: new Set() }); }
  if (kind === 'terminal' && action?.name === 'answer') w.chat.push(['shopper', text.replace(/^[^:：]{1,10}[:：]\s*/, '')]);
  if (data.shopper) w.chat.push(['shopper', data.shopper]);
  if (kind in TAB) w.tab = TAB[kind];
  if (kind && kind !== 'terminal') w.page = data;
  for (const p of data.products ?? []) { const id = kind === 'search_results' ? p.asin : p.name; w.known.set(id, { ...w.known.get(id), ...p }); }
  for (const o of data.orders ?? []) for (const x of o.lines) if (!w.known.has(x.product)) w.known.set(x.product, { asin: x.asin, name: x.product, title: x.title, price: x.price });
  if (TAB[kind] === 'search' && data.products) { w.results = data; w.asked = ['results', 'search_results'].includes(kind) ? { ...args, ...(args.query == null && data.query != null ? { query: data.query } : {}) } : null; }
  if (kind === 'products') w.products = data.products;
  if (kind === 'web') Object.assign(w, { web: data.results, code: null });
  if (kind === 'code') w.code = data;
  if (kind === 'sum') w.sum = { ...data, sign: /(\D*)\d/.exec(text.replace(/^list price /, ''))?.[1] ?? '', key: `${args.products}/${args.vouchers ?? ''}` };
  if (kind === 'recommended') w.recommended = { key: `${args.products}/${args.vouchers ?? ''}`, text };
  if (kind === 'cart') w.cart = data.lines.map((x, i) => ({ ...x, price: text.split('\n')[i]?.split(' ').pop() ?? '' }));
  if (data.orders) { w.today = data.today; if (kind === 'orders') Object.assign(w, { orders: data.orders, order: null }); else w.order = data.orders[0]; }
  if (kind === 'eligible') w.checked[`${data.order} ${data.line}`] = { ...data, why: text.split(': ').slice(-1)[0] };
  if (kind === 'returned') { w.returned.add(`${data.order} ${data.line}`); w.sent = { order: data.order, line: data.line, status: action.name === 'return_replace' ? 'replaced' : 'returned' }; }
  if (kind === 'terms') w.terms = data.terms;
}

export function describe(action, known = new Map()) { // in a few words; `known`: of a world, for titles instead of ids
  if (!action) return t('watch.begin');
  if (action.text != null) return t('say.text', { text: action.text });
  const said = x => { const [id, ...rest] = String(x).split('#'), p = known.get(id); return p ? [p.title.length > 44 ? `${p.title.slice(0, 42)}…` : p.title, ...rest].join(' #') : String(x); };
  const args = typeof action.args === 'object' ? Object.values(action.args).filter(x => x !== '' && x !== 'default' && x !== 'no_suitable_product').map(said).join(' · ') : String(action.args ?? '');
  return t('say.call', { tool: word('tool', action.name), args });
}

// Pieces that all shops share

const KNOWN = { shopsim: 'paged', webshop: 'paged', shoppingbench: 'tools', ecomrlve: 'tools' };
const call = (name, args = {}) => ({ name, args });
const button = (label, act, ctx, props = {}) => h('button', { type: 'button', onclick: act, disabled: !ctx.live, ...props }, label);
const field = (label, input, props = {}) => h('label', { class: 'field', ...props }, h('span', {}, label), input);
const panel = (title, key, ...kids) => h('section', { class: `panel ${key}`, 'aria-label': title }, h('h3', {}, title), ...kids);
const isNext = (ctx, ...names) => { const args = ctx.next?.args; return !!args && Object.values(args).some(x => names.includes(String(x)) || names.includes(String(x).split(/[#*,]/)[0])); };

export function sure(label, question, act, ctx, props = {}) { // a button that asks back
  let asked = false;
  const b = button(label, () => { if (asked) return act(); asked = true; b.textContent = question; b.classList.add('asking'); }, ctx, props);
  b.addEventListener('blur', () => { asked = false; b.textContent = label; b.classList.remove('asking'); });
  return b;
}

export function tile(title) { // instead of a picture: the first letter of the name, in a colour of its own
  const text = [...(title ?? '')].find(c => /\p{L}|\p{N}/u.test(c)) ?? '?';
  const hue = [...(title ?? '')].reduce((n, c) => (n * 31 + c.codePointAt(0)) % 360, 7);
  const e = h('span', { class: 'tile', 'aria-hidden': 'true' }, text.toUpperCase());
  e.style.setProperty('--hue', hue);
  return e;
}

const name = text => h('bdi', { class: 'title', dir: 'auto' }, text);
const chips = texts => texts?.length ? h('span', { class: 'chips' }, texts.slice(0, 6).map(x => h('bdi', {}, x))) : null;

function card(p, id, ctx, open) {
  return h('li', { class: `card${isNext(ctx, id) ? ' next' : ''}` }, h('button', { type: 'button', class: 'open', 'data-key': `open ${id}`, disabled: !ctx.live, onclick: () => open(id) },
    tile(p.title), h('span', { class: 'what' }, name(p.title), h('span', { class: 'dim' }, h('bdi', {}, p.shop || p.brand || '')), chips(p.key_attributes ?? p.services), h('bdi', { class: 'price' }, p.price))));
}

function searchForm(ctx, { label, key = 'q', value = '', go, more = null, submit = t('search') }) {
  const input = h('input', { type: 'search', name: key, 'data-key': key, value, placeholder: label, 'aria-label': label, required: !more, maxlength: 400, autocomplete: 'off', disabled: !ctx.live });
  return h('form', { class: 'searching', role: 'search', onsubmit: e => { e.preventDefault(); go(input.value.trim(), new FormData(e.target)); } },
    h('div', { class: 'bar' }, input, h('button', { type: 'submit', class: 'main', disabled: !ctx.live }, submit)), more);
}

const nothing = text => h('p', { class: 'nothing' }, text);
const crumbs = path => path?.length ? h('p', { class: 'dim crumbs' }, path.map((x, i) => [i ? ' › ' : '', h('bdi', {}, x)])) : null;
const table = rows => h('dl', { class: 'facts' }, rows.filter(([, x]) => x).map(([k, x]) => h('div', {}, h('dt', {}, h('bdi', {}, k)), h('dd', {}, h('bdi', {}, x)))));

// Shops of pages: ShopSim and WebShop

function pagedShop(w, ctx) {
  const page = w.page, legal = n => w.legal.includes(n), search = ctx.family === 'webshop' ? 'search' : 'search_products';
  const go = async query => { if (query && (legal(search) || await ctx.act(call('back_to_search')))) await ctx.act(call(search, { query })); };
  const head = searchForm(ctx, { label: t('search.words'), value: page.query ?? w.asked?.query ?? '', go });
  const body = { search_results: resultPage, product_detail: productPage, information_subpage: subPage }[page.page_type];
  return [head, body ? body(page, w, ctx, legal) : nothing(t('search.start'))];
}

function resultPage(page, w, ctx, legal) {
  if (!page.products.length) return nothing(t('search.empty'));
  return [h('h2', { tabindex: -1, 'data-key': 'head' }, t('search.found', { total: page.total_results, page: page.page, pages: page.total_pages })),
    h('ul', { class: 'cards' }, page.products.map(p => card(p, p.asin, ctx, asin => ctx.act(call('open_product', { asin }))))),
    h('nav', { class: 'pager', 'aria-label': t('search.results') }, legal('prev_page') && button(t('search.prev'), () => ctx.act(call('prev_page')), ctx), legal('next_page') && button(t('search.next'), () => ctx.act(call('next_page')), ctx, { 'data-key': 'more' }))];
}

function productPage(page, w, ctx, legal) {
  const p = page.product, open = Object.keys(page.available_options).filter(a => !page.selected_options[a] && page.available_options[a].length);
  const read = ['description', 'features', 'reviews', 'attributes'].filter(s => legal(`view_${s}`) || legal('view'));
  return [legal('prev_page') && button(`← ${t('product.back')}`, () => ctx.act(call('prev_page')), ctx, { class: 'quiet', 'data-key': 'back' }),
    h('article', { class: 'product' }, h('div', { class: 'lead' }, tile(p.title), h('div', {}, h('h2', { tabindex: -1, 'data-key': 'head' }, name(p.title)), crumbs(p.category), h('p', { class: 'dim' }, h('bdi', {}, [p.brand, p.shop].filter(Boolean).join(' · '))), h('p', { class: 'price big', 'data-price': '' }, h('bdi', {}, page.selected_price ?? p.price)))),
      Object.entries(page.available_options).map(([axis, values]) => optionGroup(axis, values, page, ctx)),
      h('div', { class: 'buy' }, legal('buy_now') && button(t('product.buy'), () => ctx.act(call('buy_now')), ctx, { class: `${open.length ? '' : 'main'}${ctx.next?.name === 'buy_now' ? ' next' : ''}`, 'data-key': 'buy' }), open.length ? h('p', { class: 'hint' }, t('product.choose', { what: open.join(', ') })) : null),
      read.length ? h('p', { class: 'read' }, h('span', { class: 'dim' }, t('product.read')), read.map(s => button(t(`sub.${s}`), () => ctx.act(ctx.family === 'webshop' ? call('view', { section: s }) : call(`view_${s}`)), ctx, { class: `quiet${ctx.next?.name === `view_${s}` || isNext(ctx, s) ? ' next' : ''}`, 'data-key': `read ${s}` }))) : null,
      table(Object.entries(p.attributes ?? {})))];
}

function optionGroup(axis, values, page, ctx) {
  const picked = page.selected_options[axis], args = value => ctx.family === 'webshop' ? call('choose_option', { value, group: axis }) : call('select_option', { value });
  return h('fieldset', { class: 'options' }, h('legend', {}, h('bdi', {}, axis)), values.map(o => h('button', { type: 'button', 'aria-pressed': String(o.value === picked), 'data-key': `option ${axis} ${o.value}`, class: isNext(ctx, o.value) ? 'next' : null,
    disabled: !ctx.live || !o.available, title: o.available ? null : t('product.soldout'), onclick: () => ctx.act(args(o.value)) }, h('bdi', {}, o.value), o.price ? h('small', {}, ' ', o.price) : null, o.available ? null : h('small', {}, ' ', t('product.soldout')))),
  page.more?.[axis] ? h('p', { class: 'dim' }, t('product.more', { n: page.more[axis] })) : null);
}

function subPage(page, w, ctx, legal) {
  return [legal('prev_page') && button(`← ${t('product.up')}`, () => ctx.act(call('prev_page')), ctx, { class: 'quiet', 'data-key': 'back' }),
    h('article', { class: 'product' }, h('h2', { tabindex: -1, 'data-key': 'head' }, word('sub', page.subpage)), page.content.length ? page.content.map(x => h('p', { dir: 'auto' }, x)) : nothing(t('product.empty')))];
}

// Shops of tools: ShoppingBench and EcomRLVE

const TOOLS = { shoppingbench: { search: 'find_product', open: 'view_product' }, ecomrlve: { search: 'catalog_search', open: 'catalog_get' } };

function toolShop(w, ctx) {
  const tabs = ctx.family === 'ecomrlve' ? ['search', 'cart', 'orders', 'terms'] : ['search', 'facts'], at = ctx.tab ?? w.tab, shown = at === 'product' ? 'search' : at;
  const body = { search: searchTab, product: productTab, facts: factsTab, cart: cartTab, orders: ordersTab, terms: termsTab }[at];
  return [h('nav', { class: 'tabs' }, tabs.filter(x => x !== 'facts' || !ctx.tools || ctx.tools.some(f => f.name === 'web_search')).map(x => h('button', { type: 'button', 'aria-current': x === shown ? 'page' : null, 'data-key': `tab ${x}`, disabled: !ctx.live, onclick: () => ctx.show(x) },
    x === 'cart' && w.cart.length ? t('cart.n', { n: w.cart.length }) : t(x)))), body(w, ctx)];
}

function finder(w, ctx) { // the search box and its filters
  const tools = TOOLS[ctx.family], last = w.asked ?? {}, enums = ctx.tools?.find(f => f.name === tools.search)?.parameters.properties ?? {};
  const go = (query, form) => {
    const [from, to] = [form.get('from') ?? '', form.get('to') ?? ''], args = { query };
    if (from || to) args.price = `${from}-${to}`;
    for (const k of ['shop', 'service', 'sort']) if (form.get(k) && form.get(k) !== 'default') args[k] = form.get(k);
    if (query || Object.keys(args).length > 1) ctx.act(call(tools.search, args));
  };
  const [from, to] = String(last.price ?? '-').split('-'), text = (key, label, value, props = {}) => field(label, h('input', { name: key, value: value ?? '', disabled: !ctx.live, 'data-key': `filter ${key}`, ...props }));
  const more = h('details', { class: 'filters', open: !!(last.price || last.shop || last.service || last.sort) }, h('summary', {}, t('search.filters')), h('div', { class: 'fields' },
    text('from', t('search.from'), from, { inputmode: 'decimal', class: 'short' }), text('to', t('search.to'), to, { inputmode: 'decimal', class: 'short' }),
    'shop' in enums && text('shop', t('search.seller'), last.shop), 'service' in enums && text('service', t('search.services'), last.service),
    field(t('search.sort'), h('select', { name: 'sort', disabled: !ctx.live, 'data-key': 'filter sort' }, ['default', 'priceasc', 'pricedesc', 'order'].map(x => h('option', { value: x, selected: x === last.sort }, t(`sort.${x}`)))))));
  return searchForm(ctx, { label: t('search.words'), value: last.query ?? '', go, more });
}

function searchTab(w, ctx) {
  const tools = TOOLS[ctx.family], r = w.results, open = id => ctx.act(call(tools.open, { products: id })), turn = page => ctx.act(call(tools.search, { ...w.asked, page }));
  return [finder(w, ctx), ctx.family === 'ecomrlve' && button(t('search.history'), () => ctx.act(call('visit_history')), ctx, { class: `quiet${ctx.next?.name === 'visit_history' ? ' next' : ''}`, 'data-key': 'history' }),
    !r ? nothing(t('search.start')) : !r.products.length ? nothing(t('search.empty')) : [h('h2', { tabindex: -1, 'data-key': 'head' }, r.page_type === 'results' ? r.total ? t('search.found', { total: r.total, page: r.page, pages: r.pages }) : t('search.page', { page: r.page, pages: r.pages }) : t(r.page_type === 'history' ? 'search.history' : 'search.ranked')),
      h('ul', { class: 'cards' }, r.products.map(p => card(p, p.name, ctx, open))),
      w.asked && h('nav', { class: 'pager', 'aria-label': t('search.results') }, r.page > 1 && button(t('search.prev'), () => turn(r.page - 1), ctx), r.page < r.pages && button(t('search.next'), () => turn(r.page + 1), ctx, { 'data-key': 'more' }))]];
}

function productTab(w, ctx) {
  return [finder(w, ctx), w.results && button(`← ${t('product.back')}`, () => ctx.show('search'), ctx, { class: 'quiet', 'data-key': 'back' }), (w.products ?? []).map((p, i) => h('article', { class: 'product' },
    h('div', { class: 'lead' }, tile(p.title), h('div', {}, h('h2', { tabindex: -1, 'data-key': i ? `head ${i}` : 'head' }, name(p.title)), crumbs(p.category), h('p', { class: 'dim' }, h('bdi', {}, [p.brand, p.shop].filter(Boolean).join(' · '))), chips(p.services))),
    h('h3', {}, [t('product.variants'), p.axes.length ? `: ${p.axes.join(' / ')}` : '']),
    h('ul', { class: 'variants' }, (p.variants.length ? p.variants : [{ number: 0, values: [], price: w.known.get(p.name)?.price ?? '', available: true }]).map(v => variantRow(p, v, ctx))),
    p.content?.length ? h('ul', { class: 'points' }, p.content.map(x => h('li', { dir: 'auto' }, x))) : null, table(Object.entries(p.attributes ?? {}))))];
}

function variantRow(p, v, ctx) {
  const id = v.number ? `${p.name}#${v.number}` : p.name, chosen = ctx.draft?.products.find(x => x.id === p.name && x.number === v.number), off = { disabled: !ctx.live || !v.available };
  return h('li', { class: isNext(ctx, id) || ctx.next && Object.values(ctx.next.args ?? {}).some(x => String(x).split(/[,*]/).includes(id)) ? 'next' : null }, h('span', { class: 'values' }, h('bdi', {}, v.values.length ? v.values.map(x => x || '–').join(', ') : t('product.one'))), h('bdi', { class: 'price' }, v.price), v.available ? null : h('span', { class: 'dim' }, t('product.soldout')),
    h('span', { class: 'do' }, ctx.family === 'shoppingbench' ? button(chosen ? t('product.inbasket', { n: chosen.quantity }) : t('product.basket'), () => ctx.add(p, v), ctx, { ...off, 'aria-pressed': chosen ? 'true' : null, 'data-key': `add ${id}` }) : [
      button(t('product.cart'), () => ctx.act(call('cart_add', { product: id })), ctx, { ...off, 'data-key': `add ${id}` }),
      button(t(chosen ? 'product.answered' : 'product.answer'), () => ctx.add(p, v), ctx, { 'aria-pressed': String(!!chosen), 'data-key': `answer ${id}` })]));
}

function factsTab(w, ctx) {
  return [searchForm(ctx, { label: t('facts.words'), key: 'web', submit: t('facts.find'), go: query => query && ctx.act(call('web_search', { query })) }),
    w.code ? panel(t('code'), 'code', h('pre', {}, w.code.output, w.code.error)) : !w.web ? nothing(t('facts.start')) : !w.web.length ? nothing(t('facts.none')) : h('ul', { class: 'texts' }, w.web.map(r => h('li', {}, h('h3', {}, name(r.title)), h('p', { dir: 'auto' }, r.content))))];
}

const knownTitle = (w, id) => { const p = w.known.get(id); return p?.title ?? id; };
const variantOf = (w, id, number) => w.known.get(id)?.variants?.find(v => v.number === number)?.values.join(', ') ?? (number ? `#${number}` : '');

function cartTab(w, ctx) {
  const rows = w.cart.map(x => {
    const pieces = h('input', { type: 'number', min: 1, max: 99, value: x.quantity, 'aria-label': t('basket.pieces'), 'data-key': `pieces ${x.line}`, disabled: !ctx.live });
    return h('li', {}, tile(knownTitle(w, x.product)), h('span', { class: 'what' }, name(knownTitle(w, x.product)), h('span', { class: 'dim' }, h('bdi', {}, variantOf(w, x.product, x.number)))), h('bdi', { class: 'price' }, x.price), h('span', { class: 'do' }, pieces,
      button(t('cart.set'), () => ctx.act(call('cart_set', { line: x.line, quantity: Number(pieces.value) })), ctx), button(t('basket.remove'), () => ctx.act(call('cart_remove', { line: x.line })), ctx, { 'data-key': `out ${x.line}` })));
  });
  return [h('h2', { tabindex: -1, 'data-key': 'head' }, t('cart')), rows.length ? h('ul', { class: 'lines' }, rows) : nothing(t('cart.empty')), button(t('cart.look'), () => ctx.act(call('cart_view')), ctx, { class: 'quiet', 'data-key': 'cart look' })];
}

function ordersTab(w, ctx) {
  const list = button(t('orders.list'), () => ctx.act(call('order_list')), ctx, { class: `${w.orders ? 'quiet' : 'main'}${ctx.next?.name === 'order_list' ? ' next' : ''}`, 'data-key': 'orders' });
  if (!w.orders && !w.order) return [nothing(t('orders.start')), list];
  const shown = w.order ? [w.order] : w.orders;
  return [list, h('h2', { tabindex: -1, 'data-key': 'head' }, t('orders')), h('p', { class: 'dim' }, t('orders.today', { date: w.today })), shown.length ? shown.map(o => orderCard(o, w, ctx)) : nothing(t('orders.none'))];
}

function orderCard(o, w, ctx) {
  const dates = [o.placed && t('orders.placed', { date: o.placed }), o.delivered && t('orders.delivered', { date: o.delivered }), o.eta && !o.delivered && t('orders.eta', { date: o.eta })].filter(Boolean).join(' · ');
  return h('article', { class: `order${isNext(ctx, o.order) ? ' next' : ''}` }, h('h3', {}, o.order, ' ', h('span', { class: 'badge' }, o.status)), h('p', { class: 'dim' }, dates),
    h('ul', { class: 'lines' }, o.lines.map(x => orderLine(o, x, w, ctx))),
    h('p', { class: 'do' }, !w.order && button(t('orders.open'), () => ctx.act(call('order_get', { order: o.order })), ctx, { 'data-key': `order ${o.order}` }),
      button(t('orders.answer'), () => ctx.fill({ order: o.order, status: o.status, date: o.delivered || o.eta || '', line: '' }), ctx, { 'data-key': `tell ${o.order}` })));
}

function orderLine(o, x, w, ctx) {
  const at = { order: o.order, line: x.line }, key = `${o.order} ${x.line}`, checked = w.checked[key], enums = n => ctx.tools?.find(f => f.name === 'return_initiate')?.parameters.properties[n]?.enum ?? [];
  const send = e => { e.preventDefault(); const f = new FormData(e.target), how = { ...at, reason: f.get('reason'), method: f.get('method') }; ctx.act(f.get('product') ? call('return_replace', { ...how, product: f.get('product') }) : call('return_initiate', how)); };
  const choose = (n, label) => field(label, h('select', { name: n, required: true, disabled: !ctx.live, 'data-key': `${n} ${key}` }, h('option', { value: '' }, '…'), enums(n).map(v => h('option', { value: v }, v))));
  const swaps = [...w.known.values()].flatMap(p => (p.variants ?? []).filter(v => v.available).map(v => [`${p.name}#${v.number}`, `${p.title.slice(0, 50)}: ${v.values.join(', ')} ${v.price}`]));
  return h('li', {}, tile(x.title), h('span', { class: 'what' }, name(x.title), h('span', { class: 'dim' }, `${x.line} · ${x.quantity} ×`)), h('bdi', { class: 'price' }, x.price),
    w.returned.has(key) ? h('span', { class: 'badge good' }, t('orders.sent')) : !checked ? button(t('orders.check'), () => ctx.act(call('return_check', at)), ctx, { 'data-key': `check ${key}` })
      : checked.ok ? h('form', { class: 'fields sending', onsubmit: send }, h('p', { class: 'good' }, t('orders.yes', checked)), choose('reason', t('orders.reason')), choose('method', t('orders.method')),
        field(t('orders.swap'), h('select', { name: 'product', disabled: !ctx.live, 'data-key': `swap ${key}` }, h('option', { value: '' }, t('orders.nothing')), swaps.map(([v, label]) => h('option', { value: v }, label)))), h('button', { type: 'submit', class: 'main', 'data-key': `send ${key}`, disabled: !ctx.live }, t('orders.send')))
        : h('span', { class: 'do' }, h('span', { class: 'bad' }, t('orders.no'), ': ', h('bdi', {}, checked.why)), button(t('orders.refuse'), () => ctx.fill({ ...at, status: 'refused', date: '' }), ctx, { 'data-key': `refuse ${key}` })));
}

function termsTab(w, ctx) {
  return [searchForm(ctx, { label: t('terms.words'), key: 'term', submit: t('terms.find'), go: query => query && ctx.act(call('terms_search', { query })) }),
    !w.terms ? nothing(t('terms.start')) : !w.terms.length ? nothing(t('terms.none')) : h('ul', { class: 'texts' }, w.terms.map(x => h('li', {}, h('h3', {}, x.title), h('p', { dir: 'auto' }, x.text))))];
}

// Beside the shop

function basketPanel(w, ctx) {
  const d = ctx.draft, picks = d.products.map(x => x.id + (x.number ? `#${x.number}` : '') + (x.quantity > 1 ? `*${x.quantity}` : '')).join(','), args = () => ({ products: picks, ...(d.vouchers.trim() ? { vouchers: d.vouchers.trim() } : {}) });
  const key = `${picks}/${d.vouchers.trim()}`, codes = vouchersIn(w.requests[0]), entered = d.vouchers.split(',').map(x => x.trim()).filter(Boolean), money = minor => `${w.sum.sign}${(minor / 100).toFixed(2)}`;
  const toggle = code => ctx.change(() => { d.vouchers = (entered.includes(code) ? entered.filter(x => x !== code) : [...entered, code]).join(', '); });
  const lines = d.products.map((x, i) => h('li', {}, h('span', { class: 'what' }, name(x.title), h('span', { class: 'dim' }, h('bdi', {}, x.values), ' ', h('bdi', {}, x.price))), h('span', { class: 'do' },
    h('input', { type: 'number', min: 1, max: 99, value: x.quantity, 'aria-label': t('basket.pieces'), 'data-key': `pieces ${i}`, onchange: e => ctx.change(() => { x.quantity = Math.min(99, Math.max(1, Number(e.target.value) || 1)); }) }), button(t('basket.remove'), () => ctx.change(() => d.products.splice(i, 1)), ctx, { class: 'quiet', 'data-key': `out ${i}` }))));
  const said = w.recommended?.key === key;
  return panel(t('basket'), 'basket', lines.length ? h('ul', { class: 'lines' }, lines) : nothing(t('basket.empty')),
    lines.length && codes.length ? h('fieldset', { class: 'options' }, h('legend', {}, t('basket.vouchers')), codes.map(([code, text]) => h('button', { type: 'button', class: 'wide', 'aria-pressed': String(entered.includes(code)), 'data-key': `voucher ${code}`, onclick: () => toggle(code) }, h('bdi', {}, text)))) : null,
    lines.length ? field(t('basket.codes'), h('input', { value: d.vouchers, 'data-key': 'codes', onchange: e => ctx.change(() => { d.vouchers = e.target.value; }) })) : null,
    w.sum?.key === key ? h('dl', { class: 'sum' }, [['basket.list', w.sum.list], ['basket.off', w.sum.discount], ['basket.pay', w.sum.pay]].map(([k, x]) => h('div', {}, h('dt', {}, t(k)), h('dd', {}, money(x)))), h('div', { class: 'dim' }, /within|over/.test(w.text) ? w.text.split(', ').pop() : '')) : null,
    lines.length ? h('p', { class: 'do' }, button(t('basket.sum'), () => ctx.act(call('calculate_voucher', args())), ctx, { 'data-key': 'sum' }), !said && button(t('basket.recommend'), () => ctx.act(call('recommend_product', args())), ctx, { class: 'main', 'data-key': 'recommend' })) : null,
    w.recommended ? h('p', { class: said ? 'good' : 'hint' }, said ? [`✓ ${t('basket.recommended')}: `, h('bdi', {}, w.recommended.text.replace(/^noted: /, ''))] : t('basket.old')) : null,
    w.recommended && button(t('basket.finish'), () => ctx.act(call('terminate', { status: 'success' })), ctx, { class: 'main', 'data-key': 'finish' }));
}

export const vouchersIn = text => [...(text ?? '').matchAll(/^([A-Z][A-Z0-9_-]{0,19}): (.+)$/gm)].map(m => [m[1], m[0]]);

function chatPanel(w, ctx) {
  const input = h('input', { name: 'ask', 'data-key': 'ask', 'aria-label': t('chat.words'), placeholder: t('chat.words'), required: true, maxlength: 400, autocomplete: 'off', disabled: !ctx.live });
  return panel(t('chat'), 'chat', h('ol', { class: 'talk' }, w.chat.slice(1).map(([who, text]) => h('li', { class: who }, h('span', { class: 'who' }, t(who === 'agent' ? ctx.live ? 'chat.you' : 'chat.agent' : 'chat.shopper')), h('p', { dir: 'auto' }, text)))),
    w.legal.includes('ask_shopper') ? h('form', { class: 'bar', onsubmit: e => { e.preventDefault(); if (input.value.trim()) ctx.act(call('ask_shopper', { question: input.value.trim() })); } }, input, h('button', { type: 'submit', disabled: !ctx.live }, t('chat.send'))) : null);
}

function answerPanel(w, ctx) {
  const d = ctx.draft, f = d.fields, statuses = ctx.tools?.find(x => x.name === 'answer')?.parameters.properties.status.enum ?? [''];
  const products = d.products.map(x => x.id + (x.number ? `#${x.number}` : '')).join(','), filled = Object.entries({ products, ...f }).filter(([, x]) => x), give = () => ctx.act(call('answer', Object.fromEntries(filled)));
  const text = (k, props = {}) => field(t(`answer.${k}`), h('input', { value: f[k] ?? '', 'data-key': `field ${k}`, oninput: e => { const was = ctx.empty(); f[k] = e.target.value.trim(); if (was !== ctx.empty()) ctx.change(() => {}); }, ...props }));
  const chosen = d.products.map((x, i) => h('li', {}, h('span', { class: 'what' }, name(x.title), h('span', { class: 'dim' }, h('bdi', {}, x.values), ' ', h('bdi', {}, x.price))), button('×', () => ctx.change(() => d.products.splice(i, 1)), ctx, { class: 'quiet', 'aria-label': t('answer.remove'), 'data-key': `not ${i}` })));
  return panel(t('answer'), 'answer', d.products.length ? h('ul', { class: 'lines' }, chosen) : h('p', { class: 'dim' }, `${t('answer.products')}: ${t('answer.noproducts')}`),
    h('details', { class: 'fields-of', open: Object.values(f).some(Boolean) || ctx.moreFields, ontoggle: e => ctx.remember(e.target.open) }, h('summary', { 'data-key': 'fields' }, t('answer.more')), h('div', { class: 'fields' }, text('order'), text('line', { class: 'short' }),
      field(t('answer.status'), h('select', { 'data-key': 'field status', onchange: e => ctx.change(() => { f.status = e.target.value; }) }, statuses.map(x => h('option', { value: x, selected: x === (f.status ?? '') }, x || '–')))), text('date', { placeholder: '2026-03-31' }), text('value', { inputmode: 'decimal' }))),
    filled.length ? button(t('answer.give'), give, ctx, { class: 'main', 'data-key': 'give' }) : w.cart.length || w.returned.size ? button(t('answer.cart'), give, ctx, { class: 'main', 'data-key': 'give' }) : sure(t('answer.none'), t('answer.sure'), give, ctx, { class: 'quiet', 'data-key': 'give' }));
}

function toolDrawer(w, ctx) { // every action in its plainest form, made from its schema
  const form = f => h('form', { class: 'fields tool', onsubmit: e => { e.preventDefault(); const args = {}; for (const [k, p] of Object.entries(f.parameters.properties)) { const x = e.target.elements[k].value; if (x !== '' || f.parameters.required.includes(k)) args[k] = { integer: Number, number: Number, boolean: y => y === 'true' }[p.type]?.(x) ?? x; } ctx.act(call(f.name, args)); } },
    h('p', {}, h('code', {}, f.name), ' ', h('span', { class: 'dim' }, f.description)), Object.entries(f.parameters.properties).map(([k, p]) => field(h('code', { title: p.description }, k), p.enum ? h('select', { name: k }, p.enum.map(x => h('option', { value: x }, x || '–'))) : (p.maxLength ?? 0) > 1000 ? h('textarea', { name: k, rows: 4 }) : h('input', { name: k, type: p.type === 'integer' ? 'number' : 'text' }))),
    h('button', { type: 'submit', 'data-key': `tool ${f.name}` }, t('tools.run')));
  return h('details', { class: 'panel drawer', open: !KNOWN[ctx.family] }, h('summary', {}, t('tools')), ctx.tools.filter(f => w.legal.includes(f.name)).map(form));
}

export const logList = (moves, known, now, jump) => h('ol', { class: 'log' }, moves.slice(1).map((m, i) => h('li', { class: m.observation.error ? 'bad' : null, 'aria-current': i + 1 === now ? 'step' : null }, jump ? h('button', { type: 'button', 'data-key': `at ${i + 1}`, onclick: () => jump(i + 1) }, h('bdi', {}, describe(m.action, known))) : h('bdi', {}, describe(m.action, known)))));

// The whole shop: what goes into the middle, and what stands beside it

export function shopView(w, ctx) {
  if (w.plain) return [[h('p', { class: 'hint' }, t('watch.text')), h('pre', { class: 'agent' }, w.text)], []];
  const kind = KNOWN[ctx.family];
  const middle = kind === 'paged' ? pagedShop(w, ctx) : kind === 'tools' ? toolShop(w, ctx) : [h('pre', { class: 'agent' }, w.text)];
  const alarm = w.error ? h('p', { class: 'alarm', role: 'alert' }, h('bdi', {}, w.error)) : null;
  const side = [w.talks && chatPanel(w, ctx), ctx.live && ctx.family === 'shoppingbench' && basketPanel(w, ctx), !ctx.live && w.recommended && panel(t('basket.recommended'), 'basket', h('p', { class: 'good' }, h('bdi', {}, w.recommended.key), h('br'), h('bdi', {}, w.recommended.text))), ctx.live && ctx.family === 'ecomrlve' && answerPanel(w, ctx),
    ctx.live && toolDrawer(w, ctx)].filter(Boolean);
  return [[alarm, ...middle].filter(Boolean), side];
}
