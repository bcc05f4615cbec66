"""EcomRLVE: time of a reset and of a step, of a drawn task, and memory over thousands of episodes. Prints a table with the bar beside each number.

    python benchmarks/bench_ecomrlve.py                              # 100,000 products, built once in data/built: two to three minutes of processor time
    python benchmarks/bench_ecomrlve.py --shop tiny-en --episodes 1000 # a quick look
Times are processor time of this process, so that a busy machine does not change them much. The published gym needs 250 to 470 ms for a reset at 100,000 products, 0.2 to 10 ms for a step, and grows by about nine variants a reset.
"""
import argparse, itertools, time
import numpy as np
from machine import machine, resident, table

SHAPES = {'1000x100-en': (1000, 100)} # families and members where no size of the generator has it
BARS = dict(reset=2, step=.5, memory=8) # ms, ms, MB


def world(name):
    "Catalogue and market of a build; made when it is not there, without tasks."
    from shopping_grpo.catalog import Catalog
    from shopping_grpo.core import folder
    from shopping_grpo.envs.shoppingbench_shop import Market
    from shopping_grpo.envs.webshop_shop import SEED
    from shopping_grpo.generate import SIZES, Size, generate
    from shopping_grpo.search import build_index
    if name in SHAPES: SIZES[name.removesuffix('-en')] = Size(*SHAPES[name])
    where = folder('data')/'built'/name
    if not (where/'index'/'engine.json').exists(): build_index(where/'index', generate(where/'catalog', name.removesuffix('-en'), SEED, ('en',))[0])
    catalog = Catalog(where/'catalog')
    return catalog, Market(where/'index', catalog)


def timed(call):
    "Milliseconds of processor time, and the result."
    t = time.process_time()
    out = call()
    return 1000 * (time.process_time() - t), out


def draw(catalog, kinds, levels, each):
    "Tasks of every kind at every level, and the milliseconds of each by kind: the first ones also read their shelves."
    from shopping_grpo.envs.ecomrlve_kinds import Talks
    talks, tasks, times = Talks(catalog, 1), [], {k: [] for k in kinds}
    for i, d, k in itertools.product(range(each), levels, kinds):
        ms, t = timed(lambda: talks.at('train', i, d, k))
        tasks.append(t); times[k].append(ms)
    return tasks, times


def play(env, policy, task):
    "One episode: milliseconds of the reset and of each step, apart from those of the policy; whether it was right."
    from shopping_grpo.policy import Briefing
    reset, o = timed(lambda: env.reset(task))
    policy.begin(Briefing(o.text, 'en', tuple(env.tools), policies=env.policies), 0, **({'task': task} if getattr(policy, 'privileged', False) else {}))
    steps, done = [], False
    while not done:
        act = policy.act(o)
        ms, s = timed(lambda: env.step(act))
        o, done = s.observation, s.done
        steps.append((ms, getattr(act, 'name', '')))
    return reset, steps, env.score().kind == 'success'


def measure(env, tasks):
    "Milliseconds of resets and of steps by tool, with the oracle and the rule policy; the oracle's successes."
    from shopping_grpo.envs.ecomrlve_policy import Oracle, Rule
    resets, steps, wins = [], [], 0
    for t in tasks[:16]: play(env, Oracle(env.catalog), t) # what is read at first use
    for t in tasks:
        for p in (Oracle(env.catalog), Rule()):
            r, s, won = play(env, p, t)
            resets.append(r); steps += s; wins += won and p.name == 'oracle'
    return resets, steps, wins / len(tasks)


def grow(env, tasks, n):
    "Memory of this process in MB after a tenth of the episodes, and after all."
    from shopping_grpo.envs.ecomrlve_policy import RandomCalls
    for i in range(n):
        play(env, RandomCalls(), tasks[i % len(tasks)])
        if i == n // 10: early = resident()['own']
    return early, resident()['own']


def p(ms, bar=''): return f'p50 {np.percentile(ms, 50):.2f} ms, p95 {np.percentile(ms, 95):.2f} ms', bar, None if not bar else np.percentile(ms, 50) <= float(bar.split()[0])


if __name__ == '__main__':
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument('--shop', default='1000x100-en'); ask.add_argument('--each', type=int, default=4); ask.add_argument('--levels', default='0,6,12'); ask.add_argument('--episodes', type=int, default=10_000)
    a = ask.parse_args()
    from shopping_grpo.envs.ecomrlve import EcomRLVE
    from shopping_grpo.envs.ecomrlve_goals import KINDS
    catalog, market = world(a.shop)
    print(machine(), f'\n{catalog}\n')
    tasks, times = draw(catalog, KINDS, tuple(map(int, a.levels.split(','))), a.each)
    opening, env = timed(lambda: EcomRLVE(catalog, market))
    resets, steps, wins = measure(env, tasks)
    rows = [('a reset', *p(resets, f"{BARS['reset']} ms")), ('a step, all tools', *p([ms for ms, _ in steps], f"{BARS['step']} ms"))]
    rows += [(f'... {name}', *p([ms for ms, n in steps if n == name])) for name in sorted({n for _, n in steps if n})]
    rows += [('steps in a second of processor time, resets included', f'{1000 * len(steps) / (sum(resets) + sum(ms for ms, _ in steps)):,.0f}', '', None), ('opening an environment', f'{opening:.0f} ms', '', None)]
    rows += [(f'a task, {k}', *p(ms)) for k, ms in times.items()] + [('oracle', f'{wins:.0%}', '100 %', wins == 1)]
    if a.episodes:
        early, late = grow(env, tasks, a.episodes)
        rows.append((f'own memory, {a.episodes // 10:,} and {a.episodes:,} episodes', f'{early} MB, {late} MB', f"+ {BARS['memory']} MB", late - early <= BARS['memory']))
    rows.append(('memory', str(resident()), '', None))
    table(rows)
