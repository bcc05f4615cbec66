"Files of ShoppingBench: the real ones whole and consistent, and any damage reported and not fatal."
import gzip, json
from collections import Counter
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from shopping_grpo.core import DataError
from shopping_grpo.envs.shoppingbench_files import FAULTS, SERVICES, Deal, intent_of, read_documents, read_instruction, read_instructions, rules_in, tidy_document
from shopping_grpo.envs.shoppingbench_voucher import needed, Offer, Slot, solve, total
from shopping_grpo.importers import read_products
from shopping_grpo.records import Counts, Defect

FILES = dict(product='synthesize_product_test.jsonl', shop='synthesize_shop_test.jsonl', voucher='synthesize_voucher_test.jsonl', knowledge='synthesize_web_simpleqa_test.jsonl')
ROWS = dict(product=250, shop=250, voucher=250, knowledge=150)


def real(samples, intent):
    path = samples/'shoppingbench'/FILES[intent]
    if not path.exists(): pytest.skip(f'{path.name} is not here')
    return path


@pytest.mark.parametrize('intent', FILES)
def test_every_published_row_loads(samples, intent):
    counts, broken = Counts(), []
    rows = read_instructions(real(samples, intent), counts, broken)
    assert len(rows) == counts.read == ROWS[intent] and not broken and not counts.dropped and {i.intent for i in rows} == {intent}
    assert len({i.key for i in rows}) == len(rows) and set(counts.mended) <= set(FAULTS)
    assert all(id.isdigit() for i in rows for id in i.gold)


def test_what_is_odd_about_the_published_rows(samples):
    product, voucher = (read_instructions(real(samples, x)) for x in ('product', 'voucher'))
    assert Counter(f for i in product for f in i.faults)['title only'] == 11
    odd = Counter(f for i in voucher for f in i.faults)
    assert odd['title only'] == 70 and odd['voucher not needed'] == 18 and sum(not any(r.get(k) for k in ('sku_options', 'attributes', 'service', 'price')) for i in voucher for r in i.rewards) == 84


def test_published_vouchers_add_up(samples):
    "250 of 250: price after the voucher, budget and text agree, recomputed in whole cents."
    rows = read_instructions(real(samples, 'voucher'))
    deals, bound = [i.deal for i in rows], 0
    for i, d in zip(rows, deals):
        assert d.adds_up and not {'voucher does not add up', 'budget out of range', 'text says something else'} & set(i.faults), i.query
        v = d.voucher('the shop')
        assert total([('the shop', d.price_before, 1)], [v]) == d.price_after <= d.budget <= d.price_after + 100 + d.price_after // 10 + 100
        told = rules_in(i.query)
        assert (told['scope'], told['budget'], told['threshold'], told['face'], told['percent'], told['cap']) == (d.scope, d.budget, d.threshold, d.face, d.percent, d.cap)
        bound += d.kind == 'percentage' and d.price_before * d.percent > 100 * d.cap
        ways = needed(solve([Slot((Offer('p', '', 'the shop', d.price_before),))], [v]).proof, d.budget)
        assert ways == (frozenset() if 'voucher not needed' in i.faults else {'published'})
    assert Counter(d.scope for d in deals) == dict(platform=129, shop=121) and Counter(d.kind for d in deals) == dict(fixed=113, percentage=137) and bound == 66


def test_a_voucher_that_is_changed_is_noticed(samples):
    "Each number of a row moved by one: the check is no formality."
    rows = [json.loads(x) for x in real(samples, 'voucher').read_text(encoding='utf-8').splitlines()]
    missed = Counter()
    for r in rows[::5]:
        for key in ('threshold', 'budget', 'face_value', 'cap', 'price_after_voucher'):
            if r['voucher'][key] is None: continue
            i = read_instruction(r | dict(voucher=r['voucher'] | {key: r['voucher'][key] + 1}))
            missed[key] += not set(i.faults) & {'voucher does not add up', 'budget out of range', 'text says something else'}
    assert missed['threshold'] == missed['budget'] == missed['face_value'] == missed['cap'] == 0 < missed['price_after_voucher'] < 50 # another price can add up, too


MUG = dict(product_id='4000000017', title=['Mug'], attributes=[{'material': ['clay']}])
VOUCHER = dict(voucher_type='platform', threshold=240, discount_type='fixed', face_value=60, discount=None, cap=None, price_after_voucher=440.0, budget=470)
TEXT = 'Mugs.\n\nOnly `470`.\n1. It counts for everything.\n2. From `240` on.\n3. It takes `60`.'


@pytest.mark.parametrize('fault, row', [
    ('title only', dict(query='x', reward=dict(product_id='1', title=['a']))),
    ('no constraint', dict(query='x', reward=dict(product_id='1'))),
    ('one key, two wishes', dict(query='x', reward=dict(product_id='1', sku_options=[{'color': 'red'}], attributes=[{'color': ['blue']}]))),
    ('value that is a list', dict(query='x', reward=dict(product_id='1', sku_options=[{'color': ['red']}]))),
    ('size behind a colon', dict(query='x', reward=dict(product_id='1', sku_options=[{'size': 'int:xl'}]))),
    ('bound without a number', dict(query='x', reward=dict(product_id='1', price=[{'between': [None, None]}]))),
    ('voucher not needed', dict(query=TEXT, reward=[MUG], voucher=VOUCHER | dict(budget=500))),
    ('voucher does not add up', dict(query=TEXT, reward=[MUG], voucher=VOUCHER | dict(threshold=501))),
    ('voucher does not add up', dict(query=TEXT, reward=[MUG], voucher=VOUCHER | dict(face_value=0))),
    ('voucher does not add up', dict(query=TEXT, reward=[MUG], voucher=VOUCHER | dict(discount_type='percentage', discount=0.2, face_value=None, cap=1000, price_after_voucher=433.33))),
    ('budget out of range', dict(query=TEXT, reward=[MUG], voucher=VOUCHER | dict(budget=439))),
    ('text says something else', dict(query=TEXT.replace('60', '61'), reward=[MUG], voucher=VOUCHER)),
    ('answer in the query', dict(query='Who is Ada?', Knowledge_Attribute='Ada', reward=dict(product_id='1', title='Ada'))),
    ('answer of few letters', dict(query='Who?', Knowledge_Attribute='Ada', reward=dict(product_id='1', title='Ada'))),
    ('answer with blanks around', dict(query='Who?', Knowledge_Attribute='Ada ', reward=dict(product_id='1', title='Ada '))),
    ('answer is a number', dict(query='When?', Knowledge_Attribute=1977, reward=dict(product_id='1', title='1977'))),
    ('answer not in the title', dict(query='Who?', Knowledge_Attribute='Grace', reward=dict(product_id='1', title='Ada'))),
])
def test_faults_are_named_and_not_fatal(fault, row):
    i = read_instruction(row)
    assert fault in i.faults and i.gold
    assert fault not in read_instruction(dict(query=TEXT, reward=[MUG], voucher=VOUCHER)).faults


def test_packed_files_arrays_and_torn_lines(tmp_path):
    rows = [dict(query=str(n), reward=MUG) for n in range(5)]
    lines = '\n'.join(map(json.dumps, rows)) + '\n\n{"query": \n'
    (tmp_path/'a.jsonl.gz').write_bytes(gzip.compress(lines.encode()))
    (tmp_path/'b.json').write_text(json.dumps(rows + rows[:2]))
    counts, broken = Counts(), []
    assert len(read_instructions(tmp_path/'b.json', counts)) == 5 and counts.dropped == {'a query that came before': 2}
    counts = Counts()
    assert read_instructions(tmp_path/'a.jsonl.gz', counts, broken) == read_instructions(tmp_path/'b.json')
    assert counts.dropped['broken'] == 1 and broken == ['a.jsonl.gz: line 7: expected a JSON object in UTF-8, found b\'{"query": \\n\' (JSONDecodeError)']
    (tmp_path/'c.jsonl').write_text('{"x": 1}\n')
    with pytest.raises(DataError, match='^c.jsonl: none of its 1 rows is an instruction: c.jsonl: line 1: [^\n]*$'): read_instructions(tmp_path/'c.jsonl')
    with pytest.raises(DataError, match='no file'): read_instructions(tmp_path/'d.jsonl')


JSON = st.recursive(st.none() | st.booleans() | st.integers(-5, 500) | st.floats(allow_nan=True) | st.sampled_from(['', 'red', 'official', '3', 'int:xl']), lambda x: st.lists(x, max_size=3) | st.dictionaries(st.sampled_from(['red', 'size', 'between', 'title']), x, max_size=3), max_leaves=5)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from([dict(query=TEXT, reward=[MUG], voucher=VOUCHER), dict(query='Who?', Knowledge_Attribute='Ada', reward=dict(product_id='1', title='Ada')), dict(query='x', reward=MUG)]),
    st.lists(st.tuples(st.sampled_from(['query', 'Knowledge_Attribute', 'reward', 'voucher', 'reward.title', 'reward.sku_options', 'reward.attributes', 'reward.price', 'reward.service', 'reward.product_id', 'voucher.cap', 'voucher.discount', 'voucher.discount_type', 'voucher.budget', 'voucher.price_after_voucher']), JSON), max_size=3))
def test_any_row_is_read_or_is_a_defect(row, changes):
    row = json.loads(json.dumps(row))
    for path, value in changes:
        at, (*way, last) = row, path.split('.')
        for w in way: at = at.get(w) if isinstance(at, dict) else None; at = at[0] if isinstance(at, list) and at else at
        if isinstance(at, dict): at[last] = value
    try: i = read_instruction(row)
    except Defect as e: assert '\n' not in str(e); return
    assert i.intent == intent_of(row) and set(i.faults) <= set(FAULTS)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(st.sampled_from('product_id shop_id brand category title description price sold_count sku_options attributes service'.split()), JSON))
def test_any_document_becomes_regular(p):
    d = tidy_document(p, Counter())
    assert all(isinstance(d[k], str) for k in ('product_id', 'shop_id', 'title', 'description')) and set(d['service']) <= set(SERVICES) and (d['price'] is None or isinstance(d['price'], float))
    assert all(isinstance(v, str) for o in d['sku_options'].values() for v in o.values()) and all(isinstance(v, str) for vs in d['attributes'].values() for v in vs)
    assert tidy_document(d, Counter()) == d


def test_the_corpus_of_the_importer_and_of_the_score_are_the_same(tmp_path):
    "Documents for the score and products for the shop from one file, damaged lines and repeated ids left out by both."
    doc = lambda n: dict(id=str(n), contents='x', product=dict(product_id=str(n), shop_id='9', brand='', category='Home > Mugs', title=f'Mug {n}', description='', price=10.5 + n, sold_count=n, sku_options={'1': {'color': 'red'}}, attributes={'material': ['clay']}, service=['COD']))
    path = tmp_path/'corpus.jsonl.gz'
    path.write_bytes(gzip.compress('\n'.join([json.dumps(doc(0)), json.dumps(doc(1)), json.dumps(doc(0)), '{torn', json.dumps(dict(product=doc(2)['product']))]).encode()))
    a, b = Counts(), Counts()
    documents, products = list(read_documents(path, a)), list(read_products(path, 'shoppingbench', counts=b, broken=9))
    assert [d['product_id'] for d in documents] == [p.id for p in products] == ['0', '1', '2'] and [round(100 * d['price']) for d in documents] == [p.price for p in products]
    assert a.summary() == b.summary() == dict(read=5, kept=3, dropped={'id that came before': 1, 'broken': 1}, mended={})
    assert next(read_documents(path, tidy=False)) == doc(0)['product']
