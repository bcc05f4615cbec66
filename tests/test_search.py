"""Search: filtered and sorted search against a brute-force scan, ties, threads, forks, indexes that do not fit."""
import math, os, pickle, threading
from collections import Counter, defaultdict
import pytest
from shopping_grpo.core import DataError, Draws
from shopping_grpo.generate import generate
from shopping_grpo.search import CAP, SORTS, Filters, Tantivy, build_index, document, self_check, tokens
from shopping_grpo.catalog import CatalogWriter, Product


def lossy(n):
    "A length as one byte keeps it: exact to 40, then four significant bits (the scheme of Lucene's SmallFloat)."
    def floats(i): return i if i < 8 else ((b := i.bit_length() - 4), ((i >> b) << b))[1]
    return n if n < 24 else 24 + floats(n - 24)


class Scan:
    "BM25 and filters by reading every product; written apart from the engine."
    def __init__(self, catalog):
        self.products = list(catalog)
        counts = [Counter(document(p)) for p in self.products]
        lengths = [sum(c.values()) for c in counts]
        self.mean, self.lengths, self.postings = sum(lengths) / len(lengths), [lossy(n) for n in lengths], defaultdict(dict)
        for i, c in enumerate(counts):
            for t, f in c.items(): self.postings[t][i] = f

    def search(self, query, filters, sort):
        words, n, score = list(dict.fromkeys(tokens(query))), len(self.products), defaultdict(float)
        for w in words:
            idf = math.log(1 + (n - len(self.postings[w]) + .5) / (len(self.postings[w]) + .5))
            for i, f in self.postings[w].items(): score[i] += idf * 2.2 * f / (f + 1.2 * (.25 + .75 * self.lengths[i] / self.mean))
        hits = [(self.products[i], s) for i, s in score.items() if self.passes(self.products[i], filters)]
        if sort == 'relevance': return [(p.id, s) for p, s in sorted(hits, key=lambda h: (-h[1], h[0].id))]
        hits = [p for p, _ in hits if all(self.products.index(p) in self.postings[w] for w in words)]
        return [(p.id, None) for p in sorted(hits, key={'price_asc': lambda p: (p.price, p.id), 'price_desc': lambda p: (-p.price, p.id), 'sold': lambda p: (-p.sold, p.id)}[sort])]

    @staticmethod
    def passes(p, f):
        low, high = f.price
        return ((low is None or p.price >= low) and (high is None or p.price <= high) and f.shop in (None, p.shop) and f.brand in (None, p.brand) and f.lang in (None, p.lang)
                and p.category[:len(f.category)] == f.category and set(f.services) <= set(p.services))


def draw_query(catalog, d):
    "Two to six words of a product, sometimes of two, and filters that sometimes contradict them."
    p, q = catalog.at(d.one(len(catalog))), catalog.at(d.one(len(catalog)))
    words = p.title.split() + [p.category[-1], p.brand, *p.features] + [v for _, v, _ in p.attributes] + q.title.split()[:1]
    one = lambda chance, value, none=None: value if d.uniform(1)[0] < chance else none
    filters = Filters(price=(one(.4, p.price // 2), one(.4, p.price * 2)), shop=one(.1, p.shop), brand=one(.15, q.brand), lang=one(.3, p.lang),
                      category=one(.4, p.category[:1 + d.one(3)], ()), services=one(.3, p.services[:2], ()))
    return ' '.join(d.sample(words, 2 + d.one(5))), filters


def test_filtered_search_equals_a_scan(tiny, tiny_engine):
    "1,000 random queries with filters: same products, same order, same scores; every fourth one sorted by something else."
    scan, d, results = Scan(tiny), Draws(3, 'scan'), 0
    for n in range(1000):
        query, filters = draw_query(tiny, d)
        sort = SORTS[n // 4 % 4] if n % 4 == 0 else 'relevance'
        want = scan.search(query, filters, sort)
        got = tiny_engine.search(query, CAP, 1, filters, sort)
        results += len(got.hits)
        assert got.total == min(len(want), CAP)
        if sort != 'relevance': assert [h.product_id for h in got.hits] == [i for i, _ in want[:CAP]], query
        else:
            assert all(abs(h.score - s) < 1e-4 * s for h, (_, s) in zip(got.hits, want)), query
            exact = dict(want) # scores that differ only by rounding may swap neighbours
            assert all(abs(exact[h.product_id] - s) < 1e-4 * s for h, (_, s) in zip(got.hits, want)), query
    assert results > 10_000


def test_known_items(small, small_engine):
    "D-1 and recall: exact titles within the first ten."
    d, found = Draws(1, 'known'), 0
    for _ in range(500):
        p = small.at(d.one(len(small)))
        found += p.id in [h.product_id for h in small_engine.search(p.title, 10).hits]
    assert found >= 475


def test_ties_are_broken_by_id(tmp_path):
    "Four hundred equal products: the order is that of their ids, on every page, though tantivy sees one score."
    with CatalogWriter(tmp_path/'c', {}) as w:
        for i in Draws(2).perm(400): w.add(Product(id=f'{i:03d}', title='same mug', lang='en', category=('Mugs',), brand='', shop='', model='', price=5))
    from shopping_grpo.catalog import Catalog
    engine = build_index(tmp_path/'i', catalog := Catalog(tmp_path/'c'), workers=1)
    assert [h.product_id for page in range(1, 9) for h in engine.search('mug', 20, page).hits] == [f'{i:03d}' for i in range(CAP)]
    assert [h.product_id for h in engine.search('mug', 20, 1, None, 'price_asc').hits] == [f'{i:03d}' for i in range(20)]


@pytest.mark.parametrize('query', ['', '   ', '，。！', 'the of', 'zzzzqqqq', '<r>', '<a> 1', '\x00', '🔥', 'a' * 10_000, 'مرحبا', '"price:[0 TO 1]" AND (', 'title:tea^9', '茶' * 5000])
def test_odd_queries_are_only_words(tiny, tiny_engine, query):
    "D-6: no operator, no hidden prefix, no crash."
    r = tiny_engine.search(query)
    assert r.total <= CAP and all(set(tokens(query)) & set(document(tiny[h.product_id])) for h in r.hits)


def test_pages(tiny, tiny_engine):
    whole = tiny_engine.search('颜色 黑色 白色', CAP)
    pages = [tiny_engine.search('颜色 黑色 白色', 20, n) for n in range(1, whole.total // 20 + 3)]
    assert [h for p in pages for h in p.hits] == list(whole.hits) and [h.rank for h in whole.hits] == list(range(1, whole.total + 1))
    assert not tiny_engine.search('黑色', 20, 0).hits and not tiny_engine.search('黑色', 20, -1).hits and not tiny_engine.search('黑色', 20, 99).hits
    with pytest.raises(DataError, match='price_asc'): tiny_engine.search('黑色', sort='cheap')


def test_threads_and_forks_share_an_engine(small, small_engine):
    "One engine, eight threads, 800 queries, and forked children: the same hits as alone. The published engine failed this."
    d = Draws(4, 'threads')
    queries = [draw_query(small, d) for _ in range(100)]
    alone = [small_engine.search(q, 20, 1, f) for q, f in queries]
    wrong = []
    def work(): wrong.extend(q for (q, f), a in zip(queries, alone) if small_engine.search(q, 20, 1, f) != a)
    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert not wrong
    for _ in range(3):
        if (pid := os.fork()) == 0: os._exit(0 if all(small_engine.search(q, 20, 1, f) == a for (q, f), a in zip(queries, alone)) else 1)
        assert os.waitpid(pid, 0)[1] == 0
    again = pickle.loads(pickle.dumps(small_engine))
    assert again.search(*queries[0][:1], 20, 1, queries[0][1]) == alone[0]


def test_index_must_fit_its_catalogue(tiny, tiny_engine, tmp_path):
    other = generate(tmp_path/'other', 'tiny', seed=5, workers=1)[0]
    with pytest.raises(DataError, match='data build'): Tantivy(tiny_engine.path, other)
    with pytest.raises(DataError, match='no search index'): Tantivy(tmp_path/'nowhere', tiny)
    import json, shutil, tantivy
    from shopping_grpo import search
    for n, change in enumerate(('version', 'documents')):
        path = tmp_path/f'i{n}'
        shutil.copytree(tiny_engine.path, path)
        if change == 'version': (path/'engine.json').write_text((path/'engine.json').read_text().replace(search.index_version(), 'old'))
        else:
            w = tantivy.Index.open(str(path)).writer(); w.delete_all_documents(); w.commit(); w.wait_merging_threads()
        with pytest.raises(DataError, match='analyzer' if change == 'version' else 'holds 0 documents'): Tantivy(path, tiny)


def test_self_check_fails_loudly(tiny, small, tiny_engine):
    with pytest.raises(DataError, match='self-check'): self_check(tiny_engine, small)


def test_a_killed_build_goes_on(tiny, tiny_engine, tmp_path, monkeypatch):
    "The old index stays until the new one is whole; parts that were committed are not made again."
    from shopping_grpo import search
    build_index(tmp_path/'i', tiny, workers=1)
    monkeypatch.setattr(search, 'STEP', 100); monkeypatch.setattr(search, 'KEPT', 2)
    def die(parts, n):
        for k, p in enumerate(parts):
            if k == 5: raise KeyboardInterrupt
            yield p
    with pytest.raises(KeyboardInterrupt): build_index(tmp_path/'i', tiny, workers=1, progress=die)
    assert Tantivy(tmp_path/'i', tiny).search('黑色').total and len(list(tmp_path.iterdir())) == 2
    counts = []
    engine = build_index(tmp_path/'i', tiny, workers=1, progress=lambda parts, n: counts.append(n) or parts)
    assert counts == [11 - 4] and [p.name for p in tmp_path.iterdir()] == ['i']
    for p in (tiny.at(r) for r in range(0, len(tiny), 50)): assert engine.search(p.title) == tiny_engine.search(p.title)


def test_explanations_add_up(tiny, tiny_engine):
    for p in (tiny.at(r) for r in range(0, len(tiny), 101)):
        hit = next(h for h in tiny_engine.search(p.title, CAP).hits if h.product_id == p.id)
        assert abs(sum(points for _, points, _ in tiny_engine.explain(p.title, p.id)) - hit.score) < 1e-3 * hit.score
