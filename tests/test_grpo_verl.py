"""verl: settings, a data set without goals, one line for each fault; and our episodes, advantages and losses are what verl sees, for all families."""
import asyncio, copy, importlib.util, json, math, os, random, signal, subprocess, sys, time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
import numpy as np, psutil, pyarrow.parquet as pq, pytest, torch
from toyshop import toy_model
from shopping_grpo.core import DataError, Draws
from shopping_grpo.env import Outcome
from shopping_grpo.envs.ecomrlve import EcomRLVE
from shopping_grpo.envs.ecomrlve_kinds import Talks
from shopping_grpo.envs.shoppingbench import ShoppingBench
from shopping_grpo.envs.shoppingbench_build import requests_for
from shopping_grpo.envs.shoppingbench_shop import Market
from shopping_grpo.envs.shopsim import ShopSim
from shopping_grpo.envs.webshop import WebShop
from shopping_grpo.envs.webshop_shop import WebRequests
from shopping_grpo.generate import generate
from shopping_grpo.grpo import ALGORITHMS, Recipe, policy_loss, token_weights
from shopping_grpo.grpo_local import play, samples
from shopping_grpo.grpo_verl import MARK, PROFILES, Profile, checkpoint, command, end, fit, prepare, rewind, rounds_of, save_rows, surroundings, versions
from shopping_grpo.lockstep import Sampling, Seat, training_tokens
from shopping_grpo.model import LanguageModel, Shape, new_model, train_tokenizer
from shopping_grpo.policy import scripted
from shopping_grpo.request import Requests
from shopping_grpo.rollout import episode_seed, rollout
from shopping_grpo.scheduler import plan
from shopping_grpo.search import build_index
from shopping_grpo.task import save_tasks
from shopping_grpo.template import Template
from shopping_grpo.toy import Toy, toy_tasks
from shopping_grpo.verl_play import Job, ShopLoop, build, place, slim, spell
from shopping_grpo.verl_train import compare

needs_verl = pytest.mark.skipif(importlib.util.find_spec('verl') is None, reason='verl is not installed here; environments/verl_cpu/README.md says how')
FAMILIES = ('shopsim', 'webshop', 'shoppingbench', 'ecomrlve')
SMALL = Recipe('gigpo', groups=4, n=2, steps=3, muon=0, max_new=200, max_length=2000, minibatches=1, beta=.01)
WORLDS = {}


def world(name): return WORLDS[name] # found by its name, as a worker finds its shop


@pytest.fixture(scope='module')
def policy(): return toy_model()


@pytest.fixture(scope='module')
def shops(tmp_path_factory):
    "Nine tasks of every family, and a model that can read them all."
    where = tmp_path_factory.mktemp('verl')
    catalog = generate(where/'catalog', 'tiny', languages=('en',), workers=1)[0]
    engine, market = build_index(where/'index', catalog, workers=1), Market(where/'index', catalog)
    talks = Talks(catalog, 5)
    WORLDS.update(shopsim=ShopSim(catalog, engine, view='brief', page_size=4), webshop=WebShop(catalog, engine), shoppingbench=ShoppingBench(catalog, market), ecomrlve=EcomRLVE(catalog, market))
    tasks = dict(shopsim=Requests(catalog, seed=1).tasks('train', 9), webshop=WebRequests(catalog, seed=5).tasks('train', 9), shoppingbench=requests_for(catalog, 5).tasks('train', 9), ecomrlve=[talks.at('train', i, 3, k) for i, k in enumerate((*talks.kinds, talks.kinds[0]))])
    tok = train_tokenizer([t.prompt for ts in tasks.values() for t in ts] * 4, WORLDS['shopsim'].tools, 700)
    return SimpleNamespace(tasks=tasks, lm=LanguageModel('small', new_model(Shape(hidden=16, layers=1, heads=1, inner=32, length=2048), len(tok), tok.pad_token_id, tok.eos_token_id), tok))


class Script:
    "What is written in each turn of an attempt: the calls of the oracle, calls bent out of shape, or anything."
    def __init__(self, name, tasks, template, recipe):
        self.template, self.vocab, self.made = template, len(template.tokenizer), {}
        for t in tasks:
            env = copy.copy(WORLDS[name])
            row = rollout(scripted('oracle', env.catalog), env, t, episode_seed(1, t, 0))
            known = {x.name: x for x in env.tools}
            self.made[t.key] = [self.write(s['action'], known) for s in row['steps']]

    def write(self, a, known):
        from shopping_grpo.env import Message, ToolCall
        return self.template.write(Message(a['text']) if 'text' in a else ToolCall(a['name'], a['args']), known)

    def turn(self, key, attempt, n, most):
        plan, d = self.made[key], Draws('script', key, attempt, n)
        ids = plan[min(n, len(plan) - 1)] if plan else [self.template.end]
        if attempt == 1: ids = [i for i in ids if d.uniform()[0] < .9] or [self.template.end]
        if attempt == 2: ids = [d.one(self.vocab) for _ in range(1 + d.one(80))] + [self.template.end] * d.one(2)
        return ids[:most]


class Scripted(Seat):
    "Our own rollout of the same tokens."
    def __init__(self, template, sampling, script, key, attempt):
        super().__init__('policy', template, sampling)
        self.script, self.key, self.attempt = script, key, attempt
    def begin(self, briefing, seed): super().begin(briefing, seed); self.turn = 0
    def act(self, observation):
        if self.length: self.hear(observation.text)
        if self.room <= 0: return Outcome.max_tokens
        self.ids = self.script.turn(self.key, self.attempt, self.turn, self.room)
        self.scores, self.turn = [-.5] * len(self.ids), self.turn + 1
        return self.take()


class Server:
    "Stands for vLLM: the same tokens to whoever asks for an attempt; one attempt in ten breaks."
    def __init__(self, script, broken=()): self.script, self.broken, self.turns = script, broken, {}
    async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
        key, attempt, _ = request_id.rsplit('-', 2)
        n = self.turns[request_id] = self.turns.get(request_id, -1) + 1
        if (key, int(attempt)) in self.broken: raise ConnectionError('the server is gone')
        ids = self.script.turn(key, int(attempt), n, sampling_params['max_tokens'])
        facts = dict(token_ids=ids, log_probs=[-.5] * len(ids), stop_reason='completed', extra_fields=dict(global_steps=3, min_global_steps=3, max_global_steps=3))
        if importlib.util.find_spec('verl') is None: return SimpleNamespace(**facts)
        from verl.workers.rollout.replica import TokenOutput
        return TokenOutput(**facts)


@pytest.fixture
def family(request, shops, tmp_path):
    "A job of one family, its script, and our own rollouts of it."
    name, template = request.param, Template(shops.lm.tokenizer)
    tasks, job = shops.tasks[name], prepare(tmp_path/'verl', shops.lm.model, template, partial(world, name), shops.tasks[name], [], SMALL)
    script, sampling = Script(name, tasks, template, SMALL), Sampling(1.0, max_new=SMALL.max_new, max_length=SMALL.max_length)
    rows = {(t.key, a): rollout(Scripted(template, sampling, script, t.key, a), copy.copy(WORLDS[name]), t, episode_seed(1, t, a), a, states=True, max_seconds=math.inf) for t in tasks for a in range(3)}
    return SimpleNamespace(name=name, job=job, script=script, tasks=tasks, rows=rows, broken={(tasks[-1].key, 2)}, template=template)


def info(n, a): return dict(split='train', number=n, seed=1, attempt=a, index=n)
def plain(row): return {k: v for k, v in row.items() if k != 'timing'}


@pytest.mark.parametrize('family', FAMILIES, indirect=True)
def test_the_loop_plays_what_our_rollout_plays(family):
    async def all_of_it(): return [(await ShopLoop(Server(family.script, family.broken), str(family.job.folder)).converse({}, info(n, a)))[0] for n in range(9) for a in range(3)]
    played = asyncio.run(all_of_it())
    outcomes = set()
    for row in played:
        ours = family.rows[row['task_key'], row['attempt']]
        outcomes.add(row['outcome'])
        if (row['task_key'], row['attempt']) in family.broken: assert row['outcome'] == 'error' and not row['reward']['valid'] and row['error']['type'] == 'ConnectionError'
        else: assert plain(row) == plain(ours)
    assert any(r['success'] for r in played) and len(outcomes) >= 3 and any(not r['success'] and r['reward']['valid'] for r in played)


@needs_verl
@pytest.mark.parametrize('family', FAMILIES, indirect=True)
def test_verls_own_worker_hands_over_masks_and_rewards_as_we_have_them(family):
    "27 episodes of each of four families through AgentLoopWorker: dispatch, padding, masks, rewards."
    from tensordict import TensorDict # noqa: F401
    from verl import DataProto
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
    config = composed(command(family.job.folder, SMALL, Profile('test'), False)[3:])
    pairs = [(n, a) for n in range(9) for a in range(3)]
    objects = lambda xs: (lambda out: (out.__setitem__(slice(None), xs), out)[1])(np.empty(len(xs), dtype=object))
    async def work():
        worker = AgentLoopWorker(config, llm_client=Server(family.script, family.broken))
        batch = DataProto.from_dict(tensors=dict(dummy=torch.zeros(len(pairs), 1)), meta_info=dict(global_steps=3), non_tensors=dict(raw_prompt=objects([[dict(role='user', content='?')]] * len(pairs)),
            extra_info=objects([info(n, a) for n, a in pairs]), index=np.arange(len(pairs)), agent_name=np.array(['shopping'] * len(pairs), dtype=object)))
        return await worker.generate_sequences(batch)
    out, width = asyncio.run(work()), SMALL.max_length
    for i, (n, a) in enumerate(pairs):
        row = family.rows[family.tasks[n].key, a]
        seen, mask, paid = out.batch['attention_mask'][i].bool(), out.batch['response_mask'][i], float(out.batch['rm_scores'][i].sum())
        if (row['task_key'], a) in family.broken: assert mask.sum() == 0 and paid == 0 and not out.non_tensor_batch['valid'][i]; continue
        ids, ours, scores = training_tokens(row)
        assert torch.cat([out.batch['prompts'][i][seen[:width]], out.batch['responses'][i][seen[width:]]]).tolist() == ids
        assert mask[seen[width:]].tolist() == ours[-int(seen[width:].sum()):] and int(mask.sum()) == sum(ours)
        assert abs(paid - SMALL.pay(row)) < 1e-6 and out.non_tensor_batch['success'][i] == row['success'] and out.non_tensor_batch['refused'][i] == row['guard_rejections']
        assert torch.allclose(out.batch['rollout_log_probs'][i][seen[width:]], torch.tensor(scores[-int(seen[width:].sum()):]))


# ---- the data set and the settings
@pytest.mark.parametrize('name', FAMILIES)
def test_what_verl_reads_holds_no_goal_and_no_request(shops, tmp_path, name):
    tasks = shops.tasks[name]
    save_rows(tmp_path/'d.parquet', rounds_of(tasks, SMALL), 'train', name)
    raw = str(pq.read_table(tmp_path/'d.parquet').to_pylist())
    for t in tasks: assert t.prompt not in raw and t.key not in raw and not any(a in raw for a in t.goal.accepted if len(a) > 3)
    assert set(pq.read_table(tmp_path/'d.parquet').to_pylist()[0]['extra_info']) == {'number', 'seed', 'attempt', 'index', 'split'}


def test_the_rows_are_the_lessons_of_the_reference_loop():
    tasks, recipe = toy_tasks(), Recipe(groups=6, n=3, steps=5, seed=9)
    rows, lessons = rounds_of(tasks, recipe), plan(tasks, seed=9)
    for step in range(5):
        mine = rows[6 * step:6 * step + 6]
        assert [tasks[r['number']].key for r in mine] == [x.task.key for x in lessons.draw(6)]
        assert {r['seed'] for r in mine} == {Draws(9, 'rollout', step, 0).one(1 << 31)} and len({(r['number'], r['attempt']) for r in mine}) == 6


def composed(words):
    from hydra import compose, initialize_config_dir
    import verl
    with initialize_config_dir(config_dir=str(Path(verl.__file__).parent/'trainer'/'config'), version_base=None): return compose('ppo_trainer', overrides=list(words))


@needs_verl
@pytest.mark.parametrize('profile', PROFILES)
def test_verl_knows_every_setting(tmp_path, profile):
    config = composed(command(tmp_path/'it is a folder', SMALL, PROFILES[profile], True)[3:])
    assert config.data.train_files == str(tmp_path/'it is a folder'/'train.parquet') and config.actor_rollout_ref.actor.optim.override_optimizer_config.updates == 1 and config.trainer.v1.trainer_mode == 'shopping'
    assert config.actor_rollout_ref.rollout.temperature == 1 and config.actor_rollout_ref.actor.ppo_mini_batch_size == 4


@needs_verl
@pytest.mark.parametrize('name', ALGORITHMS)
def test_verls_loss_is_ours(tmp_path, name):
    "Value and gradient, with ratios far from 1, for the settings that a recipe becomes."
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.utils.config import omega_conf_to_dataclass
    recipe = Recipe(name, **{k: v for k, v in vars(SMALL).items() if k != 'algorithm'})
    config = omega_conf_to_dataclass(composed(command(tmp_path, recipe, Profile('test'), True)[3:]).actor_rollout_ref.actor)
    g = torch.Generator().manual_seed(1)
    mask, old = (torch.rand(6, 40, generator=g) < .6).long(), -torch.rand(6, 40, generator=g)
    advantage = torch.randn(6, 1, generator=g).expand(6, 40)
    now = old + (5e-4 if name == 'gspo' else .3) * torch.randn(6, 40, generator=g)
    config.global_batch_info.update(dp_size=1, batch_num_tokens=int(mask.sum()), global_batch_size=6, loss_scale_factor=config.loss_scale_factor)
    grads = []
    for loss in (lambda x: get_policy_loss_fn(config.policy_loss.loss_mode)(old_log_prob=old, log_prob=x, advantages=advantage, response_mask=mask.bool(), loss_agg_mode=config.loss_agg_mode, config=config)[0],
            lambda x: policy_loss(x, old, advantage, token_weights(mask, recipe.rule.mean, recipe.max_length), recipe.rule)[0]):
        x = now.clone().requires_grad_()
        value = loss(x)
        value.backward()
        grads.append((value.detach(), x.grad))
    assert torch.allclose(grads[0][0], grads[1][0], atol=1e-6) and torch.allclose(grads[0][1], grads[1][1], atol=1e-7, rtol=1e-4)


# ---- advantages
@pytest.fixture(scope='module')
def groups(policy): return play(*policy, Toy, toy_tasks() * 2, 8, 5, Sampling(max_new=24, max_length=160))


def ours(groups, recipe): # per episode the advantages of its own tokens, or None
    keyed = {f'{g}_{a}_0': json.loads(slim(r)) for g, rows in enumerate(groups) for a, r in enumerate(rows)}
    told, _ = compare(keyed, {k: k.split('_')[0] for k in keyed}, recipe)
    return [np.array(adv)[np.array(mask) > 0] for adv, mask in told.values()]


@pytest.mark.parametrize('name', ALGORITHMS)
def test_local_and_verl_have_the_same_advantages(groups, name):
    recipe = Recipe(name, groups=8, n=8)
    local = [np.array(s.advantage)[np.array(s.mask) > 0] for s in samples(groups, recipe)[0]]
    verl = [a for a in ours(groups, recipe) if len(a)]
    assert len(local) == len(verl) > 0 and all(np.allclose(a, b, rtol=0, atol=1e-6) for a, b in zip(local, verl))


@pytest.mark.parametrize('name', ALGORITHMS)
def test_trl_and_verl_have_the_same_advantages(groups, name):
    try: from shopping_grpo import grpo_trl as trl
    except (ImportError, RuntimeError) as e: pytest.skip(f'this trl does not load here: {str(e).splitlines()[-1]}') # trl 1.12 beside vllm 0.28
    recipe = Recipe(name, groups=8, n=8)
    turns = sum(trl.credit(groups, recipe)[0], [])
    for row, t, mine in zip(sum(groups, []), turns, ours(groups, recipe), strict=True):
        value, mask = trl.spread(training_tokens(row)[1], list(range(row['n_steps'])), t)
        assert np.allclose(value[mask > 0], mine, rtol=0, atol=1e-6)


@needs_verl
@pytest.mark.parametrize('name,scaled', [('grpo', True), ('dr_grpo', False)])
def test_verls_own_advantages_are_ours_where_it_has_them(groups, name, scaled):
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
    recipe = Recipe(name, groups=8, n=8, filter='everything')
    rows, index = sum(groups, []), np.repeat(np.arange(8), 8)
    paid = torch.tensor([[float(recipe.pay(r))] for r in rows])
    theirs = compute_grpo_outcome_advantage(paid, torch.ones(64, 1), index, epsilon=1e-4, norm_adv_by_std_in_grpo=scaled)[0][:, 0]
    assert all(np.allclose(a, float(t), rtol=0, atol=1e-6) for a, t in zip(ours(groups, recipe), theirs, strict=True))


def test_a_masked_episode_is_in_no_mean_and_in_no_loss(groups):
    "The others of its group are compared as if it had never been; the count of a group is not that of a batch."
    broken = [[dict(r, reward=dict(r['reward'], valid=False, value=None, kind='shop_down'), success=False, outcome='error') if a == 0 else r for a, r in enumerate(g)] for g in groups]
    recipe = Recipe('dr_grpo', groups=8, n=8, filter='everything')
    whole, rest = ours(broken, recipe), ours([g[1:] for g in groups], recipe)
    assert all(len(whole[8 * g]) == 0 for g in range(8)) and all(np.allclose(a, b) for a, b in zip((w for i, w in enumerate(whole) if i % 8), rest, strict=True))


# ---- faults, each in one line
def said(what):
    with pytest.raises(DataError) as e: what()
    assert '\n' not in str(e.value)
    return str(e.value)


def test_each_fault_is_one_line_before_ray_starts(policy, tmp_path, monkeypatch):
    go = lambda recipe=SMALL, tasks=toy_tasks(), env=Toy, profile='cpu': fit(*policy, env, tasks, tasks, Recipe(**vars(recipe) | dict(max_length=200)), tmp_path, profile=profile, dry=True)
    monkeypatch.setenv('SHOPPING_GRPO_VERL_PYTHON', '/nowhere/python')
    assert 'no Python at /nowhere' in said(go)
    monkeypatch.setenv('SHOPPING_GRPO_VERL_PYTHON', sys.executable)
    monkeypatch.setitem(PROFILES, 'bare', Profile('bare', memory=0, pins=dict(no_such_package='1')))
    assert 'no_such_package' in said(lambda: go(profile='bare'))
    assert 'profile' in said(lambda: go(profile='abacus')) and 'muon' in said(lambda: go(Recipe(**vars(SMALL) | dict(muon=5.0))))
    assert 'cannot be found by the workers' in said(lambda: go(env=lambda: Toy()))
    monkeypatch.setitem(PROFILES, 'bare', Profile('bare', memory=10**6, pins={}))
    assert 'GiB' in said(lambda: go(profile='bare'))
    monkeypatch.setitem(PROFILES, 'bare', Profile('bare', memory=0, pins={}))
    import socket
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0)); s.listen()
        monkeypatch.setenv('MASTER_ADDR', '127.0.0.1'); monkeypatch.setenv('MASTER_PORT', str(s.getsockname()[1]))
        assert 'is taken' in said(lambda: go(profile='bare'))
    monkeypatch.delenv('MASTER_PORT')
    go(profile='bare')
    (tmp_path/'verl'/'base'/'model.safetensors').write_bytes(b'torn')
    assert 'another run' in said(lambda: go(profile='bare'))
    assert 'another run' in said(lambda: go(tasks=toy_tasks()[:2], profile='bare'))


def test_a_dry_run_says_everything_and_starts_nothing(policy, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(PROFILES, 'bare', Profile('bare', memory=0, pins=versions(['numpy'], sys.executable)))
    monkeypatch.setenv('SHOPPING_GRPO_VERL_PYTHON', sys.executable)
    assert fit(*policy, Toy, toy_tasks(), toy_tasks(), Recipe(**vars(SMALL) | dict(max_length=200)), tmp_path, profile='bare', dry=True) is None
    text = capsys.readouterr().out
    assert all(x in text for x in ('verl.trainer.main_ppo', 'tasks-train.jsonl', 'numpy', 'GiB free', 'VERL_USE_EXTERNAL_MODULES', 'rollout.n=2')) and not (tmp_path/'verl'/'verl.log').exists()


def test_nothing_of_the_rig_is_loaded_by_another_profile():
    assert 'shop_verl_cpu' in str(surroundings(PROFILES['cpu']))
    for name in ('gpu-1', 'gpu-8', 'cluster'): assert 'shop_verl_cpu' not in str(surroundings(PROFILES[name])) + str(command(Path('.'), SMALL, PROFILES[name], True))


# ---- processes
FAKE = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True); open('up', 'w').close(); time.sleep(600)" # one of its processes is detached
OWNER = "import sys; from pathlib import Path; from shopping_grpo.grpo_verl import guarded; folder = Path(sys.argv[1])\nwith guarded([sys.executable, '-c', sys.argv[2]], {}, folder, folder/'log') as p: p.wait()"

def of_run(folder):
    out = []
    for p in psutil.process_iter():
        try: out += [p] * (p.environ().get(MARK) == str(folder))
        except psutil.Error: continue
    return out

def wait_for(what, seconds=600):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(.1)


@pytest.mark.parametrize('how', ['SIGTERM', 'SIGKILL', 'SIGINT'])
def test_nothing_of_a_run_outlives_its_owner(tmp_path, how):
    "A detached process of a run is ended with it, however the process ends that follows it; and a later sitting ends what a killed guard left."
    owner = subprocess.Popen([sys.executable, '-c', OWNER, str(tmp_path), FAKE], env=os.environ | dict(PYTHONPATH=str(Path(__file__).parents[1])), stderr=subprocess.DEVNULL)
    wait_for(lambda: (tmp_path/'up').exists() and len(of_run(tmp_path)) == 2)
    if how == 'SIGKILL':
        for p in psutil.Process(owner.pid).children():
            if p.environ().get(MARK) is None: p.kill() # the guard
    owner.send_signal(getattr(signal, how))
    owner.wait()
    if how == 'SIGKILL':
        assert of_run(tmp_path)
        end(tmp_path)
    wait_for(lambda: not of_run(tmp_path))


# ---- the trainer
class Queue:
    "Stands for verl's queue of trajectories."
    def __init__(self, fields): self.fields = fields
    def kv_batch_get(self, keys, partition_id, select_fields): return {f: self.fields[f] for f in select_fields}
    def kv_batch_put(self, keys, partition_id, fields): self.fields.update({k: fields[k] for k in fields.keys()}); return SimpleNamespace(keys=keys)


class Trainer:
    "Stands for verl's trainer: the methods that ours calls."
    def __init__(self, folder): self.config, self.global_steps, self.updated = SimpleNamespace(trainer=SimpleNamespace(shopping=folder)), 1, 0; self._build_replay_buffer()
    def _build_replay_buffer(self): return None
    def _compute_advantage(self, batch, metrics): return batch
    def _update_actor(self, batch, metrics): self.updated += 1; return batch
    def _compute_metrics(self, batch, metrics, timing_raw, global_steps, epoch): metrics['actor/entropy'] = .5
    def on_train_begin(self): pass


@pytest.mark.parametrize('filter', ['everything', 'band'])
def test_the_trainer_trains_on_what_we_chose_and_on_nothing_else(policy, groups, tmp_path, monkeypatch, filter):
    "A batch in verl's queue, with rows that only fill it up; with the filter that lets nothing through there is no update."
    pytest.importorskip('tensordict')
    from shopping_grpo import verl_train
    recipe = Recipe('dr_grpo', groups=8, n=8, muon=0, steps=3, max_new=24, max_length=160, minibatches=1, filter=filter)
    if filter == 'band': monkeypatch.setitem(verl_train.credit.__globals__['FILTERS'], 'band', lambda outcomes: np.zeros(len(outcomes), bool))
    job = prepare(tmp_path/'verl', *policy, Toy, toy_tasks(), [], recipe)
    rows = {f'g{g}_{a}_0': r for g, rs in enumerate(groups) for a, r in enumerate(rs)}
    from shopping_grpo.verl_play import output
    made = {k: output(r, recipe.pay, 1) for k, r in rows.items()}
    keys = [*rows, 'pad_0_0', 'pad_1_0']
    masks = [torch.tensor(m['response_mask']) for m in made.values()] + [torch.zeros(1, dtype=torch.long)] * 2
    queue = Queue(dict(response_mask=torch.nested.as_nested_tensor(masks, layout=torch.jagged), extra_fields=[m['extra_fields'] for m in made.values()] + [made['g0_0_0']['extra_fields']] * 2))
    monkeypatch.setitem(sys.modules, 'transfer_queue', queue)
    trainer = type('Ours', (verl_train.ShopSteps, Trainer), {})(job.folder)
    trainer.on_train_begin()
    batch = trainer._compute_advantage(SimpleNamespace(keys=keys, tags=[{}] * len(rows) + [dict(is_padding=True)] * 2, partition_id='train'), {})
    trainer._update_actor(batch, {})
    trainer._compute_metrics(batch, {}, {}, 1, 0)
    told = verl_train.read_progress(job.folder/'progress.jsonl')[0]
    trained = ours(groups, recipe)
    assert trainer.updated == (filter == 'everything') and told['trained'] == sum(len(t) > 0 for t in trained) and told['entropy'] == .5 and told['lr'] == recipe.lr / 2
    assert (job.folder/'rollouts.jsonl').read_text().count('\n') == 64
    share = len(keys) / max(1, told['trained']) # what verl's mean over sequences divides by, over what it should
    for adv, mask, before, mine in zip(queue.fields['advantages'].unbind(), queue.fields['response_mask'].unbind(), masks, [*trained, [], []], strict=True):
        assert len(adv) == len(before)
        if filter == 'everything': assert int(mask.sum()) == len(mine) and np.allclose(adv[mask > 0] / share, mine, atol=1e-6) and not adv[mask == 0].any()
        else: assert torch.equal(mask, before) and not adv.any()
