"The report: tallies that add up, foreign text that cannot act, and a page that is clicked through in a real browser."
import base64, fnmatch, gzip, hashlib, html.parser, json, math, os, re, subprocess, sys, tomllib
from pathlib import Path
import pytest
from browser import browser # noqa: F401, the fixture
from shopping_grpo.charts import PALETTE, tag
from shopping_grpo.core import DataError, Draws, PolicyError
from shopping_grpo.env import Outcome
from shopping_grpo.envs.shopsim import ShopSim
from shopping_grpo.eval import compare, summary
from shopping_grpo.figures import paper_figures
from shopping_grpo.policy import BuyFirst, DoNothing, Oracle, RandomLegal, Rule
from shopping_grpo.report import build_report
from shopping_grpo.request import Requests
from shopping_grpo.rollout import rollout
from shopping_grpo.tally import KINDS, MESSAGE, OTHER, eval_frame, kind_tally, outcome_tally, reason, reason_tally, step_bins, step_tally, tool_tally

ROOT = Path(__file__).resolve().parents[1]
ASSETS = ROOT/'shopping_grpo'/'assets'
EVIL = '</script><script>window.hit=1</script><img src=x onerror="window.hit=2">{{title}}\u202e\ud800"\'&amp;<!--'


class Flaky(Rule):
    "A rule whose endpoint dies on every fifth task."
    name = 'flaky'
    def begin(self, briefing, seed): super().begin(briefing, seed); self.seed = seed
    def act(self, observation):
        if self.seed % 5 == 4: raise PolicyError('the endpoint answered 503')
        return super().act(observation)


@pytest.fixture(scope='module')
def runs(tiny, tiny_engine):
    "Scripted agents on 36 tasks; one run has errors and two missing episodes."
    env, tasks = ShopSim(tiny, tiny_engine), Requests(tiny, seed=2).tasks('test', 36)
    played = [(p.name, [rollout(p, env, t, seed=i) for i, t in enumerate(tasks)]) for p in (Rule(2), Flaky(1), Oracle(tiny), BuyFirst(), RandomLegal(), DoNothing())]
    return [(name, rows[:-2] if name == 'flaky' else rows, dict(planned=36, catalog=tiny.digest, config=dict(policy=name, seeds=[1, 2]), seconds=1.5)) for name, rows in played]


@pytest.fixture(scope='module')
def path(runs, tmp_path_factory): return build_report(runs, tmp_path_factory.mktemp('report')/'report.html', title='测试 report')


@pytest.fixture(scope='module')
def hostile(runs, tmp_path_factory):
    "The same runs, with an attack in every text that a model, a seller or a user can write."
    def poison(r):
        steps = [dict(action={'name': EVIL, 'args': {EVIL: EVIL, 'n': math.nan}}, observation=f'Error: {EVIL}', error=True), dict(action={'name': 'x', 'args': EVIL}, observation=EVIL + '\n', error=False), dict(action={'text': EVIL}, observation='', error=False)]
        return r | dict(prompt=EVIL, category=EVIL, steps=steps, n_steps=3, guard_rejections=1, lang='zh"><b>', outcome=EVIL if r['reward']['valid'] else 'error',
            reward=r['reward'] | dict(kind=EVIL, parts={EVIL: .5}, gates={EVIL: True}), error=dict(type=EVIL, message=EVIL))
    evil = [(name + (EVIL if name == 'rule' else ''), [poison(r) for r in rows], facts | {EVIL: {EVIL: [EVIL]}}) for name, rows, facts in runs]
    return build_report(evil, tmp_path_factory.mktemp('report')/'hostile.html', title=EVIL)


class Page(html.parser.HTMLParser):
    "What a browser would make of the file: tags with attributes, script texts, and tables as lists of cells by their caption."
    def __init__(self, text):
        super().__init__()
        self.tags, self.raw, self.tables, self.h3 = [], {}, {}, None
        self.inside, self.rows = None, []
        self.feed(text)
    def handle_starttag(self, name, attributes):
        self.tags.append((name, dict(attributes)))
        if name in ('script', 'style'): self.inside = dict(attributes).get('id', name)
        if name == 'h3': self.h3 = ''
        if name == 'table': self.tables[self.h3] = self.rows = []
        if name == 'tr': self.rows.append([])
        if name in ('td', 'th') and self.rows: self.rows[-1].append('')
    def handle_endtag(self, name):
        if name in ('script', 'style'): self.inside = None
        if name == 'table': self.h3, self.rows = None, []
    def handle_data(self, data):
        if self.inside: self.raw[self.inside] = self.raw.get(self.inside, '') + data
        elif self.rows and self.rows[-1]: self.rows[-1][-1] += data
        elif self.h3 is not None: self.h3 += data


def page(path): return Page(path.read_text(encoding='utf-8'))
def unpack(text): return json.loads(gzip.decompress(base64.b64decode(text)))
def frames(runs): return {name: eval_frame(rows) for name, rows, _ in runs}


# counts

def test_nothing_falls_out_of_a_bucket():
    "Any outcome, kind and number of steps, known or not, is in a row; what was not run is missing."
    d = Draws(0, 'rows')
    names = [*map(str, Outcome), 'teleported', 'missing it']
    rows = [dict(task_key=f't{i}', attempt=0, outcome=d.pick(names), success=False, n_steps=(n := d.pick([0, 0, 1, 5, 6, 35, 212])), steps=[dict(action=dict(name=f'tool{d.one(40)}', args={}), observation='', error=d.one(2) == 0)] * n,
        reward=dict(value=0.0, valid=d.one(3) > 0, kind=d.pick([*KINDS, '', 'odd kind']), parts={}, gates={})) for i in range(400)]
    for of in (outcome_tally, kind_tally): assert sum(of(rows, 450).values()) == 450 and of(rows, 450)['missing'] == 50 and 0 not in of(rows, 400).values()
    assert set(outcome_tally(rows, 400)) == set(names)
    assert sum(map(sum, step_tally(rows, step_bins(212)))) == 400 and sum(step_tally(rows, step_bins(212))[0]) == sum(r['n_steps'] == 0 for r in rows)
    tools = tool_tally({'a': rows[:200], 'b': rows[200:]}, most=10)
    assert len(tools) == 11 and list(tools)[-1] == OTHER and sum(t[0] for per in tools.values() for t in per.values()) == sum(r['n_steps'] for r in rows)
    refused = reason_tally({'a': rows})
    assert sum(t[0] for per in refused.values() for t in per.values()) == sum(s['error'] for r in rows for s in r['steps'])


@pytest.mark.parametrize('text, short', [("Error: there is no tool 'a'. Possible now: b.", 'there is no tool …'), ("Error: there is no tool 'a very long name tha. Possible now: b, c.", 'there is no tool …'),
    ("Error: open_product does not take 'q2'. Possible now: x.", 'open_product does not take …'), ('', '(no reason given)'), ('Error: n is longer than 500 characters. Possible now: x.', 'n is longer than … characters')])
def test_reasons_lose_their_particulars(text, short): assert reason(text) == short


def test_the_tables_say_what_the_statistics_say(runs, path):
    told = page(path)
    head, *lines = next(t for caption, t in told.tables.items() if caption and caption.startswith('95 % intervals; success'))
    assert [x[0] for x in lines] == ['rulebase', 'flaky', 'oracleoracle', 'buy-firsttrivial', 'randomtrivial', 'do-nothingtrivial']
    for (name, rows, facts), line in zip(runs, lines):
        s = summary(eval_frame(rows), 36).iloc[0]
        assert [int(x) for x in line[1:7]] == [s[k] for k in ('planned', 'done', 'scored', 'errored', 'invalid', 'missing')]
        assert line[7].startswith(f'{100 * s.success_scored:.1f} % [{100 * s.success_scored_low:.1f}, ') and line[9].startswith(f'{s.reward:z.3f} [')
    assert [int(x) for x in lines[1][1:7]] == [36, 34, 28, 6, 0, 2]
    assert re.search(r'<li class="alert">214 of 216 planned episodes are done; 6 errored, 0 without a valid score, 2 missing\.', path.read_text())
    head, *lines = next(t for caption, t in told.tables.items() if caption and caption.startswith('Paired by task'))
    found = compare({n: f for n, f in frames(runs).items() if n != 'oracle'})
    assert [(x[0], x[1], x[7], x[8]) for x in lines] == [(r.run, r.verdict, f'{r.p:.3g}', f'{r.p_holm:.3g}') for r in found.itertuples()]
    assert {'worse', 'tied'} <= {x[1] for x in lines} and 'flaky: caveat: n = 28 &lt; 30' in path.read_text()
    head, *lines = told.tables['How every planned episode ended']
    assert all(sum(map(int, x[2:-1])) == int(x[-1]) == 36 for x in lines)


def test_every_page_and_action_is_in_the_file(runs, path):
    raw = page(path).raw
    index, texts = unpack(raw['index']), unpack(raw['texts'])
    rows = [r for _, rows, _ in runs for r in rows]
    assert len(index['episodes']) == len(texts['episodes']) == len(rows)
    for r, e, x in zip(rows, index['episodes'], texts['episodes']):
        assert index['tasks'][e[1]][:2] == [r['task_key'], r['prompt']] and e[3:6] == [r['outcome'], r['reward']['kind'], r['reward']['value']]
        flat = x['steps']
        assert ['\n'.join(texts['lines'][n] for n in texts['texts'][t]) for t in flat[1::3]] == [s['observation'] for s in r['steps']]
        assert [dict(texts['actions'][a][1]) for a in flat[0::3] if texts['actions'][a][0] != MESSAGE] == [s['action']['args'] for s in r['steps'] if 'name' in s['action']]
        assert x['gates'] == [[k, float(v)] for k, v in r['reward']['gates'].items()] and [bool(v) for v in flat[2::3]] == [s['error'] for s in r['steps']]


# refusals

@pytest.mark.parametrize('change, message', [
    (lambda runs: [r for r in runs if r[0] != 'oracle'], "there is no oracle run 'oracle'"), (lambda runs: [r for r in runs if r[0] in ('rule', 'oracle')], 'no trivial agent'),
    (lambda runs: runs + runs[:1], "two runs are called 'rule'"), (lambda runs: [(n, rows, {}) for n, rows, _ in runs], 'run rule: its facts have no whole number `planned`'),
    (lambda runs: [(n, rows, dict(planned=20)) for n, rows, _ in runs], '36 episodes for 20 planned'), (lambda runs: [(n, [], f) for n, _, f in runs], 'run rule has no episodes'),
    (lambda runs: [(n, [r | dict(outcome='error') for r in rows], f) for n, rows, f in runs], 'outcome is error but valid is True')])
def test_a_report_that_would_mislead_is_refused(runs, tmp_path, change, message):
    with pytest.raises(DataError, match=re.escape(message)): build_report(change(runs), tmp_path/'x.html')
    assert not list(tmp_path.iterdir())


def test_doubtful_results_are_said(runs, tmp_path):
    "An oracle that fails and an idle agent that is paid stand in the first lines; a run on other tasks is listed as not compared."
    by = {n: rows for n, rows, _ in runs}
    worse = [r | dict(success=False, reward=r['reward'] | dict(value=-.85, kind='wrong_purchase')) for r in by['oracle'][:2]] + by['oracle'][2:]
    paid = [r | dict(success=True, reward=r['reward'] | dict(value=1.0, kind='success')) for r in by['do-nothing'][:1]] + by['do-nothing'][1:]
    other = [r | dict(task_key='other ' + r['task_key']) for r in by['rule']]
    text = build_report([('rule', by['rule'], dict(planned=36)), ('oracle', worse, dict(planned=36)), ('do-nothing', paid, dict(planned=36)), ('elsewhere', other, dict(planned=36))], tmp_path/'x.html').read_text()
    assert 'The oracle solves 34 of 36 episodes: tasks cannot be solved' in text and 'An agent that does nothing is paid for it in 1 of 36 episodes.' in text and 'Not compared, for want of a common scored task: elsewhere.' in text


def test_several_attempts_give_pass_k(runs, tmp_path):
    twice = [(n, rows + [r | dict(attempt=1) for r in rows], f | dict(planned=72, attempts=2)) for n, rows, f in runs]
    head, *lines = page(build_report(twice, tmp_path/'x.html')).tables['Several attempts at a task, 95 % intervals over tasks']
    assert len(lines) == 12 and [x[2] for x in lines[:2]] == ['0', '0'] and lines[2][2] == '6'


# the file

def test_same_runs_same_bytes(runs, path, tmp_path):
    "In another process, under another hash seed, for page and figures."
    (tmp_path/'runs.json').write_text(json.dumps(runs))
    code = ("import hashlib, json, sys; from shopping_grpo.report import build_report; from shopping_grpo.figures import paper_figures; runs = json.load(open('runs.json')); "
            "print(*[hashlib.sha256(p.read_bytes()).hexdigest() for p in (build_report(runs, f'{sys.argv[1]}.html', title='测试 report'), *paper_figures(runs, sys.argv[1]))])")
    theirs = subprocess.run([sys.executable, '-c', code, '1'], cwd=tmp_path, env=os.environ | {'PYTHONHASHSEED': '1', 'PYTHONPATH': str(ROOT)}, capture_output=True, text=True, check=True).stdout.split()
    ours = [hashlib.sha256(p.read_bytes()).hexdigest() for p in (path, *paper_figures(runs, tmp_path/'2'))]
    assert len(ours) == 17 and ours == theirs
    sizes = {p.name: re.search(r'width="([\d.]+)pt"', p.read_text())[1] for p in (tmp_path/'1').glob('*.svg')}
    assert sizes['success-1col.svg'] == '237.6' and sizes['success-2col.svg'] == '504' and not re.search(r'<dc:date>', (tmp_path/'1'/'success-1col.svg').read_text())


def test_the_file_loads_nothing_and_runs_only_its_own_script(path, hostile):
    for p in (path, hostile):
        told = page(p)
        assert [a.get('id') for n, a in told.tags if n == 'script'] == ['index', 'texts', None]
        assert not [n for n, _ in told.tags if n in ('img', 'iframe', 'object', 'embed', 'base', 'b', 'audio', 'video')]
        for name, attributes in told.tags:
            assert not [k for k in attributes if k.startswith('on') or k in ('src', 'srcset', 'action', 'formaction', 'style', 'xlink:href')]
            assert re.match('#|data:,$', attributes.get('href') or '#')
        policy = next(a['content'] for n, a in told.tags if a.get('http-equiv') == 'Content-Security-Policy')
        for kind in ('script', 'style'): assert f"{kind}-src 'sha256-{base64.b64encode(hashlib.sha256(told.raw[kind].encode()).digest()).decode()}'" in policy
        assert all(f"{x} 'none'" in policy for x in ('default-src', 'base-uri', 'form-action', 'trusted-types')) and 'unsafe' not in policy
    assert 'innerHTML' not in (ASSETS/'report.js').read_text() and '@import' not in (ASSETS/'report.css').read_text() and 'url(' not in (ASSETS/'report.css').read_text()
    assert 'window.hit=1' in hostile.read_text() and '{{title}}' in hostile.read_text()


def test_tag_escapes_children_and_attributes():
    assert tag('p', '<b>', tag('i', '&'), title='"><x', hidden=True, lang=None) == '<p title="&quot;&gt;&lt;x" hidden>&lt;b&gt;<i>&amp;</i></p>'


def test_the_assets_are_in_the_package():
    patterns = tomllib.loads((ROOT/'pyproject.toml').read_text())['tool']['setuptools']['package-data']['shopping_grpo']
    assert all(any(fnmatch.fnmatch(f'assets/{p.name}', x) for x in patterns) for p in ASSETS.iterdir()) and len(list(ASSETS.iterdir())) == 4


def luminance(colour):
    r, g, b = (int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5))
    return sum(w * (x / 12.92 if x <= .03928 else ((x + .055) / 1.055) ** 2.4) for w, x in zip((.2126, .7152, .0722), (r, g, b)))


def contrast(a, b):
    low, high = sorted([luminance(a), luminance(b)])
    return (high + .05) / (low + .05)


def test_text_and_drawings_can_be_told_from_their_ground():
    "WCAG: 4.5 for text, 3 for shapes that mean something; in both themes."
    colours = {k: v for k, *v in re.findall(r'--(\w+): light-dark\((#\w+), (#\w+)\)', (ASSETS/'report.css').read_text())}
    for theme, name in enumerate(('light', 'dark')):
        for text in ('ink', 'dim', 'accent', 'bad', 'good'): assert contrast(colours[text][theme], colours['panel'][theme]) >= 4.5, (text, name)
        for ground in ('bg', 'mark', 'warn'): assert min(contrast(colours['ink'][theme], colours[ground][theme]), contrast(colours['dim'][theme], colours['bg'][theme])) >= 4.5, (ground, name)
        for i, c in enumerate(PALETTE[name]):
            if i != 9: assert contrast(c, colours['panel'][theme]) >= 3, (i, name) # 9 is what is missing


@pytest.mark.slow
def test_two_thousand_long_episodes_fit_in_fifteen_megabytes(small, tmp_path):
    "25 pages of 2,000 characters each, made of lines of products as a shop shows them."
    d, title = Draws(0, 'long'), {}
    def line(i):
        if i not in title: p = small.at(i); title[i] = f'{p.id} | ¥{p.price / 100:.2f} | {p.title}'
        return title[i]
    def text():
        start, out, size = d.one(len(small)), [f'第{d.one(9)}页/共9页，{d.one(400)}个结果'], 0
        while size < 2000: out.append(line((start + d.one(300)) % len(small))); size += len(out[-1]) + 1
        return '\n'.join(out)[:2000]
    def row(i):
        steps = [dict(action=dict(name='search_products', args=dict(query=line(d.one(len(small)))[20:50])), observation=text(), error=False) for _ in range(25)]
        return dict(task_key=f't{i}', attempt=0, outcome='purchased', success=True, steps=steps, n_steps=25, prompt=line(i), lang='zh', difficulty=3, reward=dict(value=1.0, valid=True, kind='success', parts={}, gates={}))
    runs = [(name, [row(i) for i in range(500)], dict(planned=500)) for name in ('sft', 'grpo', 'oracle', 'do-nothing')]
    assert build_report(runs, tmp_path/'big.html').stat().st_size <= 15e6


# in a browser

@pytest.fixture
def desk(browser, path):
    "The report on a desktop in the light theme; afterwards no error may stand in the console and nothing may have been loaded."
    browser.emulate('clearDeviceMetricsOverride'); browser.media(prefers_color_scheme='light', prefers_reduced_motion='reduce') # no smooth scrolling under a click
    browser.log('browser'); browser.log('performance')
    browser.open(path)
    yield browser
    assert not [e for e in browser.log('browser') if e['level'] in ('SEVERE', 'WARNING')]
    sent = [m['params']['request']['url'] for e in browser.log('performance') if (m := json.loads(e['message'])['message'])['method'] == 'Network.requestWillBeSent']
    assert sent and not [u for u in sent if not u.startswith(('file://', 'data:', 'about:'))]


def count(b): return int(b.text('#count').split(' of ')[0].replace(',', ''))
def opened(b):
    b.click('#list tbody a')
    return b.until("document.querySelectorAll('.steps > li').length")


def test_tables_are_there_and_the_list_is_paged(desk, runs):
    assert desk.text('h1') == '测试 report' and 'rule' in desk.text('#results table') and count(desk) == 6 * 36 - 2
    assert len(desk.texts('#list tbody tr')) == 25 and desk.text('#page') == 'page 1 of 9'
    desk.click('#forth')
    assert desk.text('#page') == 'page 2 of 9' and 'page=2' in desk.js('return location.hash')
    desk.click('#back')
    assert desk.js("return document.getElementById('back').disabled")


def test_search_filter_and_sort(desk, runs):
    rows = [(name, r) for name, rows, _ in runs for r in rows]
    desk.keys('/')
    assert desk.js("return document.activeElement.id") == 'q'
    word = rows[0][1]['prompt'][:8]
    desk.keys(*word.lower())
    assert count(desk) == sum(word in r['prompt'] for _, r in rows) > 0
    desk.keys('escape')
    assert count(desk) == len(rows)
    desk.choose('[name=run]', 'flaky'); desk.choose('[name=outcome]', 'error')
    assert count(desk) == 6 and set(desk.texts('#list tbody td:nth-child(2)')) == {'flaky'}
    desk.click('#filters [type=reset]')
    desk.choose('[name=kind]', 'wrong_purchase'); desk.choose('[name=lang]', 'zh')
    assert count(desk) == sum(r['reward']['kind'] == 'wrong_purchase' and r['lang'] == 'zh' for _, r in rows) > 0
    desk.click('#filters [type=reset]')
    desk.click('[data-sort=steps]'); desk.click('[data-sort=steps]')
    steps = [int(x) for x in desk.texts('#list tbody td:nth-child(6)')]
    assert steps == sorted(steps, reverse=True) and steps[0] == max(r['n_steps'] for _, r in rows) and desk.js("return document.querySelector('[aria-sort]').textContent") == 'Steps'
    desk.choose('#q', 'no such words anywhere')
    assert count(desk) == 0 and 'No episode fits' in desk.text('#list tbody')


def test_read_an_episode_with_keys(desk, runs):
    first, second = runs[0][1][0], runs[0][1][1]
    assert opened(desk) == first['n_steps'] and desk.text('#viewer-title') == first['prompt']
    assert desk.texts('.steps pre') == [s['observation'] for s in first['steps']] and desk.texts('.steps code') == [s['action']['name'] for s in first['steps']]
    for name, x in (first['reward']['gates'] | first['reward']['parts']).items(): assert f"{name} {'✓' if x else '✗'}" in desk.texts('.evidence li')
    desk.keys('right', 'right')
    assert desk.text('#where') == f"step 3 of {first['n_steps']}" and desk.js("return document.querySelector('[aria-current=step]').dataset.step") == '3'
    desk.keys('left', 'n')
    assert desk.text('#viewer-title') == second['prompt']
    desk.keys('p', 'escape')
    assert not desk.js("return document.getElementById('viewer').open") and 'task' not in desk.js('return location.hash')
    assert desk.js("return document.activeElement.closest('#list') != null"), 'the focus is back in the list'
    desk.keys('down', 'enter')
    desk.until("document.getElementById('viewer').open")
    assert desk.text('#viewer-title') == second['prompt']


def test_two_runs_side_by_side_and_their_address(desk, path, runs):
    opened(desk)
    desk.choose('#beside', 'do-nothing/0')
    assert desk.texts('.pane h3') == ['rule', 'do-nothing'] and 'first differ at step 1' in desk.text('#about')
    desk.keys('right', 'right', 'right')
    address, shown = desk.js('return location.hash'), desk.text('#panes')
    desk.open(path, address)
    desk.until("document.querySelectorAll('.pane').length == 2")
    assert desk.text('#panes') == shown and desk.text('#where').startswith('step 4 of ')
    desk.open(path, '#at=rule&task=nowhere&attempt=0')
    assert 'not in this report' in desk.text('#lost') and not desk.js("return document.getElementById('lost').hidden") and not desk.js("return document.getElementById('viewer').open")


def test_an_error_is_marked(desk, path, runs):
    row = next(r for r in runs[1][1] if r['outcome'] == 'error')
    desk.open(path, f"#at=flaky&task={row['task_key']}&attempt=0")
    desk.until("document.querySelectorAll('.pane').length")
    assert desk.text('.evidence .error') == 'PolicyError: the endpoint answered 503' and 'invalid, not counted' in desk.text('.evidence') and desk.text('#where') == 'step 0 of 0'


def test_theme_follows_the_system_and_the_button(desk, path):
    ground = lambda: desk.js('return getComputedStyle(document.body).backgroundColor')
    light = ground()
    desk.click('#theme')
    dark = ground()
    assert dark != light and desk.js("return document.getElementById('theme').getAttribute('aria-pressed')") == 'true'
    desk.click('#theme')
    assert ground() == light
    desk.media(prefers_color_scheme='dark', prefers_reduced_motion='reduce')
    desk.open(path)
    assert ground() == dark and desk.js("return getComputedStyle(document.documentElement).scrollBehavior") == 'auto'


def test_nothing_is_wider_than_a_phone(desk, path):
    desk.emulate('setDeviceMetricsOverride', width=390, height=844, deviceScaleFactor=2, mobile=True)
    desk.open(path)
    wide = 'return [document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]'
    assert desk.js(wide) == [390, 390, 390]
    opened(desk)
    desk.choose('#beside', 'oracle/0')
    assert desk.js(wide) == [390, 390, 390] and desk.js("return document.getElementById('viewer').scrollWidth") <= 390


def test_everything_has_a_name(desk):
    "What a screen reader needs: names of buttons, labels of fields, headings in order, scopes of headers."
    opened(desk)
    assert desk.js("return [...document.querySelectorAll('button')].filter(b => !(b.getAttribute('aria-label') || b.textContent).trim()).length") == 0
    assert desk.js("return [...document.querySelectorAll('input, select')].filter(f => !f.closest('label')?.firstChild.textContent.trim()).length") == 0
    assert desk.js("return [...document.querySelectorAll('th')].filter(t => !t.scope).length") == 0
    levels = desk.js("return [...document.querySelectorAll('h1, h2, h3')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1 and all(b - a <= 1 for a, b in zip(levels, levels[1:]))
    assert desk.js("return [...document.querySelectorAll('[aria-labelledby]')].filter(e => !document.getElementById(e.getAttribute('aria-labelledby'))).length") == 0
    spoken = desk.js("return document.getElementById('about').textContent").split(' · ')
    assert desk.js("return document.documentElement.lang") == 'en' and desk.js("return document.querySelector('.steps pre').lang") == ('zh' if 'zh' in spoken else 'en')


def test_hostile_text_is_only_text(browser, hostile):
    "It is shown to the letter, adds no element, and even a fault in our own script could not make it act."
    browser.log('browser')
    browser.open(hostile)
    shown = EVIL.replace('\ud800', '?')
    assert browser.js('return document.title') == ' '.join(shown.split()) and browser.text('h1') == shown
    browser.click('#list tbody a')
    browser.until("document.querySelectorAll('.steps > li').length == 3")
    assert browser.text('#viewer-title') == shown and browser.texts('.steps pre')[0] == f'Error: {shown}' and browser.text('.steps code') == shown[:60]
    assert browser.js('return [window.hit === undefined, document.querySelectorAll("img, b, iframe").length, document.scripts.length]') == [True, 0, 3]
    assert not [e for e in browser.log('browser') if e['level'] == 'SEVERE']
    for attack in ("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hit=3\">')", "document.body.setAttribute('onclick', 'window.hit=4')", "document.createElement('script').text = 'window.hit=5'"):
        assert browser.js(f'try {{ {attack}; return "in" }} catch (e) {{ return e.name }}') == 'TypeError', attack
    assert browser.js('return window.hit') is None


def test_the_comparison_draws_families_where_the_rows_name_them(runs, tmp_path):
    "As `shopping-grpo compare` and stage 55 do; six tasks of one family are less news than six families."
    said = lambda given, name: build_report(given, tmp_path/name).read_text()
    kin = {t: str(n // 6) for n, t in enumerate(sorted({r['task_key'] for _, rows, _ in runs for r in rows}))}
    named = [(name, [r | dict(family=kin[r['task_key']]) for r in rows], facts) for name, rows, facts in runs]
    by_task, by_family = said(runs, 'tasks.html'), said(named, 'families.html')
    assert 'intervals by drawing tasks,' in by_task and 'intervals by drawing families of near-identical products,' in by_family
    assert 'caveat: n = 6 &lt; 30' in by_family and 'caveat: n = 6' not in by_task
