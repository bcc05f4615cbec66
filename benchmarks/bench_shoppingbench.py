"""ShoppingBench: time of a filtered search at 200,000 products, whether it finds what a scan finds, and the time of steps and tasks. Prints a table with the bar beside each number.

    python benchmarks/bench_shoppingbench.py                      # the shop medium-en is built once in data/built: about five minutes of processor time
    python benchmarks/bench_shoppingbench.py --shop tiny-en       # a quick look
    python benchmarks/bench_shoppingbench.py --check 1000         # also: random filtered queries against the ranking in numpy and a scan of columns; indexes the whole shop once more in memory
Times are processor time of this process, so that a busy machine does not change them much. The published server needs 2.6 to 21 s for the same kinds of queries at 200,000 documents.
"""
import argparse, time
from collections import Counter
import numpy as np
from machine import machine, resident, table


def world(name):
    "Catalogue and market of a build; made when it is not there, without tasks."
    from shopping_grpo.catalog import Catalog
    from shopping_grpo.core import folder
    from shopping_grpo.envs.shoppingbench_shop import Market
    from shopping_grpo.envs.webshop_shop import SEED, size_of
    from shopping_grpo.generate import generate
    from shopping_grpo.search import build_index
    where = folder('data')/'built'/name
    if not (where/'index'/'engine.json').exists(): build_index(where/'index', generate(where/'catalog', size_of(name), SEED, ('en',))[0])
    catalog = Catalog(where/'catalog')
    return catalog, Market(where/'index', catalog)


def spent(calls):
    "Milliseconds of each call: median and 95th percentile."
    times = []
    for call in calls:
        t = time.process_time(); call(); times.append(1000 * (time.process_time() - t))
    return np.percentile(times, [50, 95])


def queries(catalog, market, n):
    "The kinds of queries that the published server was measured with, and ours; name -> calls."
    from shopping_grpo.core import Draws
    from shopping_grpo.envs.shoppingbench_shop import PAGE, random_query
    from shopping_grpo.search import Filters, tokens
    some = [catalog.at(int(r)) for r in Draws(1, 'bench').ints(len(catalog), n)]
    often = [w for w, _ in Counter(t for p in some for t in set(tokens(p.title))).most_common(12)]
    three = lambda i: ' '.join(Draws(2, i).sample(often, 3))
    top = int(np.percentile(catalog.column('price'), 99.9))
    find = lambda *a, **k: (lambda: market.search(*a, **k))
    drawn = [random_query(catalog, Draws(3, i)) for i in range(n)]
    return {'two words, one of them common': [find(f'{often[i % 12]} {tokens(p.title)[-1]}', PAGE) for i, p in enumerate(some)],
        'three very common words': [find(three(i), PAGE) for i in range(n)],
        '... in one shop': [find(three(i), PAGE, filters=Filters(shop=p.shop)) for i, p in enumerate(some)],
        '... in the highest thousandth of prices': [find(three(i), PAGE, filters=Filters(price=(top, None))) for i in range(n)],
        '... in an unknown shop': [find(three(i), PAGE, filters=Filters(shop='no such shop')) for i in range(n)],
        '... with two services, cheapest first': [find(three(i), PAGE, filters=Filters(services=p.services[:2]), sort='price_asc') for i, p in enumerate(some)],
        "a shop's shelf without words": [find('', PAGE, filters=Filters(shop=p.shop)) for p in some],
        'random words, filters and orders': [find(q, PAGE, 1, f, s) for q, f, s in drawn]}


def known_items(catalog, market, n):
    "Share of products on the first page for their own title."
    from shopping_grpo.core import Draws
    from shopping_grpo.search import tokens
    found = 0
    for r in Draws(4, 'known').ints(len(catalog), n):
        p = catalog.at(int(r))
        found += any(h.product_id == p.id or tokens(catalog[h.product_id].title) == tokens(p.title) for h in market.search(p.title, 10).hits)
    return found / n


def check(catalog, market, n):
    "Random filtered queries whose 50 results are not those of the twin in numpy, which masks columns."
    from shopping_grpo.core import Draws
    from shopping_grpo.envs.shoppingbench_shop import random_query
    from shopping_grpo.lucene import Bm25
    from shopping_grpo.search import document, tokens
    twin, wrong, compared = Bm25(catalog, tokens, document, k1=1.2, b=.75), 0, 0
    for i in range(n):
        q, f, s = random_query(catalog, Draws(5, i))
        if not q: continue
        ids = lambda e: [h.product_id for h in e.search(q, 50, 1, f, s).hits]
        compared += 1
        wrong += ids(market) != ids(twin)
    return wrong, compared


def steps(catalog, market, n):
    "Milliseconds of a reset, a step and a drawn task."
    from shopping_grpo.envs.shoppingbench import ShoppingBench
    from shopping_grpo.envs.shoppingbench_build import requests_for
    from shopping_grpo.policy import scripted
    from shopping_grpo.rollout import rollout
    t = time.process_time()
    tasks = requests_for(catalog, 1).tasks('train', n)
    made = 1000 * (time.process_time() - t) / n
    env = ShoppingBench(catalog, market)
    for task in tasks[:4]: rollout(scripted('oracle', catalog), env, task)
    t, count, wins = time.process_time(), 0, 0
    for task in tasks:
        r = rollout(scripted('oracle', catalog), env, task)
        count, wins = count + r['n_steps'], wins + r['success']
    return made, 1000 * (time.process_time() - t) / count, wins / n


if __name__ == '__main__':
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument('--shop', default='medium-en'); ask.add_argument('--n', type=int, default=1000); ask.add_argument('--check', type=int, default=0); ask.add_argument('--tasks', type=int, default=40)
    a = ask.parse_args()
    catalog, market = world(a.shop)
    print(machine(), f'\n{catalog}\n')
    rows = []
    for name, calls in queries(catalog, market, a.n).items():
        spent(calls[:20])
        p50, p95 = spent(calls)
        rows.append((name, f'p50 {p50:.2f} ms, p95 {p95:.2f} ms', '5 ms, 20 ms', p50 <= 5 and p95 <= 20))
    share = known_items(catalog, market, a.n)
    rows.append((f'{a.n} products on the first page for their title', f'{share:.2%}', '99 %', share >= .99))
    if a.check:
        wrong, compared = check(catalog, market, a.check)
        rows.append(('filtered queries that differ from the scan', f'{wrong} of {compared}', '0', wrong == 0))
    if a.tasks:
        made, step, wins = steps(catalog, market, a.tasks)
        rows += [('a drawn task', f'{made:.0f} ms', '', None), ('a step', f'{step:.2f} ms', '5 ms', step <= 5), ('oracle', f'{wins:.0%}', '100 %', wins == 1)]
    rows.append(('memory', str(resident()), '', None))
    table(rows)
