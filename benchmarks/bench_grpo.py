"""Episodes a CPU-second of GRPO: the reference loop, our TRL backend, and TRL as it comes (which cannot end an episode), same model and recipe, one thread, in one run.

    python benchmarks/bench_grpo.py                                            # the toy shop
    python benchmarks/bench_grpo.py --env shopsim --size tiny --model runs/sft/NAME/best
"""
import argparse, copy, json, logging, tempfile, time
import torch
from machine import machine, table
from shopping_grpo import core, grpo_local, grpo_trl
from shopping_grpo.env import load_env
from shopping_grpo.grpo import Recipe
from shopping_grpo.model import load_model
from shopping_grpo.task import open_tasks
from shopping_grpo.template import Template
from shopping_grpo.toy import Toy, toy_policy, toy_tasks

ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
ask.add_argument('--env', default='toy'); ask.add_argument('--size', default='tiny'); ask.add_argument('--model', default='toy'); ask.add_argument('--shop', type=json.loads, default={})
ask.add_argument('--groups', type=int, default=8); ask.add_argument('--n', type=int, default=8); ask.add_argument('--steps', type=int, default=3); ask.add_argument('--max-new', type=int, default=32); ask.add_argument('--max-length', type=int, default=1024)
given = ask.parse_args()
torch.set_num_threads(1)
logging.getLogger('trl').setLevel(logging.ERROR)

lm = toy_policy() if given.model == 'toy' else load_model(given.model)
world = Toy() if given.env == 'toy' else load_env(given.env, size=given.size, **given.shop)
tasks = toy_tasks() if given.env == 'toy' else open_tasks(core.folder('data')/'built'/given.size/'tasks'/f'{given.env}-train.jsonl', 'train', 'train')
recipe = Recipe('dapo', groups=given.groups, n=given.n, steps=given.steps, muon=0, lr=1e-6, minibatches=1, max_new=given.max_new, max_length=given.max_length)


def measure(backend):
    "CPU-seconds of all steps but the first, which warms up."
    marks, turns = [], []
    def log(step, **m): marks.append(time.process_time()); turns.append(m['turns'])
    with tempfile.TemporaryDirectory() as d: backend.fit(copy.deepcopy(lm.model), Template(lm.tokenizer), lambda: copy.copy(world), tasks, [], recipe, d, log=log)
    episodes = recipe.groups * recipe.n * (len(marks) - 1)
    return episodes / (marks[-1] - marks[0]), sum(turns[1:]) / len(turns[1:])


print(machine(), f'\n{given.env}, {lm.size:,} parameters, {recipe.groups} x {recipe.n} episodes a step\n')
rates = dict(local=measure(grpo_local), trl=measure(grpo_trl))
del grpo_trl.ShopTrainer._generate_single_turn # its override ends an episode where the shop ends it
rates['trl as it comes'] = measure(grpo_trl)
ours = rates['local'][0]
table([(f'{name}, {turns:.1f} turns each', f'{rate:.1f} episodes a CPU-second', '' if name == 'local' else f'local is {ours / rate:.1f} x faster' + (', aim 3 x' if ' ' in name else ''), ours >= 3 * rate if ' ' in name else None)
    for name, (rate, turns) in rates.items()])
