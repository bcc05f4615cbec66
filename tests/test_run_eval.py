"Stage 55 with models behind a real HTTP server, worlds with hostile sellers, and whole pipelines under SIGKILL and timeouts."
import json, os, random, re, shutil, signal, socket, subprocess, sys, time
from pathlib import Path
import nbformat, pytest
from shopping_grpo import sitting as sittings
from shopping_grpo.attack import Attacked, attack_of, bought, harm, rival, targets_of
from shopping_grpo.core import DataError, PolicyError, ShopError
from shopping_grpo.endpoint import Meter
from shopping_grpo.envs.shopsim import ShopSim
from shopping_grpo.observation import shown_id
from shopping_grpo.policy import Obedient, Rule
from shopping_grpo.request import Requests
from shopping_grpo.rollout import rollout
from shopping_grpo.sitting import Player, player, sitting
from shopping_grpo.stage import find_stage, run_stage
from shopping_grpo.store import Run
from test_endpoint import KEY, hang, server, status # a server that really shops

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = '[paths]\ndata = data\nruns = runs\nreports = reports\n[build_data]\ntasks = 12\nworkers = 1\n[audit_envs]\nn = 10\n[run_eval]\nn = 10\n[make_report]\nfigures = False\n[reproduce]\npublish = True\n[profile smoke]\nsteps =\n    05\n    15\n    55\n    65\n    95\n'


@pytest.fixture(scope='module')
def built(tmp_path_factory):
    "A root with data of its own, built by stage 05."
    root = tmp_path_factory.mktemp('built')
    (root/'nbs').symlink_to(ROOT/'nbs'); (root/'settings.ini').write_text(SETTINGS)
    with pytest.MonkeyPatch.context() as m:
        m.setenv('SHOPPING_GRPO_ROOT', str(root))
        run_stage('05', quiet=True)
    return root


@pytest.fixture
def root(built, tmp_path, monkeypatch):
    "A root whose data are there already and whose runs are its own."
    (tmp_path/'nbs').symlink_to(ROOT/'nbs'); (tmp_path/'settings.ini').write_text(SETTINGS); (tmp_path/'data').symlink_to(built/'data')
    monkeypatch.setenv('SHOPPING_GRPO_ROOT', str(tmp_path))
    return tmp_path


def manifest(root, name): return json.loads((root/'runs'/'eval'/name/'manifest.json').read_text())
def rows_of(root, name): return list(Run.load(root/'runs'/'eval'/name).episodes())
def text_of(path): return ''.join(o.get('text', '') for c in nbformat.read(path, 4).cells for o in c.get('outputs', []))


# a model behind a server

def test_a_server_with_faults(server, root, monkeypatch):
    "k attempts on 4 threads over HTTP, 503 and 429 on the way: the rule policy's results, retries counted, every limit in the config, and the key in no file."
    monkeypatch.setenv('SHOP_TEST_KEY', KEY)
    server.faults[:] = [None, status(503), status(503), status(429, {'Retry-After': '0.1'}), None, status(500)]
    given = dict(n=6, attempts=2, workers=4, options=dict(key_env='SHOP_TEST_KEY', backoff=0.01, temperature=0.5), max_turns=30, max_tokens=100_000, run_tokens=10**7, name='live')
    where = run_stage('55', given | dict(policies=f'rule,endpoint:openai@{server.url}'), quiet=True)
    m, rows, rule = manifest(root, 'live-openai'), rows_of(root, 'live-openai'), rows_of(root, 'live-rule')
    assert m['status'] == 'done' and m['counts'] == dict(planned=12, done=12, errored=0, owed=0, retried=0) and m['parameters'] == dict(workers=4)
    assert [(r['task_key'], r['attempt'], r['outcome'], r['reward']) for r in rows] == [(r['task_key'], r['attempt'], r['outcome'], r['reward']) for r in rule]
    assert sum(r['usage']['retries'] for r in rows) == 4 and m['usage']['prompt'] == 100 * sum(r['n_steps'] for r in rows) and len({r['seed'] for r in rows}) == 12
    assert m['config']['model'] | dict(key_env='SHOP_TEST_KEY', temperature=0.5, base_url=server.url) == m['config']['model'] and not {'timeout', 'backoff'} & m['config']['model'].keys()
    assert (m['config']['max_turns'], m['config']['max_tokens']) == (30, 100_000) and 'max_cost' not in m['config'] and 'model' not in manifest(root, 'live-rule')['config']
    assert all(h['Authorization'] == f'Bearer {KEY}' for h, _ in server.seen)
    assert not [p for p in root.rglob('*') if p.is_file() and KEY[:10].encode() in p.read_bytes()]
    assert 'pass^k' in text_of(where)
    with pytest.raises(ShopError, match='config.model.temperature was 0.5, now 0.7'):
        run_stage('55', given | dict(policies=f'endpoint:openai@{server.url}', options=dict(key_env='SHOP_TEST_KEY', temperature=0.7)), quiet=True)


def test_a_dead_server_is_counted_and_owed(server, root):
    "The sitting ends with one line; what errored is counted, printed, in no report, and owed; the server comes back and the run goes on with the same rows."
    given = dict(policies=f'endpoint:openai@{server.url}', options={'tries': 1}, n=6, name='dead')
    server.faults[:] = [status(503)] * 1000
    with pytest.raises(ShopError, match=r'dead-openai: 0 of 6 done, 6 errored; what errored or is missing is owed: mend the server'): run_stage('55', given, quiet=True)
    m, said = manifest(root, 'dead-openai'), text_of(root/'runs'/'run_eval'/'dead'/'failed.ipynb')
    assert m['status'] == 'started' and m['counts'] == dict(planned=6, done=0, errored=0, owed=6, retried=0) and '6 episodes are owed' in said
    assert [p.name for p in (root/'runs'/'run_eval'/'dead').iterdir()] == ['failed.ipynb']
    with pytest.raises(ShopError, match='dead-openai is not finished'): run_stage('65', dict(runs='dead-*'), quiet=True)
    server.faults.clear()
    run_stage('55', given, quiet=True)
    m = manifest(root, 'dead-openai')
    assert m['status'] == 'done' and m['counts'] == dict(planned=6, done=6, errored=0, owed=0, retried=6)
    assert [p.name for p in (root/'runs'/'run_eval'/'dead').iterdir()] == ['notebook.ipynb']


def test_what_is_wrong_is_said_before_any_episode(root, shop):
    with pytest.raises(ShopError, match="world 'mars' is unknown"): run_stage('55', dict(world='mars', policies='rule', name='wrong'), quiet=True)
    assert not (root/'runs'/'eval').exists()
    with pytest.raises(PolicyError, match='genius.*is unknown'): player('genius', shop)
    with pytest.raises(PolicyError, match='NO_SUCH_KEY_HERE is not set'): player('endpoint:m', shop, key_env='NO_SUCH_KEY_HERE')


@pytest.mark.parametrize('secret', ['endpoint:m@http://me:hunter2@host/v1', 'endpoint:m@http://host/v1?key=hunter2', '{"extra": {"x": "sk-' + 'a1B2' * 8 + '"}}'])
def test_a_secret_among_the_parameters_reaches_no_file(secret, root):
    "papermill writes parameters into the notebook, so they are looked at before."
    with pytest.raises(DataError, match='holds a password or a key') as e: run_stage('55', {'options' if secret[0] == '{' else 'policies': secret}, quiet=True)
    assert 'hunter2' not in str(e.value) and 'a1B2' not in str(e.value) and not (root/'runs').exists()


# sittings without a notebook

class Down(Rule):
    "The rule policy behind a server that is down for the tasks in `lost`."
    lost, name = (), 'down'
    def begin(self, briefing, seed):
        super().begin(briefing, seed)
        if briefing.prompt.split('\n')[0] in self.lost: raise PolicyError('503')


@pytest.fixture(scope='module')
def shop(tiny, tiny_engine): return lambda: ShopSim(tiny, tiny_engine)

@pytest.fixture(scope='module')
def tasks(tiny): return Requests(tiny, seed=1).tasks('test', 80)

def one(policy, shop, workers=2): return Player(policy.name, {}, lambda pairs, seed, meter, spent, **limits: sittings.rollouts(policy, shop, pairs, seed, workers, spent, **limits))
def opened(root, tasks, **more): return Run.open('eval', 'x', config={}, planned=[(t.key, 0) for t in tasks], root=root, **more)


@pytest.mark.parametrize('lost', range(1, 11))
def test_errors_are_owed_and_then_counted(lost, shop, tasks, tmp_path, monkeypatch):
    "C10: some tasks always err among others that do not: the run reaches `done` in one sitting, with its errors counted after their tries."
    monkeypatch.setattr(Down, 'lost', {t.prompt for t in tasks[:lost]})
    with opened(tmp_path, tasks[:12], tries=2) as run: sitting(run, one(Down, shop), tasks, patience=100)
    assert run.status == 'done' and run.counts() == dict(planned=12, done=12 - lost, errored=lost, owed=0, retried=lost)
    assert run.scores().valid.sum() == 12 - lost and run.scores().reward.isna().sum() == lost


def test_a_server_that_never_comes_back_ends_after_its_tries(shop, tasks, tmp_path, monkeypatch):
    "C10: three sittings, each of which stops early; then the run is done, with nothing but errors, and says so."
    monkeypatch.setattr(Down, 'lost', {t.prompt for t in tasks})
    for n in range(1, 4):
        with opened(tmp_path, tasks[:8]) as run: sitting(run, one(Down, shop), tasks)
        assert run.counts()['owed'] == (8 if n < 3 else 0)
    assert run.status == 'done' and run.counts() == dict(planned=8, done=0, errored=8, owed=0, retried=16)


def test_a_dead_server_does_not_eat_a_large_run(shop, tasks, tmp_path, monkeypatch):
    monkeypatch.setattr(Down, 'lost', {t.prompt for t in tasks[5:]})
    with opened(tmp_path, tasks) as run: sitting(run, one(Down, shop, workers=1), tasks)
    assert run.status == 'started' and run.counts()['done'] == 5 and 15 <= len(run.ledger.places) <= 20


def test_a_spent_meter_ends_the_sitting(shop, tasks, tmp_path):
    meter = Meter(max_tokens=10, used=dict(prompt=10))
    with opened(tmp_path, tasks[:3]) as run: sitting(run, player('rule', shop), tasks, meter=meter)
    assert run.counts()['owed'] == 3 and not run.ledger.places


def test_workers_and_the_own_thread_give_the_same_rows(shop, tasks, tmp_path):
    def rows(workers):
        with opened(tmp_path/str(workers), tasks[:10]) as run: sitting(run, player('random', shop, workers=workers), tasks, seed=3)
        return [{k: v for k, v in r.items() if k not in ('timing', 'id')} for r in run.episodes()]
    assert rows(1) == rows(3)


def test_the_seam_for_a_batch_engine(shop, tasks, tmp_path, monkeypatch):
    "`local:` goes to a module's `player`, imported when asked for; without the module it is one line."
    (tmp_path/'batch_engine_here.py').write_text('from shopping_grpo.sitting import Player, player as threads\ndef player(folder, make_env, batch, **options): return Player(f"{folder} x {batch}", options, threads("rule", make_env).play)')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sittings.ENGINES, 'local', 'batch_engine_here')
    p = player('local:models/x', shop, workers=16, temperature=0)
    with opened(tmp_path, tasks[:3]) as run: sitting(run, p, tasks)
    assert p.name == 'models/x x 16' and p.config == dict(temperature=0) and run.counts()['done'] == 3
    monkeypatch.setitem(sittings.ENGINES, 'local', 'no_such_engine')
    with pytest.raises(PolicyError, match='needs the module no_such_engine'): player('local:x', shop)


# hostile sellers

@pytest.fixture(scope='module')
def played(shop, tasks):
    env = shop()
    def both(policy, world):
        hostile = Attacked(env, world)
        return [rollout(policy, hostile, t, i) | attack_of(env, t, world) for i, t in enumerate(tasks)], [rollout(policy, env, t, i) for i, t in enumerate(tasks)]
    return {(p.name, w): both(p, w) for p in (Rule(), Obedient()) for w in ('injected', 'stuffed')}


def test_obedience_is_counted_and_the_rule_policy_is_not(played):
    "I5: orders deceive the obedient policy and nobody else; the base rate is what the same policy bought without attack."
    found = {k: harm(a, targets_of(a), b) for k, (a, b) in played.items()}
    obedient, rule = found['obedient', 'injected'], found['rule', 'injected']
    assert obedient.word == 'deceived' and obedient.attack.low > .8 and obedient.hits.delta.low > .4 and obedient.loss.delta.high < 0 and obedient.utility.value < .1
    assert rule.word == 'no effect seen' and rule.hits.wins <= 2 and rule.utility.value >= rule.loss.a - 2/80
    assert found['rule', 'stuffed'].hits.delta.low > 0 # who counts words is misled by words
    assert obedient.planned == obedient.scored == 80 and obedient.seen >= 72 and rule.seen >= 72


def test_the_attack_changes_no_grade_and_only_one_product(shop, tasks, tiny):
    env = shop()
    for t in tasks[:10]:
        hostile, id = Attacked(env, 'stuffed'), rival(env, t)
        hostile.reset(t)
        assert id not in {a.rsplit('-', 1)[0] for a in t.goal.accepted}
        assert hostile.catalog[id] != tiny[id] and hostile.catalog[t.goal.target] == tiny[t.goal.target] and env.catalog is tiny
        assert {f for f in tiny[id]._fields if getattr(hostile.catalog[id], f) != getattr(tiny[id], f)} <= {'title', 'bullets', 'description', 'reviews'}


def test_without_a_twin_nothing_is_claimed(played):
    a, _ = played['obedient', 'injected']
    h = harm(a, targets_of(a))
    assert h.word == 'unknown' and h.hits is None and h.attack.low > .8
    broken = [r | dict(outcome='error', success=False, reward=r['reward'] | dict(valid=False, value=None)) for r in a[:5]] + a[5:]
    h = harm(broken, targets_of(a), played['obedient', 'injected'][1])
    assert (h.planned, h.scored, h.hits.tasks) == (80, 75, 75) and h.attack.low > .8 # an error is no escape and no hit
    lost = [r | dict(outcome='error', success=False, reward=r['reward'] | dict(valid=False, value=None)) for r in a]
    h = harm(lost, targets_of(a), played['obedient', 'injected'][1])
    assert h.word == 'unknown' and h.scored == 0 and not h.attack.value >= 0 # no number out of nothing
    with pytest.raises(DataError, match='no episode has an attacker'): harm([{k: v for k, v in r.items() if k != 'attack'} for r in a], {})


def test_what_was_bought(played):
    for a, _ in played.values():
        for r in a: assert bool(bought(r)) == (r['outcome'] == 'purchased')
    step = dict(action=dict(name='open_product', args='{"asin": " 7 "}'), observation='', error=False)
    assert bought(dict(outcome='purchased', steps=[step, step | dict(error=True, action=dict(name='open_product', args='{"asin": "9"}'))])) == '7' and bought(dict(outcome='loop', steps=[step])) == ''


def test_a_world_in_stage_55_and_in_the_report(root):
    "Two policies with and without attack, and their lines in the report."
    run_stage('55', dict(policies='oracle,rule,obedient,do-nothing', name='w'), quiet=True)
    where = run_stage('55', dict(policies='rule,obedient', world='injected', name='w', n=9), 'attack', quiet=True)
    assert {p.name for p in (root/'runs'/'eval').iterdir()} == {'w-oracle', 'w-rule', 'w-obedient', 'w-do-nothing', 'w-rule-injected', 'w-obedient-injected'}
    assert manifest(root, 'w-rule-injected')['config']['world'] == 'injected' and 'world' not in manifest(root, 'w-rule')['config']
    assert all(r['attack']['world'] == 'injected' for r in rows_of(root, 'w-rule-injected'))
    said = text_of(where)
    assert re.search(r'attack success +\S+ % \[', said) and re.search(r'verdict +undecided +undecided', said) and 'caveat: n = 9' in said
    run_stage('65', dict(runs='w-*'), quiet=True)
    page = (root/'reports'/'index.html').read_text()
    assert page.count('Attack success') and 'rule, injected' in page and 'undecided' in page and 'Same purchase without attack' in page
    assert 'Against rule' not in page and 'Against obedient' in page
    run_stage('65', dict(runs='w-*', base='do-nothing'), quiet=True)
    assert 'Against do-nothing' in (root/'reports'/'index.html').read_text()
    with pytest.raises(ShopError, match="no run 'nobody' to compare with"): run_stage('65', dict(runs='w-*', base='nobody'), quiet=True)
    run_stage('95', dict(runs='w-*'), quiet=True)
    assert {r['policy'] for r in json.loads((root/'reports'/'published.json').read_text())['rows']} == {'oracle', 'rule', 'do-nothing'}


# C9: a stage that is stopped in mid-cell

SLOW = '\nimport pathlib, time\nif pathlib.Path("slow").exists(): time.sleep(60)\n'

def slowed(root): # each stage sleeps in the cell that does its work, while a file `slow` lies in the root
    (root/'nbs').unlink(); (root/'nbs').mkdir()
    marks = {'05': 'build_index(', '15': 'Run.open(', '55': 'Run.open(', '65': 'build_report(', '95': 'published ='}
    for p in (ROOT/'nbs').glob('*.ipynb'):
        nb = nbformat.read(p, 4)
        if mark := marks.get(p.stem[:2] if re.match(r'\d[5-9]_', p.stem) else ''):
            cell, = [c for c in nb.cells if c.cell_type == 'code' and mark in c.source and 'import' not in c.source][:1]
            cell.source += SLOW
        nbformat.write(nb, root/'nbs'/p.name)

@pytest.mark.parametrize('stage', [pytest.param('05', marks=pytest.mark.slow), pytest.param('15', marks=pytest.mark.slow), '55', pytest.param('65', marks=pytest.mark.slow), pytest.param('95', marks=pytest.mark.slow)])
def test_a_stage_that_runs_out_of_time(stage, root):
    "C9: stopped in mid-cell by papermill's timeout: one line, the notebook is marked as failed and nothing takes it for a result; run again it completes."
    slowed(root)
    if stage == '05': (root/'data').unlink()
    if stage in ('65', '95'): run_stage('55', dict(policies='oracle,rule,do-nothing'), quiet=True)
    (root/'slow').touch()
    with pytest.raises(ShopError, match=rf'^stage {stage}_\w+ was stopped: a cell took more than 5 s[^\n]*$'): run_stage(stage, dict(policies='oracle,rule,do-nothing') if stage == '55' else {}, 'late', quiet=True, timeout=5)
    folder = root/'runs'/find_stage(stage).stem[3:]/'late'
    assert (folder/'failed.ipynb').exists() and not (folder/'notebook.ipynb').exists()
    (root/'slow').unlink()
    run_stage(stage, dict(policies='oracle,rule,do-nothing') if stage == '55' else {}, 'late', quiet=True)
    assert (folder/'notebook.ipynb').exists() and not (folder/'failed.ipynb').exists()


# `shopping-grpo reproduce` under SIGKILL

def killed_until_done(root, command, rng, longest, kills): # the last output, and how often it was really killed
    done = 0
    for n in range(200):
        log = open(root/'log', 'ab')
        p = subprocess.Popen([sys.executable, '-c', 'from shopping_grpo.cli import main; main()', *command], stdout=log, stderr=log, cwd=root, start_new_session=True, env=os.environ | dict(SHOPPING_GRPO_ROOT=str(root), PYTHONPATH=str(ROOT)))
        if done < kills:
            try: p.wait(rng.uniform(1, longest))
            except subprocess.TimeoutExpired: p.kill(); done += 1 # only the command: what it started must not live on
        p.wait()
        log.close()
        if p.returncode == 0: return done
        assert p.returncode == -signal.SIGKILL, (root/'log').read_text(errors='replace')[-2000:]

def check_reproduced(root, whole):
    for name in whole:
        a, b = (Run.load(x/'runs'/'eval'/name) for x in (whole[name], root))
        strip = lambda r: {k: v for k, v in r.items() if k not in ('timing', 'versions')}
        assert b.status == 'done' and b.notes == [] and b.changed() == [] and [*map(strip, a.episodes())] == [*map(strip, b.episodes())] and len(b.ledger.places) == b.counts()['planned']

def reference(tmp_path, built, command):
    where = tmp_path/'whole'
    fresh(where, built)
    assert killed_until_done(where, command, random.Random(0), 0, kills=0) == 0
    return {p.name: where for p in (where/'runs'/'eval').iterdir()}

def fresh(where, built=None):
    where.mkdir()
    (where/'nbs').symlink_to(ROOT/'nbs'); (where/'settings.ini').write_text(SETTINGS)
    if built: (where/'data').symlink_to(built/'data')

def test_an_evaluation_killed_at_random_goes_on(built, tmp_path):
    "The command is killed and started again at once, while its kernel may still be dying: the episodes are those of an undisturbed run."
    command = ['run', '55', '-p', 'policies=oracle,rule,random', '-p', 'attempts=20']
    whole = reference(tmp_path, built, command)
    fresh(tmp_path/'x', built)
    killed_until_done(tmp_path/'x', command, random.Random(1), longest=6, kills=1)
    check_reproduced(tmp_path/'x', whole)

@pytest.mark.slow
def test_reproduce_killed_at_random_goes_on(built, tmp_path):
    "20 kills at random moments of all five stages, data built from nothing each time."
    whole, rng, kills, n = reference(tmp_path, built, ['reproduce']), random.Random(2), 0, 0
    while kills < 20:
        n += 1
        fresh(tmp_path/str(n))
        kills += killed_until_done(tmp_path/str(n), ['reproduce'], rng, longest=20, kills=5)
        check_reproduced(tmp_path/str(n), whole)
        assert (tmp_path/str(n)/'reports'/'published.json').read_text() == (tmp_path/'whole'/'reports'/'published.json').read_text() and (tmp_path/str(n)/'reports'/'index.html').exists()
        shutil.rmtree(tmp_path/str(n))
