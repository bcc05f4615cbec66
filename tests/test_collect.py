"""Collection under fire: kills, other workers, a mix of teachers, broken endpoints, forged records, final tasks, secrets."""
import json, os, signal, subprocess, sys, textwrap, threading, time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
import pytest
from shopping_grpo.collect import CONVERGE, Job, collect, load_episodes, load_sft, make_teacher, shares, split_demos, write_dataset
from shopping_grpo.core import DataError, PolicyError, folder
from shopping_grpo.env import Observation, load_env
from shopping_grpo.envs.shopsim import ShopSim
from shopping_grpo.filter import PRIVATE, Rules, Selection, balance, examine, faults, leak, replay, secrets
from shopping_grpo.request import Requests
from shopping_grpo.rollout import episode_seed, rollout
from shopping_grpo.second import second_opinion
from shopping_grpo.stage import run_stage
from shopping_grpo.store import Run
from shopping_grpo.task import load_tasks, save_tasks, some_families
from shopping_grpo.teacher import QUIET, Noise, Teacher, read_hits

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope='module')
def tasks(tiny): return Requests(tiny, seed=3).tasks('train', 120)


@pytest.fixture(scope='module')
def env(tiny, tiny_engine): return ShopSim(tiny, tiny_engine)


@pytest.fixture(scope='module')
def rows(tiny, env, tasks): return [rollout(Teacher(tiny), env, t, episode_seed(0, t, 0)) for t in tasks]


@pytest.fixture
def job(tiny, tiny_engine, tasks): return Job(tasks[:60], {'teacher': 1.0}, lambda spec: make_teacher(spec, tiny), lambda: ShopSim(tiny, tiny_engine), target=30)


# the teacher

@pytest.mark.parametrize('view, noise, least', [('compact', QUIET, 0.95), ('compact', Noise(), 0.85), ('published', QUIET, 0.95), ('compact', Noise(.5, .5, .5, .5), 0.85)])
def test_the_teacher_succeeds(view, noise, least, tiny, tiny_engine, tasks):
    env = ShopSim(tiny, tiny_engine, view=view)
    done = [rollout(Teacher(tiny, noise), env, t, episode_seed(1, t, 0)) for t in tasks[:100]]
    assert not [r['error'] for r in done if 'error' in r]
    assert sum(r['success'] for r in done) >= least * len(done)
    assert any('mistake' in s for r in done for s in r['steps']) == (noise != QUIET)


def test_the_teacher_is_the_same_for_a_seed_and_varied_over_seeds(tiny, env, tasks):
    plain = lambda r: {k: v for k, v in r.items() if k != 'timing'}
    one = Teacher(tiny)
    assert [plain(rollout(one, env, t, 5)) for t in tasks[:10]] == [plain(rollout(Teacher(tiny), env, t, 5)) for t in tasks[:10]]
    assert len({json.dumps([s['action'] for s in rollout(one, env, tasks[0], seed)['steps']]) for seed in range(20)}) > 3


class Blind(ShopSim):
    "A shop whose pages show nothing but the names of hits, while their data says everything."
    def step(self, action):
        s = super().step(action)
        text = '\n'.join(line.split(' | ')[0] + ' | ?' for line in s.observation.text.split('\n') if ' | ' in line and line[0].isdigit()) or '?'
        return replace(s, observation=replace(s.observation, text=text))


def test_what_the_text_does_not_show_is_not_used(tiny, tiny_engine, tasks):
    "Options that stand in the data only are never selected, and no hit is preferred for a title that was cut away."
    env = Blind(tiny, tiny_engine)
    for t in tasks[:15]:
        steps = rollout(Teacher(tiny, QUIET), env, t, 0)['steps']
        assert not any(s['action'].get('name') == 'select_option' for s in steps)
        first = next((i for i, s in enumerate(steps) if s['action'].get('name') == 'open_product'), None)
        if first: assert steps[first]['action']['args']['asin'] == steps[first - 1]['observation'].split(' | ')[0]


def test_the_teacher_does_not_know_what_nobody_told(tiny, env, tasks):
    "Until it has asked, a wish that is withheld changes nothing; the accepted set never does."
    for t in [t for t in tasks if t.scenario in ('multi', 'both')][:8]:
        wishes = tuple(replace(c, value=100 if c.kind == 'price' else 'something else') if c.source == 'clarification' else c for c in t.goal.constraints)
        other = replace(t, goal=replace(t.goal, constraints=wishes, accepted=('0-0',), target_variant='0-0'))
        acts = lambda t: [s['action'] for s in rollout(Teacher(tiny, questions=0), env, t, 7)['steps']]
        assert acts(t) == acts(other)
        asked = rollout(Teacher(tiny, QUIET), env, t, 7)['steps']
        assert asked[0]['action']['name'] == 'ask_shopper' and sum(s['action']['name'] == 'ask_shopper' for s in asked) <= 2


def test_noise_and_hits_are_checked():
    with pytest.raises(PolicyError, match='noise vague must lie in 0 to 1'): Noise(vague=2)
    with pytest.raises(PolicyError, match='needs the task'): Teacher(None).begin(None, 0)
    assert read_hits(Observation('nothing', data=dict(products=[dict(asin='1', rank=1, price='¥1.00')]))) == []


# the filter

def test_a_forged_record_does_not_pass_the_replay(rows, env, tasks):
    "Any observation, argument, grade or seed that is not what happened."
    row, task = next((r, t) for r, t in zip(rows, tasks) if r['success'] and r['n_steps'] > 6)
    assert replay(row, env, task)[1] == ''
    for i, s in enumerate(row['steps']):
        forged = lambda **k: row | dict(steps=[*row['steps'][:i], s | k, *row['steps'][i + 1:]])
        bad = [forged(observation=s['observation'] + 'x'), forged(error=not s['error']), row | dict(steps=row['steps'][:i])]
        if s['action']['name'] == 'open_product' and not s['error']: bad.append(forged(action=dict(name='open_product', args={'asin': '1'})))
        assert all(replay(b, env, task)[1] for b in bad), i
    for changed in (dict(outcome='abstained'), dict(prompt='other'), dict(reward=row['reward'] | dict(kind='partial_purchase')), dict(native=row['native'] | dict(kind='gold')), ):
        if changed != {k: row[k] for k in changed}: assert examine(row | changed, env, task).reasons


def test_every_rejection_has_its_reason(rows, env, tasks):
    ok, task = next((r, t) for r, t in zip(rows, tasks) if not faults(r, t, Rules()))
    step = ok['steps'][0]
    cases = {'an infrastructure error': dict(outcome='error'), 'no training task': dict(split='test'), 'of another task': dict(task_key='x'), 'no purchase': dict(outcome='loop', success=False), 'not what was asked for': dict(success=False),
        'text instead of a call': dict(steps=[step | dict(action={'text': 'hm'})]), 'several calls in a turn': dict(steps=[step | dict(calls=2)]), 'a turn that was cut off': dict(steps=[step | dict(finish='length')]),
        'too many turns': dict(steps=[step] * 17), 'too many refusals': dict(steps=[step | dict(error=True)] * 3)}
    for why, change in cases.items(): assert why in faults(ok | change, task, Rules()), why


def test_messages_hold_nothing_private(rows, env, tasks):
    "Canaries: ids of accepted variants, keys, thoughts, a teacher's prose; all are in the record and none in the messages."
    checked = 0
    for row, t in zip(rows, tasks):
        row = row | dict(messages=[dict(role='system', content='a system prompt of the teacher'), dict(role='assistant', content='let me think', reasoning_content='I see through the goal: CANARY')], steps=[s | dict(why='CANARY of a thought') for s in row['steps']])
        demo = examine(row, env, t, Rules(system='shop well', possible=True))
        if demo.reasons: continue
        text = json.dumps(demo.messages, ensure_ascii=False)
        assert 'CANARY' not in text and 'let me think' not in text and not any(x in text for x in (*t.goal.accepted, t.goal.target_variant, t.key) if '-' in x or x == t.key)
        assert {k for m in demo.messages for k in m} <= {'role', 'content', 'tool_calls', 'tool_call_id'} and demo.messages[0]['content'] == 'shop well'
        assert 'CANARY' in ' '.join(secrets(row, t)) and leak(demo.messages + [dict(role='tool', content='CANARY of a thought')], row, t)
        checked += 1
    assert checked > 90


@pytest.mark.parametrize('refused', ['mask', 'drop'])
def test_mistakes_are_not_trained_on(refused, tiny, env, tasks):
    "The calls that training sees are those of a shopper who made no mistake; with `drop` the refused ones are gone."
    for t in tasks[:25]:
        row = rollout(Teacher(tiny, Noise(1, 1, 1, 1)), env, t, 2)
        demo = examine(row, env, t, Rules(turns=35, refused=refused))
        if demo.reasons: continue
        wrong = [s for s in row['steps'] if s.get('mistake') or s['error']]
        calls = [m['tool_calls'][0]['function'] for i, m in enumerate(demo.messages) if m['role'] == 'assistant' and i not in demo.untrained]
        kept = [s for s in wrong if refused == 'mask' or not s['error']]
        assert len(demo.untrained) == len(kept) and len(calls) == len(row['steps']) - len(wrong)
        assert all(demo.messages[i]['role'] == 'assistant' for i in demo.untrained) and calls[-1]['name'] == 'buy_now'
        roles = [m['role'] for m in demo.messages]
        assert roles == ['user'] + ['assistant', 'tool'] * ((len(roles) - 2) // 2) + ['assistant']


def test_selection_caps_and_balance(rows, env, tasks):
    good = [d for d in (examine(r, env, t) for r, t in zip(rows, tasks)) if not d.reasons]
    choice = Selection(per_product=1)
    one = [replace(d, product='7') for d in good[:3]]
    assert choice.take(one[0]) == [] and choice.take(one[1]) == ['enough rows of its product']
    assert [choice.take(replace(d, product='')) for d in good[1:4]] == [[], [], []], 'rows that buy nothing are not rows of one product'
    assert choice.take(replace(good[0], product='8')) == ['a second row of its task', 'the same conversation again']
    mix = [replace(d, row=d.row | dict(teacher='b' if i % 3 else 'a')) for i, d in enumerate(good)]
    kept, left = balance(mix, dict(a=.5, b=.5))
    tokens = {w: sum(d.tokens for d in kept if d.teacher == w) for w in 'ab'}
    assert kept + left and abs(tokens['a'] - tokens['b']) < max(d.tokens for d in mix) and {d.teacher for d in left} == {'b'}


# the collection

def script(job_root, target=30):
    "A process that collects; its parts are as the tests have them."
    return textwrap.dedent(f'''
        import sys
        from pathlib import Path
        from shopping_grpo.catalog import Catalog
        from shopping_grpo.collect import Job, collect, make_teacher, write_dataset
        from shopping_grpo.envs.shopsim import ShopSim
        from shopping_grpo.search import Tantivy
        from shopping_grpo.store import Run
        from shopping_grpo.task import load_tasks
        where, name, pause = Path({str(job_root)!r}), sys.argv[1], float(sys.argv[2])
        catalog = Catalog(sys.argv[3]); engine = Tantivy(sys.argv[4], catalog)
        import time
        job = Job(load_tasks(where/'tasks.jsonl'), {{'teacher': .7, 'rule': .3}}, lambda spec: make_teacher(spec, catalog), lambda: ShopSim(catalog, engine), target={target}, workers=int(sys.argv[5]))
        with Run.open('collect', name, config=dict(target={target}), root=where) as run:
            print('open', flush=True)
            accepted, rejected = collect(run, job, progress=lambda row: (print('row', flush=True), time.sleep(pause)))
            write_dataset(run.path, accepted, rejected, catalog, job.mix, seed=1)
        print('done', flush=True)
    ''')


def test_killed_and_resumed_it_accepts_the_same(tmp_path, tiny, tiny_engine, tasks):
    "kill -9 at several moments, another number of workers each time; the files are those of a run that nobody disturbed."
    save_tasks(tmp_path/'tasks.jsonl', tasks[:60])
    (tmp_path/'go.py').write_text(script(tmp_path))
    go = lambda name, pause, workers: [sys.executable, str(tmp_path/'go.py'), name, str(pause), str(tiny.path), str(tiny_engine.path), str(workers)]
    assert subprocess.run(go('whole', 0, 1), capture_output=True, text=True, check=True).stdout.endswith('done\n')
    kills = 0
    for rows, workers in ((3, 1), (17, 3), (5, 2)):
        p = subprocess.Popen(go('torn', 0.02, workers), stdout=subprocess.PIPE, text=True)
        seen = 0
        while seen < rows and (line := p.stdout.readline()): seen += line == 'row\n'
        kills += p.poll() is None
        p.send_signal(signal.SIGKILL); p.wait()
        with open(tmp_path/'collect'/'torn'/'episodes.jsonl', 'ab') as f: f.write(b'{"task_key": "torn in the mid')
    assert kills == 3
    last = subprocess.run(go('torn', 0, 2), capture_output=True, text=True, check=True).stdout
    assert 'goes on' in last and 'cut 29 bytes' in last
    whole, torn = (Run.load(tmp_path/'collect'/n) for n in ('whole', 'torn'))
    assert torn.counts() == whole.counts() and torn.counts()['retried'] == 0 and len(torn.manifest['sittings']) == 4
    for f in ('accepted.jsonl', 'rejected.jsonl', 'sft/train.jsonl', 'sft/validation.jsonl', 'sft/tools.json', 'dataset.json', 'CARD.md'):
        assert (torn.path/f).read_bytes() == (whole.path/f).read_bytes(), f
    assert torn.changed() == []


def test_workers_and_order_change_nothing(tmp_path, job):
    done = {}
    for workers in (1, 4):
        with Run.open('collect', f'w{workers}', config={}, root=tmp_path) as run: done[workers] = collect(run, replace(job, workers=workers))
    assert [[d.row['id'] for d in part] for part in done[1]] == [[d.row['id'] for d in part] for part in done[4]]


def test_a_target_is_not_overshot_and_attempts_run_out(tmp_path, job):
    with Run.open('collect', 'few', config={}, root=tmp_path) as run: accepted, _ = collect(run, replace(job, target=5))
    assert len(accepted) == 5 and run.counts()['done'] < 10
    hopeless = replace(job, tasks=job.tasks[:4], mix={'do-nothing': 1.0}, attempts=3)
    with Run.open('collect', 'none', config={}, root=tmp_path) as run: accepted, rejected = collect(run, hopeless)
    assert accepted == [] and len(rejected) == 12 and all('no purchase' in d.reasons for d in rejected)
    facts = write_dataset(run.path, accepted, rejected, job.make_env().catalog, hopeless.mix)
    assert facts['counts'] == dict(accepted=0, rejected=12, train=0, validation=0) and load_sft(run.path) == []


def test_only_training_tasks_by_construction(tmp_path, tiny, job, monkeypatch):
    "Neither val nor test, nor a test task under another split, nor the stage with their file."
    requests = Requests(tiny, seed=3)
    for split in ('val', 'test'):
        with pytest.raises(DataError, match=f"of split '{split}'; demonstrations are collected on split 'train' only"): replace(job, tasks=requests.tasks(split, 2))
    final = json.loads((ROOT/'data'/'splits'/'shopsim-tiny.json').read_text())
    assert 'split' not in {p.name for p in __import__('dataclasses').fields(Job)}
    t = replace(job.tasks[0], prompt='in other words')
    (tmp_path/'data'/'splits').mkdir(parents=True); (tmp_path/'settings.ini').write_text('[paths]\ndata = data\n')
    from shopping_grpo.core import digest
    (tmp_path/'data'/'splits'/'x.json').write_text(json.dumps(dict(splits=dict(test=dict(keys=[], goals=[digest(t.goal)])))))
    monkeypatch.setenv('SHOPPING_GRPO_ROOT', str(tmp_path))
    with pytest.raises(DataError, match='is in a final set'): replace(job, tasks=[t])
    assert final['splits']['test']['goals']


def test_validation_shares_no_product(tiny, rows, env, tasks, tmp_path):
    good = [d for d in (examine(r, env, t) for r, t in zip(rows, tasks)) if not d.reasons]
    train, validation = split_demos(good, tiny, 0.2, 0)
    groups = lambda ds: {int(tiny.column('group')[tiny.row(d.product)]) for d in ds}
    assert not groups(train) & groups(validation) and len(train) + len(validation) == len(good) and len(validation) >= 0.2 * len(good)
    write_dataset(tmp_path, good, [], tiny, {'teacher': 1.0}, 0.2)
    data, episodes = load_sft(tmp_path), load_episodes(tmp_path)
    assert len(data) == len(train) and [r['id'] for r in data] == [r['id'] for r in episodes] and {p['function']['name'] for r in data for p in r['tools']} >= {'search_products', 'ask_shopper'}
    assert sum(not s['trained'] for r in episodes for s in r['steps']) == sum(len(r['untrained']) for r in data) > 0
    (tmp_path/'sft'/'train.jsonl').write_text('{}')
    with pytest.raises(DataError, match='is not what was collected'): load_sft(tmp_path)
    with pytest.raises(DataError, match='no part'): load_sft(tmp_path, 'test')


# endpoints

class Model(BaseHTTPRequestHandler):
    "A served model that plays by heart: it knows plans by request, and says more than it should."
    protocol_version, wbufsize, plans, heard, broken = 'HTTP/1.1', -1, {}, [], False
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        self.heard.append(asked['messages'][0]['content'])
        n = sum(m['role'] == 'assistant' for m in asked['messages'])
        plan = next(p for prompt, p in self.plans.items() if prompt in asked['messages'][1]['content'])
        name, args = plan[min(n, len(plan) - 1)]
        call = dict(id=f'c{n}', type='function', function=dict(name=name, arguments=json.dumps(args)))
        message = dict(content='PROSE of the teacher', reasoning_content='THOUGHT of the teacher', tool_calls=[call])
        body = json.dumps(dict(choices=[dict(message=message, finish_reason='tool_calls')], usage=dict(prompt_tokens=100, completion_tokens=10))).encode()
        self.send_response(500 if self.broken else 200)
        self.send_header('Content-Length', str(len(body))); self.end_headers(); self.wfile.write(body)
    def log_message(self, *_): pass


@pytest.fixture
def served(tiny, env, job):
    plans = {rollout(Teacher(tiny, QUIET), env, t, 0)['prompt']: [(s['action']['name'], s['action']['args']) for s in rollout(Teacher(tiny, QUIET), env, t, 0)['steps']] for t in job.tasks}
    handler = type('Served', (Model,), dict(plans=plans, heard=[], broken=False))
    server = ThreadingHTTPServer(('127.0.0.1', 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield handler, f'endpoint:m@http://127.0.0.1:{server.server_port}/v1'
    server.shutdown(); server.server_close()


def test_a_mix_with_an_endpoint(tmp_path, tiny, job, served):
    "Shares, the sentence to converge, tools at once by four workers; and no word of the model comes through but its calls."
    handler, spec = served
    mixed = replace(job, mix=shares(['teacher', spec], [1, 1]), make=lambda s: make_teacher(s, tiny, converge=True, tries=2, backoff=0), workers=4)
    with Run.open('collect', 'mix', config={}, root=tmp_path) as run: accepted, rejected = collect(run, mixed)
    facts = write_dataset(run.path, accepted, rejected, tiny, mixed.mix)
    text = (run.path/'sft'/'train.jsonl').read_text()
    assert {d.teacher for d in accepted} == {'teacher', spec} and len(accepted) == 30
    assert all(h.endswith((CONVERGE['zh'], CONVERGE['en'])) for h in handler.heard)
    assert not any(x in text for x in ('PROSE', 'THOUGHT', CONVERGE['zh'][:8], CONVERGE['en'][:12])) and 'THOUGHT' in (run.path/'episodes.jsonl').read_text()
    tokens = {w: sum(r['supervised'] for part in ('train', 'validation') for r in load_sft(run.path, part) if r['teacher'] == w) for w in mixed.mix}
    assert max(tokens.values()) - min(tokens.values()) < 400 and facts['counts']['accepted'] <= 30 and run.usage()['prompt'] > 0


def test_the_seven_gates(tmp_path, tiny, job, served):
    "An oracle-assisted endpoint with reasons and a second opinion: hints reach the teacher and the audit file, never the student; a kill between two opinions asks for none twice."
    handler, spec = served
    class Opinionated(handler): pass
    opinions, asked = {}, []
    class Judge(BaseHTTPRequestHandler):
        protocol_version, wbufsize = 'HTTP/1.1', -1
        def do_POST(self):
            text = json.loads(self.rfile.read(int(self.headers['Content-Length'])))['messages'][1]['content']
            asked.append(text)
            sure = opinions.setdefault(text, [0.9, 0.85, 0.8, None][len(opinions) % 4])
            body = json.dumps(dict(choices=[dict(message=dict(content=json.dumps(dict(agrees=sure is not None, confidence=sure or 1.0))))])).encode()
            self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers(); self.wfile.write(body)
        def log_message(self, *_): pass
    server = ThreadingHTTPServer(('127.0.0.1', 0), Judge)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    judge = lambda path: second_opinion(f'endpoint:j@http://127.0.0.1:{server.server_port}/v1', tiny, path/'opinions.jsonl')
    gated = replace(job, tasks=job.tasks[:24], target=24, attempts=1, mix={spec: 1.0}, make=lambda s: make_teacher(s, tiny, assist=True), rules=Rules(refusals=0, per_product=20, rationale=30))
    def run_(name):
        with Run.open('collect', name, config={}, root=tmp_path) as run:
            accepted, rejected = collect(run, replace(gated, second=judge(run.path)))
            return run.path, accepted, rejected, write_dataset(run.path, accepted, rejected, tiny, gated.mix, 0.1)
    path, accepted, rejected, facts = run_('gates')
    assert len(accepted) > 5 and {'a second opinion is not sure', 'a second opinion disagrees'} <= set(facts['reasons'])
    told = [h.partition(PRIVATE)[2] for h in handler.heard]
    assert all(told) and all(tiny[d.product].title for d in accepted)
    clean = [json.loads(x) for part in ('train', 'validation') for x in (path/'sft'/f'{part}.jsonl').read_text().splitlines()]
    assert len(clean) == len(accepted) and all(m['content'] == 'PROSE of the teacher' for r in clean for m in r['messages'] if m['role'] == 'assistant') # the reason stays
    assert PRIVATE not in json.dumps(clean) and 'THOUGHT' not in json.dumps(clean) and PRIVATE in (path/'accepted.jsonl').read_text() # and the hints are in the audit file alone
    before = len(asked)
    lines = (path/'opinions.jsonl').read_text().splitlines(True)
    assert before == len(lines) == len(accepted) + sum(d.reasons[0].startswith('a second opinion') for d in rejected)
    (tmp_path/'collect'/'again').mkdir(parents=True); (tmp_path/'collect'/'again'/'opinions.jsonl').write_text(''.join(lines[:-2]) + lines[-2][:20]) # killed in the middle of a line
    again = run_('again')
    assert len(asked) == before + 2 and [d.row['id'] for d in again[1]] == [d.row['id'] for d in accepted]
    server.shutdown(); server.server_close()
    hinted = next(d for d in accepted)
    line = hinted.row['messages'][0]['content'].splitlines()[-1]
    title = hinted.row['messages'][0]['content'].partition(PRIVATE)[2].splitlines()[1]
    messages = [*hinted.messages[:1], dict(role='assistant', content=f'they told me: {title}'), *hinted.messages[2:]]
    assert leak(hinted.messages, hinted.row, job.tasks[0]) == '' and leak(messages, hinted.row, job.tasks[0]) == repr(title[:40]) and line
    for how in (dict(rationale=10), dict(rationale=30, grade='native'), dict(rationale=30, grade='both')):
        found = [faults(d.row, job.tasks[0], Rules(**how)) for d in accepted]
        assert all(('a turn without a short reason' in f) == (how['rationale'] == 10) for f in found)
        if 'grade' in how: assert [('not paid in full by the published rule' in f) for f in found] == [d.row['native']['value'] != 1 for d in accepted]
    with pytest.raises(DataError, match='grade must be verified, native or both'): Rules(grade='any')
    with pytest.raises(DataError, match='a second opinion comes from an endpoint'): second_opinion('rule', tiny, tmp_path/'x')
    with pytest.raises(PolicyError, match='needs the task'): make_teacher(spec, tiny, assist=True).begin(None, 0)


def test_a_broken_endpoint_stops_with_one_line_and_keeps_what_is_there(tmp_path, tiny, job, served):
    handler, spec = served
    both = replace(job, mix=shares(['teacher', spec], [1, 1]), make=lambda s: make_teacher(s, tiny, tries=1))
    handler.broken = True
    with pytest.raises(PolicyError, match=r'^all \d+ episodes of endpoint:m@.* broke; the last: m: the server answered 500[^\n]*mend it and run again'):
        with Run.open('collect', 'down', config={}, root=tmp_path) as run: collect(run, both)
    kept = Run.load(run.path).counts()['done']
    assert kept > 5 and Run.load(run.path).status == 'failed'
    handler.broken = False
    with Run.open('collect', 'down', config={}, root=tmp_path) as run: accepted, _ = collect(run, both)
    assert len(accepted) == 30 and run.status == 'done' and run.counts()['errored'] == 0


def test_teachers_are_checked():
    with pytest.raises(DataError, match='stands twice'): shares(['teacher', 'teacher'], [])
    with pytest.raises(DataError, match='2 teachers need 2 weights'): shares(['teacher', 'rule'], [1])
    with pytest.raises(PolicyError, match="policy 'genius' is unknown"): make_teacher('genius', None)


# the stage

def test_the_stage(tmp_path, monkeypatch):
    "A run of the notebook in a root of its own; a file of val tasks in place of the training tasks is refused in one line."
    from shopping_grpo.core import ShopError
    (tmp_path/'nbs').symlink_to(ROOT/'nbs')
    (tmp_path/'settings.ini').write_text((ROOT/'settings.ini').read_text())
    monkeypatch.setenv('SHOPPING_GRPO_ROOT', str(tmp_path))
    run_stage('05', {'tasks': 30}, quiet=True)
    out = run_stage('collect', {'target': 12, 'name': 'twelve', 'shop': {"view": "published"}}, quiet=True)
    facts = json.loads((out.parent/'dataset.json').read_text())
    assert facts['counts']['accepted'] == 12 and facts['config']['shop'] == {'view': 'published'} and (out.parent/'paths.svg').exists()
    assert Run.load(out.parent).status == 'done' and 'page_type' in json.dumps(load_sft(out.parent)[0]['messages'])
    where = folder('data')/'built'/'tiny'/'tasks'
    given = load_tasks(where/'shopsim-train.jsonl')
    half, kin = some_families(given, load_env('shopsim', size='tiny').catalog, [0, .5]), lambda out: {r['task_key'] for r in Run.load(out.parent).episodes()}
    played = kin(run_stage('collect', {'target': 4, 'name': 'half', 'families': [0, .5]}, quiet=True))
    assert played and played <= {t.key for t in half} < {t.key for t in given}
    (where/'shopsim-train.jsonl').write_bytes((where/'shopsim-val.jsonl').read_bytes())
    with pytest.raises(ShopError, match=r"belongs to split 'val', not to 'train'"): run_stage('collect', {'name': 'leak'}, quiet=True)
    assert not (tmp_path/'runs'/'collect'/'leak'/'episodes.jsonl').exists()


def test_thoughts_stand_before_the_calls_they_belong_to():
    "`aloud` puts each thought before its call, also where refused calls were dropped, and changes nothing else."
    from shopping_grpo.collect import aloud
    call = lambda n: dict(role='assistant', content='', tool_calls=[dict(id=f'call_{n}', type='function', function=dict(name='f', arguments='{}'))])
    row = dict(id='x', messages=[dict(role='user', content='?'), call(0), dict(role='tool', content='a'), call(2)], untrained=[])
    steps = [dict(why='first', error=False), dict(why='wrong', error=True), dict(think='then', error=False)]
    assert [m.get('content') for m in aloud(row, steps)['messages']] == ['?', '<think>first</think>', 'a', '<think>then</think>']
    assert [m.get('content') for m in aloud(row, [steps[0], dict(error=False)])['messages']] == ['?', '<think>first</think>', 'a', ''] and row['messages'][1]['content'] == ''
    with pytest.raises(ValueError): aloud(row, steps[:1])
