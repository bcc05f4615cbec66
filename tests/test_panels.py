"Panels, disagreement, pairs and strata: every number of the page is found again in the episodes; and the leaderboard, which refuses what was changed."
import json, math, re
from collections import Counter, defaultdict
from pathlib import Path
import numpy as np, pandas as pd, pytest
from shopping_grpo.core import DataError, PolicyError, digest, file_digest
from shopping_grpo.envs.shopsim import ShopSim
from shopping_grpo.eval import bootstrap, holm, mcnemar
from shopping_grpo.events import panels
from shopping_grpo.evidence import CELLS, STATUSES, by_method, latex_panels, records, write_tables
from shopping_grpo.figures import paper_figures
from shopping_grpo.leaderboard import board_row, load_sheets, write_board
from shopping_grpo.panel_page import Evidence, panel_figures, panel_sections
from shopping_grpo.policy import BuyFirst, DoNothing, Oracle, Rule
from shopping_grpo.report import build_report, entries
from shopping_grpo.request import Requests
from shopping_grpo.rollout import rollout
from shopping_grpo.store import Run
from shopping_grpo.task import family, make_sheet, write_sheet
from browser import browser # noqa: F401, the fixture
from test_report import Page, page, unpack

DIMENSIONS = ('search_strategy', 'candidate_utilization', 'evidence_verification', 'decision_quality', 'termination_efficiency')
N, IDLE = 36, ('do-nothing',) # the one trivial agent; the others are policies


class Flaky(Rule):
    "A rule whose endpoint dies on every seventh task."
    name = 'flaky'
    def begin(self, briefing, seed): super().begin(briefing, seed); self.seed = seed
    def act(self, observation):
        if self.seed % 7 == 6: raise PolicyError('the endpoint answered 503')
        return super().act(observation)


def line_of(run, row):
    "What a judge might have written: statuses and scores that depend on the episode, in all words that there are."
    base = dict(run=run, task_key=row['task_key'], attempt=row['attempt'], policy=row['policy'], repeat=0, judge='rules', reason='')
    if row['outcome'] == 'error': return base | dict(status='not_judged', criteria=[], dimensions={}, errors={})
    d = int(digest([run if run != 'rule' else 'r', row['task_key']])[:8], 16)
    n = 0 if d % 17 == 0 else 2 + d % 3
    word = lambda i: 'satisfied' if row['success'] and (d >> i) % 8 else STATUSES[(d >> i) % 4] if (d >> i) % 3 == 0 else 'satisfied' if (d >> i) % 2 else 'violated'
    criteria = [dict(id=f'r{i:02d}', kind='option', hardness=('hard', 'hard', 'soft', 'needs_review')[i % 4], status=word(i), by='code' if i % 2 else 'model', evidence=[], reason='') for i in range(n)]
    return base | dict(status='judged', criteria=criteria, dimensions={k: dict(score=(d >> i) % 3, evidence=[], reason='') for i, k in enumerate(DIMENSIONS)},
        errors=dict(primary=None if row['success'] else ('wrong_option', 'premature_purchase', 'repeat_loop')[d % 3], secondary=[]))


@pytest.fixture(scope='module')
def runs(tiny, tiny_engine):
    "Scripted policies on 36 tasks of a few families; one has errors and two missing episodes."
    env, tasks = ShopSim(tiny, tiny_engine), Requests(tiny, seed=2).tasks('test', N)
    play = lambda p: [rollout(p, env, t, seed=i) | dict(family=family(t, tiny)) for i, t in enumerate(tasks)]
    played = {p.name: play(p) for p in (Rule(2), Flaky(1), Oracle(tiny), BuyFirst(), DoNothing())}
    return [(n, rows[:-2] if n == 'flaky' else rows, dict(planned=N, name=f'eval-{n}')) for n, rows in played.items()]


@pytest.fixture(scope='module')
def verdicts(runs): return [line_of(f['name'], r) for _, rows, f in runs for r in rows]


@pytest.fixture(scope='module')
def told(runs): return entries(runs, 'oracle', IDLE)


@pytest.fixture(scope='module')
def evidence(told, verdicts):
    calibration = pd.DataFrame([dict(measure=d, cases=60 + i, agreement=.7 + i / 50, low=.6, high=.9, kappa=.5, kappa_low=.3, kappa_high=.7) for i, d in enumerate(DIMENSIONS[:4])])
    return Evidence(told, verdicts, calibration)


@pytest.fixture(scope='module')
def path(runs, evidence, tmp_path_factory):
    return build_report(runs, tmp_path_factory.mktemp('panels')/'report.html', trivial=IDLE, more=panel_sections(evidence), cells=evidence.cells)


@pytest.fixture(scope='module')
def tables(path): return page(path).tables


# an independent reading of the episodes: (measure, of an episode and its verdict) -> number or None

def hard(line): return [c['status'] for c in line['criteria'] if c['hardness'] != 'soft']
def soft(line): return [c['status'] for c in line['criteria'] if c['hardness'] == 'soft']
def share(words): told = [w for w in words if w != 'not_applicable']; return told.count('satisfied') / len(told) if told else None
def asks(line): return any(c['status'] != 'not_applicable' for c in line['criteria'])
def passes(line):
    h = [w for w in hard(line) if w != 'not_applicable']
    return None if not h else False if 'violated' in h else None if 'unknown' in h else True

PLAIN = {'actions': ('actions', 'attempts'), 'searches': ('actions', 'search'), 'products listed': ('actions', 'products_listed'), 'products opened': ('actions', 'products_opened'), 'pages of text read': ('actions', 'read'),
    'queries repeated': ('repetition', 'queries'), 'calls repeated': ('repetition', 'calls'), 'ends in a loop': ('repetition', 'loop'), 'calls refused': ('legality', 'rejections'), 'malformed calls': ('legality', 'malformed'),
    'illegal calls': ('legality', 'illegal'), 'text instead of a call': ('legality', 'messages'), 'tokens written': ('cost', 'completion_tokens'), 'seconds': ('cost', 'seconds'), 'published score': ('outcome', 'native')}
PERCENT = {'success', 'ends in a purchase or an answer', 'ends in a loop', 'all hard requirements met', 'hard requirements met', 'soft requirements met', 'requirements met, of those decided by code', 'requirements met, of those decided by the judge'}
DIGITS = {'reward': 3, 'published score': 3, 'seconds': 3, 'tokens written': 0}

def number_of(name, row, line):
    valid, judged = row['reward']['valid'], line['status'] == 'judged'
    if name in PLAIN: x = panels(row)[PLAIN[name][0]][PLAIN[name][1]]; return None if x is None else float(x)
    if name == 'success': return float(row['success']) if valid else None
    if name == 'reward': return row['reward']['value'] if valid else None
    if name == 'ends in a purchase or an answer': return None if row['outcome'] == 'error' else float(row['outcome'] in ('purchased', 'answered'))
    if not judged: return None
    if name == 'all hard requirements met': h = [w for w in hard(line) if w != 'not_applicable']; return float(passes(line) is True) if h else None
    if name == 'hard requirements met': return share(hard(line))
    if name == 'soft requirements met': return share(soft(line))
    if name.startswith('requirements met'): return share([c['status'] for c in line['criteria'] if c['by'] == ('code' if name.endswith('code') else 'model')])
    if name == 'hard requirements violated': return float(hard(line).count('violated')) if asks(line) else None
    if name == 'requirements unknown': return float((hard(line) + soft(line)).count('unknown')) if asks(line) else None
    return float(line['dimensions'][name.replace(' ', '_')]['score'])

def told_of(runs, verdicts): # run -> [(row, line)]
    by = {(v['run'], v['task_key']): v for v in verdicts}
    return {n: [(r, by[f['name'], r['task_key']]) for r in rows] for n, rows, f in runs}

def shown(name, x, sign=''): return f'{100 * x:{sign}z.1f} %' if name in PERCENT else f'{x:{sign}z,.{DIGITS.get(name, 2)}f}'

def ends(name, pairs, sign=''): # [(unit, number)] -> '[low, high]', by drawing units
    sums = defaultdict(lambda: [0.0, 0])
    for u, x in pairs: sums[u][0] += x; sums[u][1] += 1
    i = bootstrap(*zip(*(sums[u] for u in sorted(sums))), 0, 4000)
    f = lambda x: shown(name, x, sign).removesuffix(' %')
    return i, 'no spread' if i.low == i.high else f'[{f(i.low)}, {f(i.high)}]'

def cut(tables, start): return next(t for k, t in tables.items() if k and k.startswith(start))


def test_every_number_of_the_panels_is_in_the_episodes(runs, verdicts, tables):
    everyone, seen = told_of(runs, verdicts), Counter()
    for caption in ('Outcome and reward', 'Process', 'Rubric: ', 'Judged by rules'):
        head, *lines = cut(tables, caption)
        for measure, *cells in lines:
            if caption == 'Judged by rules': agreement, *cells = cells
            for (n, _, _), cell in zip(runs, cells):
                x = [(r['family'], v) for r, line in everyone[n] if (v := number_of(measure, r, line)) is not None]
                if not x: assert cell == '–'; continue
                i, interval = ends(measure, x)
                flat = i.low == i.high # Wilson takes over for a share without width
                assert cell.startswith(shown(measure, i.value)) and (flat or interval in cell), (n, measure, cell, interval)
                assert (f'{len(x)} of {N}' in cell) == (len(x) < N)
                if caption == 'Judged by rules': assert ' · '.join(str(sum(v == s for _, v in x)) for s in (0, 1, 2)) in cell
                seen[caption] += 1
    assert min(seen.values()) >= 15 and sum(seen.values()) > 120
    head, *lines = cut(tables, 'Judged by rules')
    assert [line[1][:6] for line in lines] == ['70.0 %', '72.0 %', '74.0 %', '76.0 %', 'unknow'] and '60 cases' in lines[0][1] and 'κ 0.50' in lines[0][1]
    head, *lines = cut(tables, 'Main error of each')
    assert all(cells[k] == str(sum(line['status'] == 'judged' and (line['errors']['primary'] or '(none named)').replace('_', ' ') == name for _, line in everyone[n])) for name, *cells in lines for k, (n, _, _) in enumerate(runs))


def where(row, line): # the cell of an episode
    if not row['reward']['valid']: return 'no valid score'
    if line['status'] != 'judged': return 'not judged'
    if passes(line) is None: return 'rubric unclear' if [w for w in hard(line) if w != 'not_applicable'] else 'no requirement applies'
    return {(True, True): 'both pass', (True, False): 'reward only', (False, True): 'rubric only', (False, False): 'both fail'}[bool(row['success']), passes(line)]


def test_disagreement_adds_up_and_leads_to_its_episodes(runs, verdicts, path, tables):
    head, *lines = cut(tables, 'Reward against rubric')
    everyone, index = told_of(runs, verdicts), unpack(page(path).raw['index'])
    listed = Counter((index['runs'][e[0]], e[-1]) for e in index['episodes'])
    for (n, rows, _), (_, *cells, planned) in zip(runs, lines):
        counts = Counter(where(*x) for x in everyone[n]) | Counter(missing=N - len(rows))
        assert [int(c) for c in cells] == [counts[h.lower()] for h in head[1:-1]] and sum(map(int, cells)) == int(planned) == N
        assert all(listed[n, h.lower()] == int(c) for h, c in zip(head[1:-1], cells) if h != 'Missing')
    assert {where(*x) for v in everyone.values() for x in v} >= set(CELLS) | {'no valid score', 'rubric unclear'}
    links = [a['href'] for t, a in page(path).tags if t == 'a' and 'cell=' in (a.get('href') or '')]
    assert len(links) == sum(int(c) > 0 for _, *cells, _ in lines for c, h in zip(cells, head[1:-1]) if h != 'Missing') and '#run=rule&cell=both+fail' in links


def test_pairs_are_what_the_episodes_say(runs, verdicts, tables):
    head, *lines = cut(tables, 'Pairs, joined')
    everyone = {n: {r['task_key']: (r, line) for r, line in x} for n, x in told_of(runs, verdicts).items()}
    names = ['rule', 'flaky', 'buy-first']
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1:]]
    assert [line[0] for line in lines] == [f'{b} against {a}' for a, b in pairs]
    words = Counter()
    for name, column in zip(['success', 'hard requirements violated', *(d.replace('_', ' ') for d in DIMENSIONS), 'actions'], range(5, 13)):
        found = {}
        for a, b in pairs:
            x = {k: (number_of(name, *everyone[a][k]), number_of(name, *everyone[b][k])) for k in everyone[a] if k in everyone[b]}
            d = [(everyone[a][k][0]['family'], q - p) for k, (p, q) in x.items() if p is not None and q is not None]
            found[a, b] = *ends(name, d, '+'), sum(y > 0 for _, y in d), sum(y == 0 for _, y in d), sum(y < 0 for _, y in d)
        for (pair, (i, text, up, same, down)), q, line in zip(found.items(), holm([mcnemar(f[2], f[4]) for f in found.values()]), lines):
            better = {'success': 1, 'hard requirements violated': -1, 'actions': 0}.get(name, 1)
            sign = 0 if q >= .05 else 1 if i.low > 0 and up > down else -1 if i.high < 0 and up < down else 0
            word = 'tied' if not sign else ('better' if sign == better else 'worse') if better else {1: 'higher', -1: 'lower'}[sign]
            assert line[column] == f'{shown(name, i.value, "+").replace(" %", " points")} {word}{text}{up} up, {same} same, {down} down', (pair, name)
            words[word] += 1
    assert {'tied', 'worse'} <= set(words)
    for (a, b), line in zip(pairs, lines):
        both = [(x[0]['success'], y[0]['success']) for k, x in everyone[a].items() if (y := everyone[b].get(k)) and x[0]['reward']['valid'] and y[0]['reward']['valid']]
        assert [int(c) for c in line[1:5]] == [both.count(s) for s in ((True, True), (True, False), (False, True), (False, False))]


def test_strata_are_what_the_episodes_say(runs, verdicts, tables):
    everyone, n = told_of(runs, verdicts), 0
    for by in ('difficulty', 'category', 'family'):
        for name in ('success', 'all hard requirements met'):
            head, *lines = cut(tables, f'{name.capitalize()} by {by}')
            for value, *cells in lines:
                for (run, _, _), cell in zip(runs, cells):
                    x = [v for r, line in everyone[run] if str(r[by]) == value and (v := number_of(name, r, line)) is not None]
                    assert cell == '–' if not x else cell.startswith(f'{100 * np.mean(x):.1f} %') and cell.endswith(f'{len(x)} episodes'), (run, by, value)
                    n += 1
    assert n > 100


def test_tables_come_as_files_that_say_the_same(evidence, tmp_path):
    files = {p.name: p for p in write_tables(evidence.tables, tmp_path, latex_panels(evidence.tables, ['rule', 'flaky'], 'Panels'))}
    for name, t in evidence.tables.items():
        for back in (pd.read_csv(files[f'{name}.csv'], dtype={'family': str}), pd.read_parquet(files[f'{name}.parquet'])): assert list(back.columns) == list(t.columns) and len(back) == len(t)
        assert (tmp_path/f'{name}.csv').read_text() == t.to_csv(index=False)
    tex, value = files['panels.tex'].read_text(), evidence.tables['panels'].set_index(['measure', 'run']).value
    row = next(line for line in tex.splitlines() if '& success, ' in line)
    assert re.findall(r'& (\d+\.\d) \[', row) == [f'{100 * value["success", r]:.1f}' for r in ('rule', 'flaky')] and tex.count(r'\midrule') == 1 and '%' not in tex.replace(r'\%', '')


def test_figures_show_the_tables(evidence, told, runs, tmp_path):
    files = paper_figures(runs, tmp_path, trivial=IDLE, more=panel_figures(evidence))
    assert {'disagreement-1col.svg', 'requirements-2col.pdf', 'dimensions-1col.svg'} <= {p.name for p in files} and len(files) == 28


# joining

@pytest.mark.parametrize('change, message', [
    (lambda vs: vs + [vs[0] | dict(task_key='nowhere')], '1 verdicts have no episode in this report'), (lambda vs: vs + vs[:1], 'was judged twice under one repeat'),
    (lambda vs: vs + [vs[0] | dict(judge='another')], 'verdicts of another and rules are mixed')])
def test_verdicts_that_do_not_fit_are_refused(told, verdicts, change, message):
    with pytest.raises(DataError, match=message): records(told, change(verdicts))


def test_repeats_do_not_change_the_tables(told, verdicts, evidence):
    again = [v | dict(repeat=1, criteria=[], dimensions={}, status='not_judged') for v in verdicts]
    assert records(told, again + verdicts).equals(evidence.records)


def test_without_verdicts_nothing_is_invented(told, runs, tmp_path):
    bare = Evidence(told)
    assert set(bare.tables['panels'].panel) == {'outcome', 'process'} and bare.cells == {} and set(bare.tables['disagreement'].query('episodes > 0').cell) == {'not judged', 'no valid score', 'missing'}
    text = build_report(runs, tmp_path/'x.html', trivial=IDLE, more=panel_sections(bare)).read_text()
    assert 'These runs were not judged' in text and 'cell=' not in text.split('<script>')[0]


def test_seeds_of_a_method_are_put_together(evidence):
    table = evidence.records.assign(run=evidence.records.run.map(lambda n: {'rule': 'sft-0', 'flaky': 'sft-1'}.get(n, n)))
    pooled = by_method(table)
    assert set(pooled.run) == {'sft', 'oracle', 'buy-first', 'do-nothing'} and (pooled.run == 'sft').sum() == 2 * N - 2 and not pooled.duplicated(['run', 'task_key', 'attempt']).any()


# in a browser

@pytest.mark.parametrize('width, theme', [(1280, 'light'), (1280, 'dark'), (390, 'light')])
def test_a_number_leads_to_its_episodes(browser, path, width, theme):
    browser.emulate('setDeviceMetricsOverride', width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
    browser.media(prefers_color_scheme=theme, prefers_reduced_motion='reduce')
    browser.log('browser')
    browser.open(path)
    for n in range(3):
        wanted = browser.js(f"const a = document.querySelectorAll('#disagreement a')[{n}]; a.click(); return a.textContent")
        browser.until(f"document.getElementById('count').textContent.startsWith('{wanted} of ')")
    assert browser.js("return document.getElementById('episodes').getBoundingClientRect().top < innerHeight") and not browser.js("return document.getElementById('cells').hidden")
    assert browser.js("return document.documentElement.scrollWidth <= innerWidth") and not [e for e in browser.log('browser') if e['level'] == 'SEVERE']


# the leaderboard

@pytest.fixture
def world(tiny, tiny_engine, tmp_path):
    "A frozen sheet and three runs on it."
    env, tasks = ShopSim(tiny, tiny_engine), Requests(tiny, seed=2).tasks('test', 12)
    sheet = tmp_path/'shopsim-mine.json'
    write_sheet(sheet, make_sheet(dict(test=tasks), tiny, 2))
    for p in (Rule(1), Oracle(tiny), DoNothing()):
        config = dict(env='shopsim', policy=p.name, catalog=tiny.digest, split='test', attempts=1, seed=0, size='tiny', n=12)
        with Run.open('eval', f'x-{p.name}', config=config, planned=[(t.key, 0) for t in tasks], root=tmp_path/'runs') as run:
            for i, t in enumerate(tasks): run.add(rollout(p, env, t, seed=i) | dict(family=family(t, tiny)))
    return tmp_path, sheet


def board(world, **more):
    root, sheet = world
    (root/'reports').mkdir(exist_ok=True)
    return write_board((root/'runs'/'eval').glob('x-*'), root/'reports', load_sheets([sheet]), **more)


def rewrite(run, name='manifest.json', seal=True, **changes):
    "Change a file of a run; with `seal` the manifest is made to agree, as far as somebody who edits results would think of it."
    path = run/'manifest.json'
    m = json.loads(path.read_text())
    for k, v in changes.items(): m['config'][k] = v
    if seal: m['config_digest'] = digest(m['config'])
    path.write_text(json.dumps(m))


def edit(path, *pair): path.write_text(path.read_text().replace(*pair))

def other_tasks(run): # a plan of invented tasks, with all digests of the plan made to agree
    plan = [[f'invented{i}', 0] for i in range(12)]
    (run/'plan.json').write_text(json.dumps(plan))
    m = json.loads((run/'manifest.json').read_text())
    m['plan'] |= dict(digest=digest(sorted(plan)))
    m['outputs']['plan.json'] = file_digest(run/'plan.json')
    (run/'manifest.json').write_text(json.dumps(m))

def forged_grade(run): # an episode of older rules, with the hash of the file made to agree
    edit(run/'episodes.jsonl', '"env_version":"2"', '"env_version":"1"')
    m = json.loads((run/'manifest.json').read_text())
    m['outputs']['episodes.jsonl'] = file_digest(run/'episodes.jsonl')
    (run/'manifest.json').write_text(json.dumps(m))

TAMPERED = {
    'episodes': (lambda run: edit(run/'episodes.jsonl', '"success":false', '"success":true'), r'x-rule: episodes.jsonl is not the file that the manifest names; it was changed after the run'),
    'config': (lambda run: rewrite(run, seal=False, policy='grpo'), r'x-rule: its config does not match the digest'),
    'catalogue': (lambda run: rewrite(run, catalog='0' * 64), r'x-rule: its catalogue 000000000000 is that of no frozen split of shopsim \(shopsim-mine\)'),
    'plan file': (lambda run: edit(run/'plan.json', '0]', '1]'), r'x-rule: plan.json is not the file'),
    'split': (other_tasks, r'x-rule: its tasks are not those of the frozen split shopsim-mine, the first is invented0'),
    'grade': (forged_grade, r'x-rule: task \w+ was graded by version 1 of shopsim, this code grades by version 2; evaluate again'),
    'unfinished': (lambda run: edit(run/'manifest.json', '"status": "done"', '"status": "started"'), r'x-rule: it is started, not done'),
    'manifest': (lambda run: (run/'manifest.json').write_text('{'), r'x-rule: .*manifest.json of eval/x-rule is damaged'),
}


@pytest.mark.parametrize('what', TAMPERED)
def test_a_tampered_row_is_refused_in_one_line(world, what):
    change, message = TAMPERED[what]
    change(world[0]/'runs'/'eval'/'x-rule')
    parts, refused, _ = board(world)
    assert [r['policy'] for r in parts[0]] == ['oracle', 'do-nothing'] and len(refused) == 1 and re.match(message, refused[0]) and '\n' not in refused[0]
    assert refused[0] in (world[0]/'reports'/'leaderboard.md').read_text().replace('&lt;', '<') and 'x-rule' not in pd.read_csv(world[0]/'reports'/'leaderboard.csv').run.tolist()


def test_a_tampered_sheet_freezes_nothing(world):
    edit(world[1], '"digest": "', '"digest": "f')
    with pytest.raises(DataError, match='shopsim-mine.json: its test split does not match its digest'): board(world)


def test_newer_rules_refuse_older_results(world, monkeypatch):
    monkeypatch.setattr(ShopSim, 'version', 3)
    with pytest.raises(DataError, match='this code grades by version 3'): board(world)


def test_rows_are_the_runs_and_link_to_them(world):
    (part,), refused, _ = board(world, title='Board <1>')
    root = world[0]
    assert refused == [] and [r['policy'] for r in part] == ['oracle', 'rule', 'do-nothing']
    for r in part:
        rows = [json.loads(x) for x in (root/'runs'/'eval'/r['run']/'episodes.jsonl').read_text().splitlines()]
        assert r['success'] == np.mean([x['success'] for x in rows]) and math.isclose(r['reward'], np.mean([x['reward']['value'] for x in rows])) and r['steps'] == np.mean([x['n_steps'] for x in rows])
        assert r['episodes_sha'] == file_digest(root/'runs'/'eval'/r['run']/'episodes.jsonl')
    text = (root/'reports'/'leaderboard.html').read_text()
    told = Page(text)
    links = [a['href'] for t, a in told.tags if t == 'a']
    assert len(links) == 6 and all((root/'reports'/x).resolve().exists() for x in links) and 'Board &lt;1&gt;' in text and '<script' not in text
    cells = next(iter(t for k, t in told.tables.items() if k))
    assert [c[2] for c in cells[1:]] == [f"{100 * r['success']:.1f} % [{100 * r['success_low']:.1f}, {100 * r['success_high']:.1f}]" for r in part]


def test_different_splits_never_share_a_table(world, tiny, tiny_engine):
    root, sheet = world
    env, tasks = ShopSim(tiny, tiny_engine), Requests(tiny, seed=2).tasks('test', 12)[:8]
    for p in (Rule(1), Oracle(tiny), DoNothing()):
        with Run.open('eval', f'x-short-{p.name}', config=dict(env='shopsim', policy=p.name, catalog=tiny.digest, split='test', attempts=1, n=8), planned=[(t.key, 0) for t in tasks], root=root/'runs') as run:
            for i, t in enumerate(tasks): run.add(rollout(p, env, t, seed=i))
    parts, refused, _ = board(world)
    assert len(parts) == 2 and {len({r['split_hash'] for r in p}) for p in parts} == {1} and parts[0][0]['split_hash'] != parts[1][0]['split_hash'] and refused == []
    (root/'runs'/'eval'/'x-short-oracle'/'manifest.json').unlink()
    parts, refused, _ = board(world)
    assert len(parts) == 1 and len(refused) == 3 and sum('has no oracle row' in x for x in refused) == 2


def test_validation_runs_are_left_out(world):
    rewrite(world[0]/'runs'/'eval'/'x-rule', split='val')
    parts, refused, others = board(world)
    assert others == 1 and refused == [] and len(parts[0]) == 2


def test_the_committed_sheets_are_whole(): assert {s['env'] for s in load_sheets()} >= {'shopsim', 'webshop', 'shoppingbench'}


# the published numbers, measured again

README = '''## What it measures

In the generated `tiny` shop (1,008 products, one attempt a task). The intervals treat tasks as independent, and these 5 are about {families} families.

| policy | solved | success, 95 % interval | mean reward | mean steps |
|---|---|---|---|---|
{rows}

## In twenty lines

    oracle 20 of 20

    rule 5 of 20

    size=medium     # 200,000 products in half a minute; large has 2.5 million
'''

@pytest.mark.slow
def test_a_wrong_digit_anywhere_is_found(tmp_path, monkeypatch):
    "Stage 95 on a root of its own: as published all is OK; one digit of the table, of the text, of published.json or of the leaderboard is named, and so is a number that nothing measures."
    from shopping_grpo.core import ShopError
    from shopping_grpo.stage import run_stage
    root = Path(__file__).resolve().parents[1]
    (tmp_path/'nbs').symlink_to(root/'nbs')
    (tmp_path/'settings.ini').write_text((root/'settings.ini').read_text())
    (tmp_path/'data').mkdir(); (tmp_path/'data'/'splits').symlink_to(root/'data'/'splits')
    monkeypatch.setenv('SHOPPING_GRPO_ROOT', str(tmp_path))
    run_stage('05', dict(tasks=12, workers=1), quiet=True)
    run_stage('55', dict(n=5, policies='oracle,rule,do-nothing', name='five'), quiet=True)
    run_stage('66', {}, quiet=True)
    run_stage('95', dict(runs='five-*', publish=True), quiet=True)
    file, rows = tmp_path/'reports'/'published.json', json.loads((tmp_path/'reports'/'published.json').read_text())['rows']
    episodes = [json.loads(x) for x in (tmp_path/'runs'/'eval'/'five-rule'/'episodes.jsonl').read_text().splitlines()]
    words = 'no one two three four five'.split()
    lines = '\n'.join(f"| {r['policy']} | {r['success']} / {r['n']} | {100 * r['rate']:.1f} % [{100 * r['low']:.1f}, {100 * r['high']:.1f}] | {r['reward']:+.3f} | {r['steps']:.1f} |" for r in rows)
    readme = README.format(rows=lines, families=words[len({e['family'] for e in episodes})])
    (tmp_path/'README.md').write_text(readme)
    run_stage('95', dict(runs='five-*'), quiet=True)
    board = tmp_path/'reports'/'leaderboard.csv'
    for path, old, new, message in ((tmp_path/'README.md', '1,008', '1,009', 'README: products'), (tmp_path/'README.md', '| +1.000 |', '| +1.001 |', 'README: oracle, reward'), (tmp_path/'README.md', 'independent,', 'independent, 77 of them,', 'README: a number that nothing measures'),
        (file, '"reward": 1.0,', '"reward": 0.9,', 'published.json: oracle, reward'), (board, 'five-oracle,oracle,oracle,shopsim,shopsim-tiny', 'five-gone,oracle,oracle,shopsim,shopsim-tiny', 'leaderboard: five-gone')):
        whole = path.read_text()
        assert old in whole, (path, old)
        path.write_text(whole.replace(old, new, 1))
        with pytest.raises(ShopError, match=message): run_stage('95', dict(runs='five-*'), quiet=True)
        path.write_text(whole)


# the final set of ShopSim

@pytest.mark.slow
def test_the_final_set_is_what_its_card_says(small):
    "570 tasks are drawn again: the same keys, five of each kind of product and band, solvable, hard to guess, apart from train and val, and refused for training."
    from shopping_grpo.final import check_frozen, check_guard, final_facts
    sheet = json.loads((Path(__file__).resolve().parents[1]/'data'/'splits'/'shopsim-small.json').read_text())
    requests = Requests(small, sheet['task_seed'], **sheet['options'])
    tasks, others = requests.tasks('test', 570), requests.tasks('train', 300) + requests.tasks('val', 100)
    assert sheet['catalog_digest'] == small.digest and len(tasks) >= 500
    check_frozen(sheet, tasks)
    check_guard(tasks)
    assert final_facts(tasks, others, lambda t: family(t, small))['shared_products'] == 0
    cells = Counter((t.category, (t.difficulty > 6) + (t.difficulty > 8)) for t in tasks)
    assert len(cells) == 38 * 3 and set(cells.values()) <= {4, 5, 6}
    shelf = lambda t: requests.shelf(int(requests.leaves[small.row(t.goal.target)]))
    assert all(t.goal.target_variant in t.goal.accepted and shelf(t).blind(t.goal.constraints) <= .1 for t in tasks)
