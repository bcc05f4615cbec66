"The page in a real browser: an episode of every family by clicks and keys, graded as at home; nothing told before the end; hostile titles, phones, colours, languages."
import copy, json, re, threading
from dataclasses import replace
from pathlib import Path
import pytest
for extra in ('starlette', 'uvicorn', 'websockets'): pytest.importorskip(extra, reason='the server needs its extra: pip install -c constraints.txt -e ".[serve]"')
import uvicorn
from browser import browser # noqa: F401, the fixture
from talkfiles import shop # noqa: F401, the fixture
from shopping_grpo.catalog import Product, Variant
from shopping_grpo.core import DataError
from shopping_grpo.envs.ecomrlve import EcomRLVE
from shopping_grpo.envs.ecomrlve_goals import aim_of as talk_aim
from shopping_grpo.envs.shoppingbench import ShoppingBench
from shopping_grpo.envs.shoppingbench_build import requests_for
from shopping_grpo.envs.shoppingbench_goals import aim_of
from shopping_grpo.envs.shopsim import ShopSim
from shopping_grpo.envs.webshop import WebShop
from shopping_grpo.envs.webshop_shop import WebRequests
from shopping_grpo.request import Requests
from shopping_grpo.search import Tantivy, cut
from shopping_grpo.serve import Server, read_action
from shopping_grpo.serve_http import Connection, listen, make_app
from shopping_grpo.serve_page import Family, Watch, evidence, page, page_files, result
from shopping_grpo.sitting import player, sitting
from shopping_grpo.store import Run
from shopping_grpo.task import Constraint, Goal, Task

ROOT = Path(__file__).resolve().parents[1]
EVIL = '</script><script>window.hit=1</script><img src=x onerror="window.hit=2">\u202e"\'&amp;<!-- mug'
CANARY = 'zzcanary' # stands in goals and nowhere else


class Tape:
    "An app that keeps what went through it: (method, path, body sent, body answered)."
    def __init__(self, app): self.app, self.all = app, []

    async def __call__(self, scope, receive, send):
        if scope['type'] != 'http': return await self.app(scope, receive, send)
        sent, got = [], []
        async def hear():
            m = await receive()
            sent.append(m.get('body', b''))
            return m
        async def say(m):
            got.append(m.get('body', b''))
            await send(m)
        await self.app(scope, hear, say)
        self.all.append((scope['method'], scope['path'], b''.join(sent).decode(), b''.join(got).decode()))

    def actions(self): return [read_action(json.loads(sent)['action']) for _, path, sent, got in self.all if path.endswith('/step') and '"error":{' not in got]


class Few(dict):
    "A catalogue of a few products."
    __hash__, __eq__ = object.__hash__, object.__eq__

class Ranked:
    "An engine that finds everything."
    def __init__(self, catalog): self.catalog = catalog
    def search(self, query, k=20, page=1): return cut([(i, 1.0, 0) for i in self.catalog], k, page)


def hostile():
    "A shop whose seller writes markup into everything."
    p = Product(id='77', title=EVIL, lang='en', category=('Home', EVIL), brand=EVIL, shop=EVIL, model='', price=1900, axes=(EVIL,), stock=5, attributes=((EVIL, EVIL, True),), bullets=(EVIL,), description=EVIL, reviews=((5, EVIL),), features=(EVIL,),
        variants=(Variant('77-0', (EVIL,), 1900, 3), Variant('77-1', ('blue',), 2100, 1)))
    catalog = Few({'77': p})
    return ShopSim(catalog, Ranked(catalog)), [Task('shopsim', EVIL, Goal((Constraint('brand', EVIL), Constraint('option', 'blue', EVIL)), ('77-1',), '77', '77-1'), lang='en')]


@pytest.fixture(scope='module')
def site(tiny, tiny_engine, shop, tmp_path_factory):
    "All families in one server in a thread, with one recorded run."
    runs, market = tmp_path_factory.mktemp('runs'), shop.engine
    canary = lambda t: replace(t, goal=replace(t.goal, constraints=(*t.goal.constraints, Constraint('feature', CANARY, hard=False))))
    sim = ShopSim(tiny, tiny_engine)
    tasks = dict(shopsim=[canary(t) for t in Requests(tiny, seed=5, mix=dict(single=1, multi=1)).tasks('train', 6)], webshop=[canary(t) for t in WebRequests(shop.catalog, seed=5).tasks('train', 3)],
        shoppingbench=[requests_for(shop.catalog, 5, 'product').task('train', 1), next(t for n in range(9) if aim_of((t := requests_for(shop.catalog, 5, 'voucher').task('train', n)).goal).needed)],
        ecomrlve=[next(t for n in range(20) if talk_aim((t := shop.talks.at('train', n, 0, 'PD')).goal).parts[0].k == 1), next(t for n in range(30) if not (p := talk_aim((t := shop.talks.at('train', n, 1, 'RETURN')).goal).parts[0]).refuse and not p.wants)])
    envs = dict(shopsim=sim, webshop=WebShop(shop.catalog, Tantivy(shop.where/'index', shop.catalog)), shoppingbench=ShoppingBench(shop.catalog, market), ecomrlve=EcomRLVE(shop.catalog, market))
    desks = {n: Server(e, tasks[n], capacity=8) for n, e in envs.items()} | dict(hostile=Server(*hostile()))
    with Run.open('eval', 'rule', {}, [(t.key, 0) for t in tasks['shopsim'][:2]], root=runs) as run: sitting(run, player('rule', lambda: copy.copy(sim)), tasks['shopsim'])
    tape, sock = Tape(make_app(desks['shopsim'], guests=[page(desks, ('rule', 'oracle'), runs)])), listen('127.0.0.1', 0)
    server = uvicorn.Server(uvicorn.Config(tape, http=Connection, lifespan='on', log_level='warning'))
    thread = threading.Thread(target=server.run, kwargs=dict(sockets=[sock]), daemon=True)
    thread.start()
    yield dict(url=f'http://127.0.0.1:{sock.getsockname()[1]}/', tape=tape, desks=desks, envs=envs, runs=runs)
    server.should_exit = True; thread.join(30)


class Visitor:
    "Somebody at the page, in a language and at a width."
    def __init__(self, browser, site): self.b, self.site, self.narrow = browser, site, False

    def visit(self, family, task, width=1280, height=900, language='en', scheme='light'):
        self.b.emulate('clearDeviceMetricsOverride') if width == 1280 else self.b.emulate('setDeviceMetricsOverride', width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.narrow = width if width < 600 else 0
        self.b.media(prefers_color_scheme=scheme, prefers_reduced_motion='reduce')
        self.site['tape'].all.clear()
        self.b.open(self.site['url'], f'#{family}/{task}')
        if self.b.js("return document.documentElement.lang.slice(0, 2)") != language: self.b.click('#language')
        return self

    def settle(self):
        self.b.until("!document.querySelector('main').hasAttribute('aria-busy')")
        if self.narrow: assert self.b.js('return [document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]') == [self.narrow] * 3

    def find(self, key, must=True):
        found = self.b.js("return [...document.querySelectorAll('main [data-key]')].find(e => e.dataset.key === arguments[0] && !e.disabled)", key)
        assert found or not must, (key, self.b.js("return [...document.querySelectorAll('main [data-key]')].map(e => e.dataset.key)"))
        return found

    def press(self, key, by='click'): # by: click, or the key of the keyboard
        self.b.js("arguments[0].scrollIntoView({block: 'center'})", self.find(key)) # as a person does, when a bar is over it
        if by == 'click': self.b.press(self.find(key))
        else:
            self.b.js("arguments[0].focus()", self.find(key))
            self.b.keys(by)
        self.settle()

    def write(self, key, text, enter=True):
        self.b.js("arguments[0].value = ''", self.find(key))
        self.b.type(self.find(key), text.replace('\n', ' ') + ('\ue007' if enter else ''))
        self.settle()

    def choose(self, key, value): self.b.js("const [e, v] = arguments; e.value = v; e.dispatchEvent(new Event('change', {bubbles: true}))", self.find(key), value); self.settle()
    def active(self): return self.b.js('return document.activeElement.dataset.key')
    def word(self, n): return self.site['desks']['shopsim'].tasks[n].category.split(' › ')[-1] # that finds something
    def views(self): return self.b.js('return document.documentElement.dataset.view')

    def open(self, id): # on this page of results or a later one
        while not self.find(f'open {id}', False): self.press('more')
        self.press(f'open {id}')


@pytest.fixture
def visitor(browser, site):
    browser.log('browser')
    yield Visitor(browser, site)
    assert not [e for e in browser.log('browser') if e['level'] in ('SEVERE', 'WARNING')]


# one episode of each family, by somebody who knows what is right

def buy(v, env, task):
    p = env.catalog[task.goal.target]
    variant = next((x for x in p.variants if x.id in task.goal.accepted), None)
    v.write('q', p.title[:300])
    assert v.active() == 'head'
    v.open(p.id)
    names = env._shelf.card(p.id).names if task.env == 'shopsim' else None
    for axis, value in zip(p.axes, variant.values if variant else ()):
        label = names[axis, value] if names else next(l or s for a, _, values in env._stand.face(p.id).groups if a == axis for x, s, l in values if x == value)
        shown = env._shelf.card(p.id).axes[axis] if names else next(l for a, l, _ in env._stand.face(p.id).groups if a == axis)
        v.press(f'option {shown} {label}', 'enter')
        assert v.active() == f'option {shown} {label}' and v.b.js("return document.activeElement.getAttribute('aria-pressed')") == 'true'
    v.press('buy', 'space')

def recommend(v, env, task):
    aim = aim_of(task.goal)
    for w in aim.wants:
        p = env.catalog[w.target]
        v.write('q', p.title)
        v.open(p.id)
        number = [x.id for x in p.variants].index(w.target_variant) + 1
        for _ in range(w.quantity): v.press(f'add {p.id}#{number}')
    for key in aim.needed: v.press(f'voucher {key}')
    v.press('sum')
    v.press('recommend')
    v.press('finish')

def talk(v, env, task):
    part = talk_aim(task.goal).parts[0]
    v.write('ask', 'Anything else?')
    if part.kind == 'PD':
        p = env.catalog[part.wants[0].target]
        v.write('q', p.title)
        v.open(p.id)
        v.press(f"answer {p.id}#{[x.id for x in p.variants].index(part.wants[0].target_variant) + 1}")
    else:
        at = f'{part.order} {part.line}'
        v.press('tab orders'); v.press('orders'); v.press(f'check {at}')
        v.choose(f'reason {at}', part.reason); v.choose(f'method {at}', part.method)
        v.press(f'send {at}')
    v.press('give')

EPISODES = [('shopsim', 0, buy, 1280), ('webshop', 0, buy, 390), ('shoppingbench', 0, recommend, 1280), ('shoppingbench', 1, recommend, 390), ('ecomrlve', 0, talk, 390), ('ecomrlve', 1, talk, 1280)]

@pytest.mark.parametrize('family, n, way, width', EPISODES)
def test_an_episode_by_clicks_and_keys(visitor, site, family, n, way, width):
    "Finished in the browser; the same actions at home give the same grades; no answer before the end holds a word of the goal."
    env, task, tape = copy.copy(site['envs'][family]), site['desks'][family].tasks[n], site['tape']
    visitor.visit(family, n, width)
    visitor.press('start', 'enter')
    assert visitor.b.text('.asked p') in (env.reset(task).text, ' '.join(task.prompt.split()))
    way(visitor, site['envs'][family], task)
    assert visitor.views() == 'end'
    first = env.reset(task)
    for a in tape.actions(): step = env.step(a)
    r, shown = env.score(), visitor.b.js("return {...document.querySelector('.verdict').dataset}")
    assert step.done and r.kind == shown['kind'] == 'success' and float(shown['value']) == r.value == 1
    told = next(json.loads(got) for _, path, _, got in tape.all if path.endswith('/result'))
    assert told['reward']['value'] == r.value and told['native']['value'] == env.score_native().value and not site['desks'][family].sessions
    before = [got for _, path, _, got in tape.all if not path.endswith('/result')]
    secret = [*task.goal.accepted, task.goal.target_variant, CANARY, 'accepted', 'target', 'constraints']
    assert len(before) > 5 and first.text and not [x for x in secret if x and any(f'"{x}' in got for got in before)]


def test_a_wrong_purchase_is_explained(visitor, site):
    "Which wish failed and why, and what is right: only afterwards."
    task, tape = site['desks']['shopsim'].tasks[1], site['tape']
    right = {site['envs']['shopsim'].catalog[a.rsplit('-', 1)[0]].id for a in task.goal.accepted}
    visitor.visit('shopsim', 1).press('start')
    visitor.write('q', visitor.word(1))
    wrong = visitor.b.js("return [...document.querySelectorAll('.card .open')].map(e => e.dataset.key).find(k => !arguments[0].includes(k.slice(5)))", sorted(right))
    visitor.press(wrong); visitor.press('buy')
    assert visitor.views() == 'end' and visitor.b.js("return document.querySelector('.verdict').dataset.kind") in ('wrong_purchase', 'partial_purchase')
    assert len(visitor.b.texts('.wishes tbody tr')) == len(task.goal.constraints) and visitor.b.texts('.wishes .missed') and visitor.b.texts('.rights .title')
    shown = json.loads(next(got for _, path, _, got in tape.all if path.endswith('/result')))
    assert {x['id'] for x in shown['parts'][0]['wants'][0]['right']} <= right
    visitor.press('again'); visitor.press('giveup')
    assert visitor.views() == 'shop' # it asks back
    visitor.press('giveup')
    assert visitor.views() == 'end' and visitor.b.js("return document.querySelector('.verdict').dataset.kind") == 'early_abstain'


def test_hostile_titles_stay_text(visitor):
    "Markup, quotes and marks of direction in every text of a seller and in the request: nothing runs, nothing is drawn as markup, and the episode can be finished."
    visitor.visit('hostile', 0).press('start')
    inert = "return [window.hit ?? 0, document.querySelectorAll('main script, main img, body > script').length, document.querySelectorAll('[onerror]').length]"
    assert visitor.b.js(inert) == [0, 0, 0]
    visitor.write('q', '"><img src=x onerror=window.hit=3>')
    visitor.press('open 77')
    title = visitor.b.text('.product .title')
    assert 'window.hit=1' in title and '<' not in title and '\u202e' not in title and visitor.b.js(inert) == [0, 0, 0]
    for part in ('description', 'features', 'reviews', 'attributes'): visitor.press(f'read {part}'); visitor.press('back')
    visitor.b.click('.options button:nth-of-type(2)'); visitor.settle()
    visitor.press('buy')
    assert visitor.b.js("return document.querySelector('.verdict').dataset.kind") == 'success' and 'window.hit=1' in visitor.b.text('.offer .title') and visitor.b.js(inert) == [0, 0, 0]


def test_watch_compare_and_replay(visitor, site):
    "A policy step by step with keys, beside one's own episode, and a recorded one; one position for all."
    v = visitor.visit('shopsim', 0)
    v.press('recorded')
    row = next(Run.load(site['runs']/'eval'/'rule').episodes())
    v.press('recorded eval/rule 0')
    if v.b.js("return document.querySelector('[data-key=play]').getAttribute('aria-label')") == 'Pause': v.press('play')
    v.b.keys('home')
    assert v.b.text('.count') == f"0 / {row['n_steps'] + 1}" and len(v.b.texts('.log li')) == row['n_steps'] and v.active() == 'play'
    v.b.keys('right', 'right')
    assert v.b.text('.count').startswith('2 / ') and v.b.js("return document.querySelector('.log [aria-current=step]').textContent") == v.b.texts('.log li')[1]
    v.b.js("document.activeElement.blur()"); v.b.keys('space')
    v.b.until("document.querySelector('.count').textContent.startsWith('3 / ')")
    v.b.keys('space', 'end')
    assert v.b.js("return document.querySelector('.verdict').dataset.kind") == row['reward']['kind'] and float(v.b.js("return document.querySelector('.verdict').dataset.value")) == row['reward']['value']
    v.press('self'); v.write('q', v.word(0)); v.press('giveup'); v.press('giveup')
    v.choose('who', 'oracle'); v.press('compare')
    v.b.until("document.querySelectorAll('.lane').length == 2 && !document.querySelector('.lanes').textContent.includes('thinking')")
    v.b.keys('end')
    v.b.until("document.querySelectorAll('.verdict').length == 2")
    assert v.b.texts('.lane h3')[0] == 'You' and v.b.js("return [...document.querySelectorAll('.verdict')].map(e => e.dataset.kind)") == ['early_abstain', 'success']
    assert v.b.js("return document.querySelectorAll('.still button:not(:disabled)').length") == 0


CONTRAST = r"""
const rgb = c => { const m = /^rgba?\(([\d.]+), ([\d.]+), ([\d.]+)(?:, ([\d.]+))?\)$/.exec(c); if (!m) throw new Error(c); return [...m.slice(1, 4).map(Number), m[4] == null ? 1 : Number(m[4])]; };
const light = c => { const [r, g, b] = c.slice(0, 3).map(x => { x /= 255; return x <= .04045 ? x / 12.92 : ((x + .055) / 1.055) ** 2.4; }); return .2126 * r + .7152 * g + .0722 * b; };
const ground = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c[3]) return c; } return [255, 255, 255, 1]; };
const low = [];
for (const e of document.querySelectorAll('body *')) {
  const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()), s = getComputedStyle(e);
  if (!own || !e.checkVisibility() || e.closest('.hidden, .skip, :disabled, option') || e.closest('[inert]')) continue;
  const a = light(rgb(s.color)), b = light(ground(e)), ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05), big = parseFloat(s.fontSize) >= 24 || parseFloat(s.fontSize) >= 18.66 && s.fontWeight >= 700;
  if (ratio < (big ? 3 : 4.5)) low.push([e.textContent.slice(0, 30), s.color, ratio.toFixed(2)]);
}
return low;"""

FOREIGN = r"""
const [words, same] = arguments, out = [], skip = 'bdi, [dir=auto], pre, code, option, .brand, #language, .crumbs';
const one = (text, e) => { const x = text.replace(/^[←✓✗|\s]+/, '').trim(); if (x && words.some(w => new RegExp(`^${w}$`).test(x)) && !same.includes(x)) out.push(x); };
for (const e of document.querySelectorAll('body *')) {
  if (e.closest('noscript, script, style')) continue;
  if (!e.closest(skip)) for (const n of e.childNodes) if (n.nodeType === 3) one(n.data, e);
  for (const a of ['aria-label', 'placeholder', 'title']) if (e.hasAttribute(a)) one(e.getAttribute(a), e);
}
return [...new Set(out)];"""


def words(b): return b.send('/execute/async', script="const done = arguments[arguments.length - 1]; import('/page/shop_words.js').then(m => done(m.WORDS))", args=[])

def test_both_languages_have_every_string(visitor):
    "The same keys, the same blanks; what the code asks for is there, and what is there is asked for."
    visitor.visit('shopsim', 0)
    w = words(visitor.b)
    blanks = lambda text: sorted(re.findall(r'\{(\w+)\}', text))
    assert w['en'].keys() == w['zh'].keys() and all(blanks(w['en'][k]) == blanks(w['zh'][k]) for k in w['en'])
    alike = {k for k in w['en'] if w['en'][k] == w['zh'][k]}
    assert {k for k in w['zh'] if not re.search('[\u4e00-\u9fff]', w['zh'][k])} - alike <= {'other_language'} and alike <= {'brand', 'op.eq', 'watch.step', 'say.call', 'shop.shopsim', 'shop.webshop', 'shop.shoppingbench', 'shop.ecomrlve'}
    code = ''.join(content.decode() for name, (content, _) in page_files().items() if name != 'shop_words.js')
    asked = set(re.findall(r"'([a-z_]+(?:\.[a-zA-Z_]+)*)'", code)) | set(re.findall(r'data-t="([^"]+)"', code))
    families = set(re.findall(r"(?:word\('|t\(`)([a-z]+)", code)) | {'kind', 'fact'}
    assert not [k for k in re.findall(r"\bt\('([^']+)'", code) if k not in w['en']]
    assert not [k for k in w['en'] if k not in asked and k.split('.')[0] not in families]


def walk(v):
    "Every view, one after another."
    yield v.visit('shopsim', 2)
    v.press('start'); yield v
    v.write('q', v.word(2)); yield v
    v.b.click('.card .open'); v.settle(); yield v
    v.press('buy'); yield v
    v.press('own'); yield v

def test_chinese_is_chinese_everywhere(visitor):
    visitor.visit('shopsim', 2, language='zh')
    w = words(visitor.b)
    foreign = [re.escape(x).replace(r'\{', '{').replace(r'\}', '}') for k, x in w['en'].items() if x and x != w['zh'][k]]
    foreign = [re.sub(r'\{\w+\}', '.+', x).replace('/', r'\/') for x in foreign if not x.startswith('{')]
    def english(): return visitor.b.js(FOREIGN, foreign, ['EcomRLVE'])
    visitor.press('start'); visitor.write('q', visitor.word(2))
    assert english() == []
    visitor.b.click('.card .open'); visitor.settle()
    assert english() == [] and visitor.b.js('return document.documentElement.lang') == 'zh-CN'
    visitor.press('buy')
    assert english() == []
    visitor.press('own')
    assert english() == []
    visitor.b.click('#home'); visitor.settle()
    assert english() == []
    for family, tabs in (('shoppingbench', ['facts']), ('ecomrlve', ['cart', 'orders', 'terms'])):
        visitor.press(f'family {family}'); visitor.press('start')
        assert english() == []
        for tab in tabs:
            visitor.press(f'tab {tab}')
            assert english() == []
        visitor.b.click('#home'); visitor.settle()
    visitor.b.click('#language'); visitor.settle()
    assert visitor.b.text('h1') == 'Choose a shop' and len(english()) > 5 # so the test can see English


def test_every_view_can_be_read(visitor):
    "In both colour schemes the contrast of every text, as it was computed (WCAG AA); and a name for every button, field and column."
    ground = lambda v: int(re.findall(r'\d+', v.b.js('return getComputedStyle(document.body).backgroundColor'))[0])
    for v in walk(visitor):
        for scheme in ('dark', 'light'):
            v.b.media(prefers_color_scheme=scheme, prefers_reduced_motion='reduce')
            assert v.b.js(CONTRAST) == [] and (ground(v) < 60) == (scheme == 'dark')
        assert v.b.js("return [...document.querySelectorAll('button')].filter(b => !(b.getAttribute('aria-label') || b.textContent).trim()).length") == 0
        assert v.b.js("return [...document.querySelectorAll('input, select, textarea')].filter(f => !f.getAttribute('aria-label') && !f.closest('label')?.textContent.trim()).length") == 0
        assert v.b.js("return [...document.querySelectorAll('th')].filter(t => !t.scope).length") == 0
    v.b.js("document.documentElement.style.setProperty('--dim', '#c0c0c0')")
    assert v.b.js(CONTRAST) # so it sees what is too pale


def test_the_keyboard_is_enough(visitor):
    "Everything is reached with Tab in a visible way, and an episode is begun, searched and left with keys alone."
    visitor.visit('shopsim', 0)
    seen = []
    for _ in range(40):
        visitor.b.keys('tab')
        at = visitor.b.js("const e = document.activeElement, f = e.closest('.family') ?? e, s = getComputedStyle(f); return [e.dataset.key ?? e.id ?? '', s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 2]")
        if at[0] in seen or not at[0]: continue
        assert at[1], at
        seen.append(at[0])
        if at[0] == 'start': break
    assert {'home', 'language', 'family shopsim', 'task', 'random', 'start'} <= set(seen)
    visitor.b.keys('enter'); visitor.settle()
    visitor.b.keys('/', *visitor.word(0), 'enter'); visitor.settle()
    visitor.b.until("document.querySelectorAll('.card').length")
    visitor.b.keys('tab'); visitor.b.keys('enter'); visitor.settle()
    assert visitor.b.js("return !!document.querySelector('.product')") and visitor.active() == 'head'


def test_a_lost_session_is_told_and_nothing_breaks(visitor, site):
    visitor.visit('shopsim', 0).press('start')
    site['desks']['shopsim'].shut()
    visitor.write('q', 'cup')
    assert 'timed out' in visitor.b.text('.alarm') and visitor.views() == 'shop'
    visitor.b.log('browser') # the refused request


# without a browser

def test_the_files_are_in_the_package_and_load_nothing():
    import fnmatch, tomllib
    patterns = tomllib.loads((ROOT/'pyproject.toml').read_text())['tool']['setuptools']['package-data']['shopping_grpo']
    here = sorted(p.name for p in (ROOT/'shopping_grpo'/'page').iterdir())
    assert all(any(fnmatch.fnmatch(f'page/{n}', x) for x in patterns) for n in here) and sorted(page_files()) == here == ['shop.css', 'shop.html', 'shop.js', 'shop_view.js', 'shop_words.js']
    text = {n: c.decode() for n, (c, _) in page_files().items()}
    assert not [n for n, x in text.items() if re.search(r'https?:|//[a-z]+\.|@import|url\((?!data:)', x)]
    assert not re.search(r'innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|DOMParser|srcdoc|setHTML', ''.join(text.values())) and not re.search(r'<script(?! type="module" src="/page/)|<style| style=| on[a-z]+=', text['shop.html'])


def test_a_final_set_stays_closed(tiny, tiny_engine, tmp_path):
    "Numbers at the end, and no oracle."
    env = ShopSim(tiny, tiny_engine)
    task = Requests(tiny, seed=5).task('test', 0)
    family = Family(Server(env, [task]), ('oracle', 'rule', 'choice-oracle'), tmp_path)
    from shopping_grpo.serve import Refusal
    for who in ('oracle', 'choice-oracle'):
        with pytest.raises(Refusal, match='final set'): family.watch(dict(task=0, policy=who))
    mine = family.desk.open({})
    held = mine['session'], mine['lease']
    with pytest.raises(Refusal, match='not over'): family.result(*held)
    family.desk.ask(*held, 'step', dict(action=dict(name='finish_without_purchase', args=dict(reason='no_suitable_product'))))
    told = family.result(*held)
    assert told['final'] and told['parts'] == [] and not any(x in json.dumps(told) for x in (*task.goal.accepted, 'name'))
    with pytest.raises(Refusal, match='no such session'): family.result(held[0], 'guess')


def test_the_page_is_for_this_machine(monkeypatch, site):
    "On an address that others reach there is no page unless it is asked for; several families are one option."
    from shopping_grpo import cli
    got = []
    monkeypatch.setattr('shopping_grpo.serve.open_desk', lambda env, *_, **how: site['desks'][env])
    monkeypatch.setattr('shopping_grpo.serve_http.listen', lambda host, port: listen('127.0.0.1', 0))
    monkeypatch.setattr('shopping_grpo.serve_http.serve', lambda desk, sock, guests: (sock.close(), got.append((desk is site['desks']['webshop'], len(guests)))))
    for host, there in (('127.0.0.1', None), ('0.0.0.0', None), ('0.0.0.0', True), ('127.0.0.1', False)): cli.serve('webshop,shopsim', 'any', 'train', 'train', '{}', host, 0, 4, 60, there, 'rule', 1)
    n = got[1][1] # guests besides the page
    assert got == [(True, n + 1), (True, n), (True, n + 1), (True, n)]
    with pytest.raises(DataError, match='one worker'): cli.serve('webshop', 'any', 'train', 'train', '{}', '127.0.0.1', 0, 4, 60, True, 'rule', 2)


def test_a_policy_that_breaks_is_told(tiny, tiny_engine):
    def breaks(*_): raise ValueError('/secret/path')
    w = Watch(Server(ShopSim(tiny, tiny_engine), [Requests(tiny, seed=5).task('train', 0)]), 'rule', Requests(tiny, seed=5).task('train', 0), 0, breaks)
    w.thread.join(30)
    assert w.since(0) == dict(moves=[], result=None, error='ValueError')


def test_evidence_of_every_family(site):
    "Both ends of the scale for each family: the oracle meets every hard wish, and giving up has no pick; all of it plain JSON."
    for name, env in site['envs'].items():
        for task in site['desks'][name].tasks[:2]:
            w = Watch(site['desks'][name], 'oracle', task, 0)
            w.thread.join(60)
            assert w.end and w.end['success'] and json.loads(json.dumps(w.end)) == w.end, w.error
            wants = [x for p in w.end['parts'] for x in p['wants']]
            assert all(x['ok'] and all(c['ok'] for c in x['wishes'] if c['hard']) for x in wants)
            w = Watch(site['desks'][name], 'rule', task, 0, lambda spec, make, catalog: player('do-nothing', make, catalog))
            w.thread.join(60)
            assert not w.end['success'] and all(x['got'] is None and x['right'] for p in w.end['parts'] for x in p['wants'])
    e = copy.copy(site['envs']['shopsim'])
    e.reset(site['desks']['shopsim'].tasks[0])
    assert evidence(e)[0]['wants'][0]['got'] is None
    with pytest.raises(Exception, match='not over'): result(e)


@pytest.mark.slow
def test_a_local_model_is_watched(tiny, tiny_engine, tmp_path):
    "A model on this machine plays in the page like anybody else."
    pytest.importorskip('torch')
    from shopping_grpo.model import Shape, tiny as tiny_model
    env, task = ShopSim(tiny, tiny_engine, view='brief', page_size=4), Requests(tiny, seed=5).task('train', 0)
    tiny_model([task.prompt], list(ShopSim.toolbox().values()), Shape(hidden=32, layers=1, heads=1, inner=64), where=tmp_path).save(f'{tmp_path}/m')
    w = Watch(Server(env, [task]), f'local:{tmp_path}/m', task, 0)
    w.thread.join(300)
    assert w.end and not w.error and len(w.moves) > 1 and w.moves[-1]['done']
