"""Catalogue and search at 200k and 2.5M products: speed, memory, recall. Prints a table with the bar beside each number.

    python benchmarks/bench_world.py                  # medium only, a minute
    python benchmarks/bench_world.py --sizes medium,large   # large is built once, in data/built/large (2.3 GB, some minutes)
"""
import argparse, json, subprocess, sys, tempfile, time
import numpy as np
from machine import machine, resident, table
from shopping_grpo.catalog import Catalog
from shopping_grpo.core import Draws, folder
from shopping_grpo.generate import SIZES, generate
from shopping_grpo.grammar import load_grammar
from shopping_grpo.search import Filters, Tantivy, build_index


def query_of(p, d):
    "Two to six words that a shopper who wants `p` might type."
    words = p.title.replace(',', ' ').split() + [p.category[-1], p.brand, *p.features] + [v for _, v, _ in p.attributes]
    return ' '.join(d.sample(words, 2 + d.one(5)))


def paraphrase(p):
    "The kind and the facts of `p` in other words than the listing's canonical ones, without brand, model or title."
    leaf = next(l for l in load_grammar()[1] if l.category[p.lang] == ' › '.join(p.category))
    say = {w[0]: w[-1] for a in leaf.attributes for w in a.values[p.lang]} | {w[0]: w[-1] for w in leaf.features[p.lang]}
    return ' '.join([leaf.name[p.lang][-1]] + [say.get(v, v) for _, v, _ in p.attributes] + [say.get(f, f) for f in p.features])


def milliseconds(run, cases):
    "p50, p90, p99."
    out = []
    for c in cases:
        t = time.perf_counter(); run(*c); out.append(1e3 * (time.perf_counter() - t))
    return [round(float(x), 2) for x in np.percentile(out, (50, 90, 99))]


def microseconds(run, cases):
    t = time.perf_counter()
    for c in cases: run(c)
    return round(1e6 * (time.perf_counter() - t) / len(cases), 2)


def measure(size):
    "Everything about one built size, in a process of its own."
    where, out = folder('data')/'built'/size, {}
    t = time.perf_counter()
    catalog = Catalog(where/'catalog')
    engine = Tantivy(where/'index', catalog)
    out['open'] = round(time.perf_counter() - t, 4)
    out['resident after open'] = resident()['all']
    d = Draws(11, 'bench', size)
    ids = [catalog.id_at(r) for r in d.ints(len(catalog), 4000).tolist()]
    out['find row'] = microseconds(catalog.row, ids)
    hot = ids[:400]
    for i in hot: catalog.at(catalog.row(i))
    out['read product'] = microseconds(lambda i: catalog.at(catalog.row(i)), hot * 5)
    out['read product, untouched'] = microseconds(lambda i: catalog.at(catalog.row(i)), ids[400:])
    wanted = [catalog[i] for i in ids[:1000]]
    cases = [(query_of(p, d), p) for p in wanted]
    for q, _ in cases[:100]: engine.search(q)
    out['search'] = milliseconds(lambda q, p: engine.search(q), cases)
    out['filter price'] = milliseconds(lambda q, p: engine.search(q, filters=Filters(price=(p.price // 2, p.price * 2))), cases)
    out['filter category, language'] = milliseconds(lambda q, p: engine.search(q, filters=Filters(category=p.category[:1], lang=p.lang)), cases)
    out['filter services'] = milliseconds(lambda q, p: engine.search(q, filters=Filters(services=p.services[:2])), cases)
    out['filter seller'] = milliseconds(lambda q, p: engine.search(q, filters=Filters(shop=p.shop)), cases)
    out['sort by price'] = milliseconds(lambda q, p: engine.search(q, sort='price_asc'), cases)
    out['search and read 20 hits'] = milliseconds(lambda q, p: [catalog[h.product_id] for h in engine.search(q).hits], cases)
    top = lambda text, p: p.id in [h.product_id for h in engine.search(text, 10).hits]
    out['recall title'] = sum(top(p.title, p) for p in wanted) / len(wanted)
    out['recall paraphrase'] = sum(top(paraphrase(p), p) for p in wanted) / len(wanted)
    out['recall leaf of paraphrase'] = sum(catalog[r.hits[0].product_id].category == p.category for p in wanted if (r := engine.search(paraphrase(p), 1)).hits) / len(wanted)
    out['memory'] = resident()
    out['resident under load'] = out['memory']['peak']
    return out


def rows_of(size, m):
    ms = dict(medium=3, large=15).get(size)
    bar = lambda v: (f'p50 <= {ms} ms', v[0] <= ms) if ms else ('', None)
    yield f'{size}: open catalogue and index', f"{m['open']:.3f} s", *(('<= 2 s', m['open'] <= 2) if size == 'large' else ('', None))
    yield f'{size}: resident after open', f"{m['resident after open']} MB", *(('<= 400 MB', m['resident after open'] <= 400) if size == 'large' else ('', None))
    yield f'{size}: resident under load, peak', f"{m['resident under load']} MB ({m['memory']['own']} own)", *(('<= 1000 MB', m['resident under load'] <= 1000) if size == 'large' else ('', None))
    yield f'{size}: id -> row', f"{m['find row']} us", '<= 20 us', m['find row'] <= 20
    yield f'{size}: id -> whole product, mapped', f"{m['read product']} us", '', None
    yield f'{size}: id -> whole product, untouched', f"{m['read product, untouched']} us", '', None
    for name in ('search', 'filter price', 'filter category, language', 'filter services', 'filter seller', 'sort by price', 'search and read 20 hits'):
        v = m[name]
        yield f'{size}: {name}, p50 / p90 / p99', f'{v[0]} / {v[1]} / {v[2]} ms', *(bar(v) if not name.endswith('hits') else ('', None))
    yield f'{size}: recall@10 of exact titles', f"{m['recall title']:.3f}", '>= .95', m['recall title'] >= .95
    yield f'{size}: recall@10 of paraphrases', f"{m['recall paraphrase']:.3f}", 'reported', None
    yield f'{size}: first hit of a paraphrase is of its leaf', f"{m['recall leaf of paraphrase']:.3f}", 'reported', None


def main():
    ask = argparse.ArgumentParser()
    ask.add_argument('--sizes', default='medium')
    ask.add_argument('--measure')
    a = ask.parse_args()
    if a.measure: print(json.dumps(measure(a.measure))); return
    print(machine(), '\n')
    with tempfile.TemporaryDirectory() as tmp:
        t = time.perf_counter()
        generate(f'{tmp}/c', 'medium')
        rate = len(SIZES['medium']) / (time.perf_counter() - t)
    rows = [('generate 200k products, all cores', f'{rate:,.0f} products/s', '>= 20,000/s', rate >= 20_000)]
    for size in a.sizes.split(','):
        where = folder('data')/'built'/size
        t = time.perf_counter()
        catalog, made = generate(where/'catalog', size)
        if made: rows.append((f'{size}: generate', f'{time.perf_counter() - t:.0f} s', '', None))
        t = time.perf_counter()
        if not (where/'index'/'engine.json').exists():
            build_index(where/'index', catalog)
            rows.append((f'{size}: index', f'{time.perf_counter() - t:.0f} s', '', None))
        child = subprocess.run([sys.executable, __file__, '--measure', size], capture_output=True, text=True)
        if child.returncode: sys.exit(child.stderr)
        rows += rows_of(size, json.loads(child.stdout))
    table(rows)
    if any(ok is False for *_, ok in rows): sys.exit(1)


if __name__ == '__main__': main()
