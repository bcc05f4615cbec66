"""T3, T5-T8, C7, C8 on the reference loop, in the toy shop."""
import copy, json, math, os, signal, subprocess, sys
from dataclasses import replace
from pathlib import Path
import numpy as np, pytest, torch
from toyshop import toy_model
from shopping_grpo import checkpoint, grpo_local
from shopping_grpo.core import DataError
from shopping_grpo.env import EnvError
from shopping_grpo.grpo import Recipe
from shopping_grpo.checkpoint import Checkpoints
from shopping_grpo.grpo_local import Trainer, gradient, logps, play, rectangles, sample, samples
from shopping_grpo.lockstep import Sampling, lockstep
from shopping_grpo.model import LanguageModel, read_model
from shopping_grpo.scheduler import Source
from shopping_grpo.sft import Training
from shopping_grpo.template import Template
from shopping_grpo.toy import Toy, toy_tasks

SMALL = dict(groups=4, n=4, max_new=24, max_length=200, lr=1e-3, muon=5.0, validate=2, steps=4)
WRITTEN = Sampling(max_new=24, max_length=200)


@pytest.fixture(scope='module')
def policy(): return toy_model()

@pytest.fixture
def fresh(policy): # a copy, since training changes it
    return copy.deepcopy(policy[0]), policy[1]

@pytest.fixture(scope='module')
def groups(policy): return play(*policy, Toy, toy_tasks() * 2, 8, 5, WRITTEN)


def flat(model): return torch.cat([p.detach().flatten() for p in model.parameters()])

def trainer(policy, path, recipe=Recipe(**SMALL), validation=(), env=Toy, tasks=None, **how):
    log = []
    t = Trainer(*policy, env, tasks or toy_tasks(), validation, recipe, path, log=lambda step, **m: log.append(m | dict(step=step)), **how)
    return t, log


# T3 ---------------------------------------------------------------------------------------------------------------------
def test_trainer_and_rollout_agree_on_log_probs(policy, groups):
    "T3: at least 50 episodes, recomputed from the stored ids; also at another temperature."
    rows = [r for g in groups for r in g]
    assert len(rows) >= 50
    some = [sample(r, np.zeros(r['n_steps'])) for r in rows if r['n_steps']]
    b = rectangles(some, 0)
    with torch.no_grad(): now = logps(policy[0], b, 1.0)
    wrong = (((now - b['old']).abs() > 1e-3) & b['mask']).sum().item()
    assert wrong == 0 and ((now - b['old']) * b['mask']).abs().max() < 1e-4
    hot = [r for g in play(*policy, Toy, toy_tasks(), 4, 6, replace(WRITTEN, temperature=1.5)) for r in g]
    b = rectangles([sample(r, np.zeros(r['n_steps'])) for r in hot], 0)
    with torch.no_grad(): assert ((logps(policy[0], b, 1.5) - b['old']) * b['mask']).abs().max() < 1e-4


def test_only_what_the_model_wrote_is_trained_on(policy, groups):
    "The mask holds the sampled ids and nothing else, and the advantage of a turn stands on its own tokens."
    for r in (r for g in groups for r in g):
        s = sample(r, np.arange(1, r['n_steps'] + 1))
        written = [i for step in r['steps'] for i in step['tokens']['ids']]
        assert [i for i, m in zip(s.ids, s.mask) if m] == written
        assert [a for a, m in zip(s.advantage, s.mask) if m] == [t + 1.0 for t, step in enumerate(r['steps']) for _ in step['tokens']['ids']]
        assert not any(a for a, m in zip(s.advantage, s.mask) if not m) and len(s.ids) == len(s.old)


# T5, T6 and masking in the loop -----------------------------------------------------------------------------------------
class Broken(Toy):
    "The shop is down for the task of the blue mug, every second time."
    calls = 0
    def _begin(self, task, seed):
        Broken.calls += 1
        if 'blue' in task.prompt and 'mugs' in task.prompt and Broken.calls % 2: raise EnvError('the shop is down')
        return super()._begin(task, seed)


def test_broken_episodes_are_masked_and_their_siblings_stay(policy):
    broken = play(*policy, Broken, toy_tasks() * 2, 8, 5, WRITTEN)
    chosen, paid = samples(broken, Recipe(**SMALL | dict(filter='everything')))
    down = [r for g in broken for r in g if not r['reward']['valid']]
    assert down and np.isnan(paid).sum() == len(down) and len(chosen) == 64 - len(down)
    assert all(math.isfinite(a) for s in chosen for a in s.advantage)


def test_a_shop_that_is_always_down_trains_nothing(fresh, tmp_path):
    class Down(Toy):
        def _begin(self, task, seed): raise EnvError('the shop is down')
    before = flat(fresh[0])
    t, log = trainer(fresh, tmp_path, Recipe(**SMALL | dict(steps=2)), env=Down)
    t.run()
    assert [m['invalid'] for m in log] == [1.0, 1.0] and all(m['trained'] == 0 and m['success'] is None for m in log) and torch.equal(flat(fresh[0]), before)


def test_groups_reach_the_update_whole(groups):
    "Kept groups bring all their attempts, failures too; a half-filled step is trained on."
    chosen, _ = samples(groups, Recipe(**SMALL))
    mixed = [g for g in groups if 0 < sum(r['success'] for r in g) < len(g)]
    assert 0 < len(mixed) and len(chosen) == sum(map(len, mixed))
    chosen, _ = samples(mixed[:1] + [[r for r in g if not r['success']] for g in groups[1:]], Recipe(**SMALL))
    assert len(chosen) == len(mixed[0])


def test_a_group_that_differs_only_by_shape_is_dropped(groups):
    failed = [[r for r in g if not r['success']] for g in groups]
    chosen, paid = samples(failed, Recipe(**SMALL))
    assert np.nanstd(paid) > 0 and not chosen


def test_overlong_episodes_leave_the_loss_but_not_the_group(policy):
    cut = play(*policy, Toy, toy_tasks(), 8, 5, replace(WRITTEN, max_length=60))
    assert any(r['outcome'] == 'max_tokens' for g in cut for r in g)
    kept, dropped = (len(samples(cut, Recipe(**SMALL | dict(filter='everything', change=dict(overlong=o))))[0]) for o in (False, True))
    assert kept - dropped == sum(r['outcome'] == 'max_tokens' and r['n_steps'] > 0 for g in cut for r in g)


@pytest.mark.parametrize('rounds,passing,groups', [(1, 1, 4), (4, 1, 16), (4, 2, 8), (4, 4, 4)])
def test_more_rounds_until_enough_groups_pass(fresh, tmp_path, monkeypatch, rounds, passing, groups):
    "Four groups are wanted; what there is after the last round is trained on."
    monkeypatch.setitem(grpo_local.FILTERS, 'band', lambda won: np.arange(len(won)) < passing)
    t, _ = trainer(fresh, tmp_path, Recipe(**SMALL | dict(filter='band', rounds=rounds)))
    played = t.collect()
    assert len(played) == groups and len({r['seed'] for g in played for r in g}) == 4 * groups


# T7 ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('algorithm', ['dapo', 'grpo', 'dr_grpo', 'gspo', 'gigpo'])
def test_pieces_do_not_change_the_gradient(policy, groups, algorithm):
    "Batch 1, accumulated eight times and more, is one batch of all."
    chosen, grads = samples(groups, Recipe(algorithm, **SMALL))[0][:16], []
    for piece in (10**6, 1):
        policy[0].zero_grad()
        gradient(policy[0], chosen, Recipe(algorithm, piece=piece, **SMALL), 0)
        grads.append(torch.cat([p.grad.flatten() for p in policy[0].parameters()]))
    policy[0].zero_grad()
    assert (grads[0] - grads[1]).abs().max() <= 1e-6 and grads[0].norm() > 0


@pytest.mark.parametrize('kind', [torch.float32, torch.float64], ids=['fp32', 'fp64'])
def test_twenty_steps_in_pieces_are_twenty_steps(policy, groups, kind):
    "T7 over 20 steps on fixed episodes, batch 1 x accumulate 8 against 8 x 1: the losses, and in fp64 the weights as well."
    chosen, losses, ends = samples(groups, Recipe(**SMALL))[0][:8], [], []
    for piece in (10**6, 1):
        model = copy.deepcopy(policy[0]).to(kind)
        opts = grpo_local.optimizers(model, Training(lr=1e-3))
        losses.append([grpo_local.update(model, opts, chosen, Recipe(**SMALL | dict(minibatches=1, piece=piece)), 0, s)['loss'] for s in range(20)])
        ends.append(flat(model))
    assert np.abs(np.subtract(*losses)).max() <= 1e-6 and abs(losses[0][0] - losses[0][-1]) > 1e-2
    assert (ends[0] - ends[1]).abs().max() <= (1e-5 if kind == torch.float32 else 1e-12)


def child(code, *args) -> str: # what a process of its own says
    done = subprocess.run([sys.executable, '-c', "import sys; sys.path.insert(0, 'tests')\nfrom test_grpo_local import *\n" + code, *map(str, args)], cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-800:]
    return json.loads(done.stdout)

def saved(path): # as a process of its own reads it
    torch.set_num_threads(1)
    lm = read_model(path)
    return lm.model, Template(lm.tokenizer)

TRAIN = """
t, log = trainer(saved(sys.argv[1]), sys.argv[2], Recipe(**SMALL | dict(steps=20)), toy_tasks(), save_every=5)
t.run(int(sys.argv[3]))
print(json.dumps(log))
"""

@pytest.mark.slow
def test_one_process_trains_as_two(policy, tmp_path):
    "T7: 20 steps by one process, and 10 each by two, the second from the checkpoint of the first."
    LanguageModel('toy', policy[0], policy[1].tokenizer).save(tmp_path/'start')
    one = child(TRAIN, tmp_path/'start', tmp_path/'one', 20)
    two = child(TRAIN, tmp_path/'start', tmp_path/'two', 10) + child(TRAIN, tmp_path/'start', tmp_path/'two', 20)
    assert [m['step'] for m in one] == [m['step'] for m in two] == list(range(21))
    for a, b in zip(one, two): assert {k: v for k, v in a.items() if not k.endswith('_s')} == pytest.approx({k: v for k, v in b.items() if not k.endswith('_s')}, abs=1e-6)
    (state, a), (_, b) = (Checkpoints(tmp_path/n/'checkpoints').load() for n in ('one', 'two'))
    assert state['step'] == 20 and all((a['model'][k] - b['model'][k]).abs().max() <= 1e-6 for k in a['model'])
    assert max((w - a['model'][k]).abs().max() for k, w in policy[0].state_dict().items()) > 1e-2 # it has trained


PLAY = """
pairs = [(t, a) for t in toy_tasks() for a in range(8)]
print(json.dumps(list(lockstep(*saved(sys.argv[1]), Toy, pairs[int(sys.argv[2])::int(sys.argv[3])], seed=5, sampling=WRITTEN, states=True))))
"""

@pytest.mark.slow
def test_one_process_plays_as_two(policy, tmp_path):
    "T7: rollouts by one process, and half of them by each of two: the same tokens, and a gradient that differs by 1e-6 at most."
    LanguageModel('toy', policy[0], policy[1].tokenizer).save(tmp_path/'start')
    grads, written = [], []
    for rows in (child(PLAY, tmp_path/'start', 0, 1), child(PLAY, tmp_path/'start', 0, 2) + child(PLAY, tmp_path/'start', 1, 2)):
        by = {(r['task_key'], r['attempt']): r for r in rows}
        groups = [[by[t.key, a] for a in range(8)] for t in toy_tasks()]
        written.append([[s['tokens']['ids'] for s in r['steps']] for g in groups for r in g])
        policy[0].zero_grad()
        gradient(policy[0], samples(groups, Recipe(**SMALL))[0], Recipe(**SMALL), 0)
        grads.append(torch.cat([p.grad.flatten() for p in policy[0].parameters()]))
    policy[0].zero_grad()
    assert written[0] == written[1] and len(written[0]) == 32 and (grads[0] - grads[1]).abs().max() <= 1e-6 and grads[0].norm() > 0


# C7 ---------------------------------------------------------------------------------------------------------------------
def killed_at(event, path, events):
    "Save in a child process that dies, without any clean-up, at an event of the save."
    if not (child := os.fork()):
        left = [event]
        def dying(f):
            def g(*a, **k):
                left[0] -= 1
                if left[0] < 0: os._exit(9)
                return f(*a, **k)
            return g
        try: # whatever happens, the child must not go on as a second pytest
            checkpoint.torch = type('T', (), {'save': staticmethod(dying(torch.save))})
            checkpoint.file_digest, os.replace = dying(checkpoint.file_digest), dying(os.replace)
            checkpoint.canonical_json = dying(checkpoint.canonical_json)
            Checkpoints(path).save(2, dict(best=None), **{f'part{i}': torch.full((100,), 2.0) for i in range(events)})
            os._exit(0)
        finally: os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_save_that_is_killed_leaves_the_one_before(tmp_path):
    "C7: at each of 20 moments; only after the last one is there a new checkpoint."
    for event in range(21):
        path = tmp_path/str(event)
        Checkpoints(path).save(1, dict(best=None), part0=torch.ones(100))
        code, (state, parts) = killed_at(event, path, 9), Checkpoints(path).load()
        whole = event >= 20 # nine saves, nine digests, the state, the rename
        assert code == (0 if whole else 9) and state['step'] == (2 if whole else 1) and parts['part0'][0] == (2 if whole else 1), event
        Checkpoints(path).save(3, dict(best=None), part0=torch.ones(100))
        assert not list(path.glob('.step-*'))


@pytest.mark.parametrize('harm', [lambda p: (p/'state.json').unlink(), lambda p: (p/'state.json').write_text('{"step": 2, "fil'), lambda p: (p/'model.pt').write_bytes(b'PK'), lambda p: (p/'model.pt').unlink(), lambda p: (p/'state.json').write_text('{}')])
def test_a_damaged_checkpoint_is_passed_over(tmp_path, harm):
    kept = Checkpoints(tmp_path)
    for step in (1, 2): kept.save(step, dict(best=None), model=dict(w=torch.full((3,), float(step))))
    harm(tmp_path/'step-000002')
    assert kept.load()[0]['step'] == 1 and kept.load()[1]['model']['w'][0] == 1
    assert Checkpoints(tmp_path/'none').load() is None


# C8 ---------------------------------------------------------------------------------------------------------------------
class Shelves:
    "Toy tasks on demand: a kind a shelf, and a difficulty in the words of the request."
    kinds, top = ('mugs', 'hats'), 3
    def at(self, split, number, d, kind):
        few = [t for t in toy_tasks() if kind in t.prompt]
        return replace(few[number % 2], prompt=few[number % 2].prompt + ' please' * d, split=split, revision=1 + number // 2)

MOVES = dict(curriculum='adaptive', schedule=dict(trials=4, threshold=.25, demote=.2)) # a policy that guesses goes up and down

@pytest.mark.parametrize('seed,tasks,how', [(0, None, {}), (1, None, MOVES), (2, None, dict(curriculum='wide')), (0, Shelves, MOVES), (3, Shelves, MOVES | dict(schedule=MOVES['schedule'] | dict(per_kind=False, window=2))), (1, Shelves, dict(curriculum='wide'))])
def test_a_run_goes_on_as_if_nothing_had_happened(policy, tmp_path, seed, tasks, how):
    "C8: 2 steps, a new process' worth of state, 2 steps = 4 steps; the same tasks and tokens, weights and best; also where difficulty moves and tasks are made on demand."
    recipe, check = Recipe('gigpo', seed=seed, **how, **SMALL), toy_tasks()
    given = lambda: dict(tasks=Source(tasks())) if tasks else {}
    whole, log = trainer((copy.deepcopy(policy[0]), policy[1]), tmp_path/'whole', recipe, check, save_every=1, **given())
    whole.run()
    parts, again = [], None
    for until in (2, 4):
        again, part = trainer((copy.deepcopy(policy[0]), policy[1]), tmp_path/'parts', recipe, check, save_every=1, **given())
        again.run(until); parts += part
    strip = lambda rows: [{k: v for k, v in r.items() if not k.endswith('_s')} for r in rows]
    assert strip(log) == strip(parts) and torch.equal(flat(whole.model), flat(again.model)) and whole.best == again.best
    assert whole.curriculum.state == again.curriculum.state and whole.history == again.history and [x.task.key for x in whole.curriculum.draw(9)] == [x.task.key for x in again.curriculum.draw(9)]
    if how == MOVES and tasks: assert len({(m['frontier_mugs'], m['frontier_hats']) for m in log if 'frontier' in m}) > 1, 'the frontier has moved in this test'


def test_a_validation_moves_no_frontier(policy, tmp_path):
    "Not even on tasks that are made at the frontier."
    t, _ = trainer((copy.deepcopy(policy[0]), policy[1]), tmp_path, Recipe('gigpo', **MOVES, **SMALL), [Shelves().at('val', n, 0, k) for n in range(16) for k in Shelves.kinds], tasks=Source(Shelves()))
    t.collect()
    before = copy.deepcopy(t.curriculum.state)
    assert t.check()['val_scored'] == 32 and t.curriculum.state == before


def test_tasks_on_demand_are_logged_by_kind(policy, tmp_path):
    t, log = trainer((copy.deepcopy(policy[0]), policy[1]), tmp_path, Recipe('gigpo', curriculum='hard', schedule=dict(top=2), **SMALL | dict(steps=1)), tasks=Source(Shelves()))
    t.run()
    assert {k: v for k, v in log[-1].items() if k.startswith('frontier')} == dict(frontier=2, frontier_mugs=2, frontier_hats=2) and 0 <= log[-1]['effective'] <= 1


KILLED = '''
import os, signal, sys
sys.path.insert(0, 'tests')
from test_grpo_local import trainer
from shopping_grpo.model import read_model
from shopping_grpo.template import Template
lm = read_model(sys.argv[1])
t, _ = trainer((lm.model, Template(lm.tokenizer)), sys.argv[2], save_every=1)
t.run(after=lambda t: t.step == 2 and os.kill(os.getpid(), signal.SIGKILL))
'''

def test_a_killed_process_is_resumed(policy, tmp_path):
    "The same with a real SIGKILL."
    LanguageModel('toy', policy[0], policy[1].tokenizer).save(tmp_path/'start')
    whole, log = trainer((copy.deepcopy(policy[0]), policy[1]), tmp_path/'whole')
    whole.run()
    done = subprocess.run([sys.executable, '-c', KILLED, str(tmp_path/'start'), str(tmp_path/'killed')], cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr[-500:]
    again, rest = trainer((copy.deepcopy(policy[0]), policy[1]), tmp_path/'killed')
    assert again.step == 2
    again.run()
    assert [m.get('loss', 0) for m in rest] == pytest.approx([m.get('loss', 0) for m in log[2:]], abs=1e-6) and torch.allclose(flat(whole.model), flat(again.model), atol=1e-6)


# guards -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('where', ['train', 'validation'])
def test_final_tasks_are_refused_by_construction(fresh, tmp_path, where):
    final = [replace(toy_tasks()[0], split='test')]
    with pytest.raises(DataError, match='final set'):
        Trainer(*fresh, Toy, final if where == 'train' else toy_tasks(), final if where == 'validation' else [], Recipe(**SMALL), tmp_path)


def test_bad_signs_stop_a_run_and_it_stays_stopped(fresh, tmp_path, monkeypatch):
    monkeypatch.setattr(grpo_local, 'stop_reason', lambda history: 'entropy rises for 9 steps' if len(history) == 2 else '')
    t, log = trainer(fresh, tmp_path)
    t.run()
    assert t.step == 2 and t.stopped == 'entropy rises for 9 steps'
    again, _ = trainer(fresh, tmp_path)
    assert again.run().step == 2


def test_the_best_checkpoint_is_kept_not_the_last(fresh, tmp_path, monkeypatch):
    "Validation falls after step 2; the weights of step 2 are in `best`."
    values, seen = iter([.3, .8, .5]), {}
    def check(model, *_):
        v = next(values); seen[v] = flat(model).clone()
        return dict(success=v, reward=v, turns=2.0, scored=4, errors=0)
    monkeypatch.setattr(grpo_local, 'validate', check)
    t, log = trainer(fresh, tmp_path, validation=toy_tasks())
    t.run()
    assert t.best['step'] == 2 and torch.equal(flat(read_model(tmp_path/'best').model), seen[.8]) and not torch.equal(flat(t.model), seen[.8])


def test_the_distance_to_the_start_is_logged_without_beta(fresh, tmp_path):
    t, log = trainer(fresh, tmp_path)
    t.run()
    assert all(m['kl'] >= 0 for m in log if 'kl' in m) and log[-1]['kl'] > 0 and log[0]['kl'] < 1e-9
    assert {'success', 'reward_std', 'effective', 'entropy', 'clipped', 'mismatch', 'distinct', 'repeats', 'dependence', 'grad_norm'} <= set(log[-1])


# T8 ---------------------------------------------------------------------------------------------------------------------
def learns(seed, path):
    recipe = Recipe('gigpo', groups=8, n=12, steps=24, passes=2, beta=.02, max_new=24, max_length=200, lr=3e-3, muon=5.0, seed=seed)
    t, log = trainer(toy_model(seed), path, recipe, save_every=100)
    while t.step < recipe.steps and not t.stopped and np.mean([m['success'] for m in log[-2:]] or [0]) <= .82: t.run(t.step + 1)
    return [m['success'] for m in log]


@pytest.mark.slow
@pytest.mark.parametrize('seed', [0, 1, 2])
def test_three_seeds_learn_the_toy_shop(tmp_path, seed):
    "T8. `40b_local` shows one of them whenever the notebooks are tested."
    success = learns(seed, tmp_path)
    assert np.mean(success[:2]) < .4 and np.mean(success[-2:]) > .8, success
