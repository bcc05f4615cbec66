"""ShopSim at 20,000 products: steps a second on one core, reset, memory over many episodes and of many environments. Prints a table with the bar beside each number.

    python benchmarks/bench_env.py                    # two minutes; the catalogue `small` is built once in data/built/small
    python benchmarks/bench_env.py --episodes 1000    # a quick look
Times are processor time of this process, so that a busy machine does not change them much.
"""
import argparse, gc, sys, time, tracemalloc
import numpy as np
from machine import machine, resident, table
from shopping_grpo.catalog import Catalog
from shopping_grpo.core import folder
from shopping_grpo.envs.shopsim import ShopSim
from shopping_grpo.generate import generate
from shopping_grpo.policy import Briefing, BuyFirst, Oracle, RandomLegal, Rule
from shopping_grpo.request import Requests
from shopping_grpo.search import Tantivy, build_index


def world(size):
    where = folder('data')/'built'/size
    catalog, _ = generate(where/'catalog', size)
    if not (where/'index'/'engine.json').exists(): build_index(where/'index', catalog)
    return catalog, Tantivy(where/'index', catalog)


def episode(env, policy, task, seed=0):
    "Play one; returns steps and the seconds spent in reset and in steps."
    clock, spent, n = time.process_time, 0.0, 0
    t = clock()
    observation = env.reset(task, seed)
    start = clock() - t
    briefing = Briefing(task.prompt, task.lang, tuple(env.tools), policies=env.policies)
    policy.begin(briefing, seed, **({'task': task} if getattr(policy, 'privileged', False) else {}))
    done = False
    while not done:
        action = policy.act(observation)
        t = clock()
        step = env.step(action)
        spent, n = spent + clock() - t, n + 1
        observation, done = step.observation, step.done
    env.score(); env.score_native()
    return n, start, spent


class Replay:
    "Does what another policy did, page by page, whatever it sees."
    def __init__(self, policy, env, tasks):
        self.name, self.done, play = f'{policy.name} replayed', {}, policy.act
        for seed, t in enumerate(tasks):
            self.done[seed] = actions = []
            policy.act = lambda o: actions.append(play(o)) or actions[-1]
            episode(env, policy, t, seed)
        policy.act = play
    def begin(self, briefing, seed): self.todo = iter(self.done[seed])
    def act(self, observation): return next(self.todo)


def speed(catalog, engine, tasks, policy, view='compact'):
    env = ShopSim(catalog, engine, view)
    for cache in (getattr(env._shelf, n) for n in ('find', 'words', 'row', 'card', 'results', 'product', 'sub')): cache.cache_clear()
    runs = np.array([episode(env, policy, t, seed) for seed, t in enumerate(tasks)])
    return runs[:, 0].sum() / runs[:, 1:].sum(), 1e3 * np.percentile(runs[:, 1], 99)


def growth(catalog, engine, tasks, episodes):
    "MB that the process grew by between the first fifth and the end of many episodes with ever new queries."
    env, policy = ShopSim(catalog, engine), RandomLegal()
    for i in range(episodes):
        if i == episodes // 5: gc.collect(); before = resident()['own']
        episode(env, policy, tasks[i % len(tasks)], seed=i)
    gc.collect()
    return resident()['own'] - before


def many(catalog, engine, tasks, n=64):
    "MB that each of `n` environments with an episode behind it adds, its share of the common caches included."
    tracemalloc.start()
    envs = []
    for i in range(n):
        envs.append(env := ShopSim(catalog, engine))
        episode(env, Rule(), tasks[i % len(tasks)])
    gc.collect()
    added, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return added / 2**20 / len(envs)


def main():
    ask = argparse.ArgumentParser()
    ask.add_argument('--size', default='small')
    ask.add_argument('--episodes', type=int, default=10_000)
    a = ask.parse_args()
    print(machine(), '\n')
    catalog, engine = world(a.size)
    tasks = Requests(catalog, seed=5).tasks('train', 400)
    rows = []
    added = many(catalog, engine, tasks)
    for policy, view, bar in ((Rule(), 'compact', 2000), (Replay(Rule(), ShopSim(catalog, engine), tasks), 'published', 2000), (Oracle(catalog), 'compact', None), (BuyFirst(), 'compact', None), (RandomLegal(), 'compact', None)):
        rate, reset = speed(catalog, engine, tasks, policy, view)
        rows.append((f'{policy.name}, {view}, cold caches', f'{rate:,.0f} steps/s', f'>= {bar:,}/s' if bar else '', rate >= bar if bar else None))
        if view == 'compact' and bar: rows.append(('reset, p99', f'{reset:.3f} ms', '<= 1 ms', reset <= 1))
    rows.append(('each of 64 environments adds', f'{added:.2f} MB', '<= 5 MB', added <= 5))
    grown = growth(catalog, engine, tasks, a.episodes)
    rows.append((f'growth over the last 4/5 of {a.episodes:,} episodes', f'{grown} MB', '<= 5 MB', grown <= 5))
    table(rows)
    if any(ok is False for *_, ok in rows): sys.exit(1)


if __name__ == '__main__': main()
