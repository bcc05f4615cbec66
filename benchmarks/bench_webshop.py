"""WebShop: time of a reset and of a step at about 1,000 and 100,000 products, and memory over many episodes. Prints a table with the bar beside each number.

    python benchmarks/bench_webshop.py                    # some minutes; the larger catalogue is built once in data/built
    python benchmarks/bench_webshop.py --episodes 1000 --products 1k # a quick look
    python benchmarks/bench_webshop.py --files ../shared/data/webshop # the 1,000 published products instead of our own small shop
    python benchmarks/bench_webshop.py --files ../shared/data/webshop --tagger # how often our tagger of nouns and spaCy's say the same
    python benchmarks/bench_webshop.py --loader 20000,100000          # files of the published format, written here: time and memory of loading them with the protocol of the paper
Times are processor time of this process, so that a busy machine does not change them much. The published environment needs 31-33 ms of it for a step, and 530 MB before any data.
"""
import argparse, gc, subprocess, sys, tempfile, time
from pathlib import Path
import numpy as np
from machine import machine, resident, table

SHOPS = {'1k': ('tiny-en', None), '100k': ('1000x100-en', (1000, 100)), 'files': ('webshop-1k', None)} # name of the build; (families, members) where no size of the generator has it


def interpreter():
    "MB of a Python that has imported nothing."
    code = "print(next(int(l.split()[1]) // 1024 for l in open('/proc/self/status') if l.startswith('VmRSS')))"
    return int(subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout)


def build(name, shape, files):
    "Make the shop; in a process of its own, so that building is not counted."
    from shopping_grpo.core import folder
    from shopping_grpo.generate import SIZES, Size, generate
    from shopping_grpo.envs.webshop_shop import WebRequests, publish
    from shopping_grpo.search import build_index
    from shopping_grpo.task import save_tasks
    where = folder('data')/'built'/name
    if files:
        return None if (where/'tasks'/'webshop.json').exists() else publish(name, files/'items_shuffle_1000.json', files/'items_ins_v2_1000.json')
    if shape: SIZES[name.removesuffix('-en')] = Size(*shape)
    catalog, _ = generate(where/'catalog', name.removesuffix('-en'), languages=('en',))
    if not (where/'index'/'engine.json').exists(): build_index(where/'index', catalog)
    if not (where/'tasks'/'bench.jsonl').exists(): save_tasks(where/'tasks'/'bench.jsonl', WebRequests(catalog, seed=5).tasks('train', 400))


def world(name):
    "Catalogue and engine."
    from shopping_grpo.catalog import Catalog
    from shopping_grpo.core import folder
    from shopping_grpo.search import Tantivy
    catalog = Catalog(folder('data')/'built'/name/'catalog')
    return catalog, Tantivy(folder('data')/'built'/name/'index', catalog)


def plan(catalog, task, texts):
    "The policy that the published environment was measured with: search the request, open the first hit, one option of each group, two texts now and then, buy. Yields actions, is sent observations."
    from shopping_grpo.env import Message, ToolCall
    o = yield ToolCall('search', {'query': task.prompt[:300]})
    o = yield ToolCall('open_product', {'asin': o.data['products'][0]['asin']})
    for section in texts:
        yield ToolCall('view', {'section': section})
        o = yield ToolCall('prev_page')
    for group, options in o.data['available_options'].items(): yield ToolCall('choose_option', {'group': group, 'value': next((x['value'] for x in options if x['available']), options[0]['value'])})
    yield ToolCall('buy_now')
    yield Message('') # where this combination is sold out


def episode(env, catalog, task, texts=()):
    "Milliseconds of the reset, and of each step with what is legal afterwards."
    clock = time.process_time_ns
    t = clock()
    env.reset(task)
    reset, moves, steps = (clock() - t) / 1e6, plan(catalog, task, texts), []
    action, done = next(moves), False
    while not done:
        t = clock()
        s = env.step(action)
        steps.append((getattr(action, 'name', 'message'), (clock() - t) / 1e6))
        done = s.done
        if not done: action = moves.send(s.observation)
    env.score(), env.score_native()
    return reset, steps


def measure(name, shape, episodes, files):
    start = time.process_time()
    from shopping_grpo.core import folder
    from shopping_grpo.envs.webshop import WebShop
    from shopping_grpo.task import load_tasks
    catalog, engine = world(name)
    env = WebShop(catalog, engine)
    loaded, after, bare = time.process_time() - start, resident(), interpreter()
    tasks = load_tasks(folder('data')/'built'/name/'tasks'/('webshop-val.jsonl' if files else 'bench.jsonl'))[:400]
    gc.collect()
    rows, found = [], [episode(env, catalog, t, ('description', 'features') if i % 5 == 0 else ()) for i, t in enumerate(tasks)]
    resets, steps = np.array([r for r, _ in found]), np.array([ms for _, s in found for _, ms in s])
    rows += [(f'{name}: {len(catalog):,} products, cold caches', f'{len(found)} episodes, {len(steps)} steps', '', None),
        ('reset, p50 / p99', f'{np.median(resets):.3f} / {np.percentile(resets, 99):.3f} ms', 'p99 <= 1 ms', np.percentile(resets, 99) <= 1),
        ('step, p50 / p95', f'{np.median(steps):.3f} / {np.percentile(steps, 95):.3f} ms', 'p50 <= 0.3 ms', np.median(steps) <= .3), ('step, mean', f'{steps.mean():.3f} ms', '', None)]
    for tool in ('search', 'open_product', 'choose_option', 'view', 'buy_now'): rows.append((f'  {tool}, p50', f'{np.median([ms for _, s in found for n, ms in s if n == tool]):.3f} ms', '', None))
    memory, small = resident(), shape is None
    rows += [('import and load', f'{loaded:.2f} s', '', None), ('resident above the interpreter, after loading', f"{after['all'] - bare} MB", '<= 150 MB' if small else '', after['all'] - bare <= 150 if small else None),
        ('resident above the interpreter, after these episodes', f"{memory['all'] - bare} MB, {memory['files']} MB of it files", '<= 150 MB' if small else '', memory['all'] - bare <= 150 if small else None)]
    for i in range(episodes):
        if i == episodes // 5: gc.collect(); before = resident()['own']
        episode(env, catalog, tasks[i % len(tasks)])
    gc.collect()
    grown = resident()['own'] - before if episodes else 0
    return rows + [(f'growth over the last 4/5 of {episodes:,} episodes', f'{grown} MB', '<= 5 MB', grown <= 5)]


def taggers(files):
    "Our tagger against spaCy's on the published products: nouns of a title, the type factor between products, and the reward of purchases."
    from shopping_grpo.core import Draws
    from shopping_grpo.envs.webshop_goals import import_shop
    from shopping_grpo.envs.webshop_reward import spacy_nouns, title_nouns
    ours, theirs = title_nouns, spacy_nouns()
    with tempfile.TemporaryDirectory() as tmp: return _taggers(ours, theirs, import_shop(files/'items_shuffle_1000.json', files/'items_ins_v2_1000.json', f'{tmp}/shop'), files, Draws(1, 'p'))


def _taggers(ours, theirs, catalog, files, d):
    from shopping_grpo.envs.webshop_goals import PROTOCOLS, evaluated, native_goal, sale_price, synthetic_goals
    from shopping_grpo.envs.webshop_reward import native_reward, title_score, type_factor
    from shopping_grpo.envs.webshop_shop import Published
    from shopping_grpo.importers import native
    products = list(catalog)
    sets = [({*ours(p.title)}, {*theirs(p.title)}) for p in products]
    both = sum(len(a & b) for a, b in sets)
    rows = [(f'{ours.tagger} against {theirs.tagger}', f'{len(products):,} titles', '', None), ('of their nouns that ours has', f'{both / sum(len(b) for _, b in sets):.3f}', '', None), ('of ours that they have', f'{both / sum(len(a) for a, _ in sets):.3f}', '', None)]
    pairs = {'random products': [(d.pick(products), d.pick(products)) for _ in range(20_000)], 'products of one leaf': [(p, q) for p in products for q in products if p is not q and p.category[-1] == q.category[-1]]}
    def factor(tagger, p, q): return type_factor((native(p, 'query') or '').lower() == (native(q, 'query') or '').lower(), len({*p.category} & {*q.category}) >= 2, title_score(tagger, p.title, q.title))
    for what, some in pairs.items():
        same = sum(factor(ours, *x) == factor(theirs, *x) for x in some)
        rows.append((f'same type factor, {what}', f'{same / len(some):.3f} of {len(some):,}', '', None))
    goals, engine, values = evaluated(synthetic_goals(catalog, files/'items_ins_v2_1000.json'), PROTOCOLS['ragen256']), Published(catalog), []
    for g in goals:
        p = catalog[engine.search(g.instruction, 1).hits[0].product_id]
        offers = [(o.axis, o.value) for o in p.options]
        chosen = {a: x for a, x in g.options if (a, x) in offers}
        values.append([native_reward(p, chosen, sale_price(p), native_goal(g, catalog[g.asin]), t).value for t in (ours, theirs)])
    v = np.array(values)
    return rows + [('purchases of the rule policy on ragen256 with equal reward', f'{(v[:, 0] == v[:, 1]).sum()} of {len(v)}', '', None), ('its mean reward, ours / theirs', f'{v[:, 0].mean():.4f} / {v[:, 1].mean():.4f}', '', None), ('its successes, ours / theirs', f'{(v[:, 0] == 1).sum()} / {(v[:, 1] == 1).sum()}', '', None)]


def loader(n):
    "Files of the published format with `n` products, 6,050 of them (the full set's number) with two human goals, written, then loaded under the protocol of the paper."
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]/'tests'))
    from webfiles import write_files
    from shopping_grpo.generate import generate
    from shopping_grpo.envs.webshop_shop import publish
    with tempfile.TemporaryDirectory() as tmp:
        catalog, _ = generate(f'{tmp}/tiny', 'tiny', languages=('en',), workers=1)
        files = write_files(Path(tmp), catalog, n, asked=min(n, 6050))
        sizes, before, start = [p.stat().st_size / 1e6 for p in files], resident()['all'], time.process_time()
        publish('x', *files, rules='paper500', where=Path(tmp)/'shop')
        took, most = time.process_time() - start, resident()['peak']
    return [(f'{n:,} products', ' + '.join(f'{s:,.0f}' for s in sizes) + ' MB of files', '', None), ('load: catalogue, goals, index, tasks', f'{took:.1f} s of processor time, {1e6 * took / n:.0f} us a product', '', None),
        ('peak of resident memory above where it began, mapped files counted', f'{most - before:.0f} MB, {1e3 * (most - before) / n:.2f} kB a product', '', None)]


def main():
    ask = argparse.ArgumentParser()
    ask.add_argument('--products', default='1k,100k')
    ask.add_argument('--episodes', type=int, default=10_000)
    ask.add_argument('--files', type=Path)
    ask.add_argument('--tagger', action='store_true')
    ask.add_argument('--loader', default='')
    ask.add_argument('--load', type=int, help=argparse.SUPPRESS)
    ask.add_argument('--one', help=argparse.SUPPRESS) # a child process builds or measures one shop, so that memory is its own
    ask.add_argument('--build', action='store_true', help=argparse.SUPPRESS)
    a = ask.parse_args()
    if a.build: return build(*SHOPS[a.one], a.files)
    if a.load: return table(loader(a.load))
    if a.tagger: return table(taggers(a.files))
    if a.one:
        table(rows := measure(*SHOPS[a.one], a.episodes, a.files))
        sys.exit(any(ok is False for *_, ok in rows))
    print(machine(), flush=True)
    if a.loader: sys.exit(max(subprocess.run([sys.executable, __file__, '--load', n]).returncode for n in a.loader.split(',')))
    more, code = (['--files', str(a.files)] if a.files else []), 0
    for shop in ['files'] if a.files else a.products.split(','):
        subprocess.run([sys.executable, __file__, '--one', shop, '--build', *more], check=True)
        print(flush=True)
        code = max(code, subprocess.run([sys.executable, __file__, '--one', shop, '--episodes', str(a.episodes), *more]).returncode)
    sys.exit(code)


if __name__ == '__main__': main()
