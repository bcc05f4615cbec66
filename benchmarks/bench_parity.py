"""How often the first page is the same, in the same order: Lucene, its twin in numpy, tantivy. Prints one table.

    python benchmarks/bench_parity.py --sizes tiny,small --queries 500 --webshop path/to/items_shuffle_1000.json
"""
import argparse, tempfile, time
from machine import machine
from shopping_grpo.core import Draws
from shopping_grpo.generate import generate
from shopping_grpo.importers import import_catalog
from shopping_grpo.lucene import ANALYZERS, Bm25, agreement, build_lucene, contents, missing
from shopping_grpo.search import build_index, document

COLUMNS = 'catalogue|products|analyzer|k1|b|Lucene = twin|with scores|Lucene = tantivy|twin = tantivy|queries/s Lucene|twin|tantivy'.split('|')


def queries(catalog, n):
    "Two to six words that stand in one product."
    d = Draws(0, 'parity')
    for _ in range(n):
        p = catalog.at(d.one(len(catalog)))
        yield ' '.join(d.sample(p.title.split() + [*p.category[-1:], *p.features, *(o.value for o in p.options), *(v for _, v in p.table)], 2 + d.one(5)))


def rate(engine, asked):
    "Searches a second, in this thread."
    for q in asked[:50]: engine.search(q, k=10)
    start = time.perf_counter()
    for q in asked: engine.search(q, k=10)
    return f'{len(asked) / (time.perf_counter() - start):,.0f}'


def row(name, catalog, analyzer, text, k1, b, asked, tmp, tantivy):
    "One line of the table; None where an engine cannot do it."
    twin = Bm25(catalog, ANALYZERS[analyzer], text, k1, b)
    lucene = None if missing() else build_lucene(f'{tmp}/lucene', catalog, analyzer, text, k1, b)
    share = lambda x, y: f'{agreement(x, y, asked):.1%}' if x and y else '-'
    scores = f'{sum(lucene.top(twin.analyze(q)) == twin.top(twin.analyze(q)) for q in asked) / len(asked):.1%}' if lucene else '-'
    return [name, f'{len(catalog):,}', analyzer, k1, b, share(lucene, twin), scores, share(lucene, tantivy), share(twin, tantivy), *(rate(e, asked) if e else '-' for e in (lucene, twin, tantivy))]


def main():
    arg = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arg.add_argument('--sizes', default='tiny,small')
    arg.add_argument('--queries', type=int, default=500)
    arg.add_argument('--webshop', help='the 1,000 published items, as JSON')
    a = arg.parse_args()
    print(machine(), *filter(None, [missing()]), '', sep='\n')
    print('| ' + ' | '.join(COLUMNS) + ' |', '|' + '---|' * len(COLUMNS), sep='\n')
    with tempfile.TemporaryDirectory() as tmp:
        worlds = [(f'{size}, {lang}', generate(f'{tmp}/{size}-{lang}', size, languages=(lang,))[0], dict(en='english', zh='cjk')[lang]) for size in a.sizes.split(',') for lang in ('en', 'zh')]
        if a.webshop: worlds.append(('WebShop', import_catalog(a.webshop, f'{tmp}/webshop'), 'english'))
        for name, catalog, analyzer in worlds:
            asked, tantivy = list(queries(catalog, a.queries)), build_index(f'{tmp}/tantivy', catalog)
            for line in ((analyzer, contents, .9, .4, asked, tmp, None), ('tokens', document, 1.2, .75, asked, tmp, tantivy), ('tokens', document, .9, .4, asked, tmp, tantivy)):
                print('| ' + ' | '.join(map(str, row(name, catalog, *line))) + ' |', flush=True)


if __name__ == '__main__': main()
