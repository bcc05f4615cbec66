"""Importers: published files load with exact counts, broken ones are refused in one line that names place and key, and nothing is left half-written."""
import copy, gzip, json, re, sys, tracemalloc, types
from collections import Counter
from decimal import Decimal
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq, pytest
import shopping_grpo.records as streams
from shopping_grpo.catalog import Catalog, Option, Variant
from shopping_grpo.core import DataError, Draws
from shopping_grpo.importers import FORMATS, STOCK, detect, gym_stock, import_catalog, native, read_products
from shopping_grpo.records import Counts, Defect, Dropped, Record, decode, parse_amount, records

WEBSHOP = dict(asin='B0INVENT01', name='Brass Desk Lamp', full_description='Casts a warm light.', small_description=['Dims in five steps ', 'Two metre cable'], pricing='$24.50$1,031.07',
    product_category='Home & Kitchen › Lighting › Desk Lamps', category='garden', query='desk lamps', average_rating=4.5, model=None, images=[], page=3,
    customization_options={'Color': [dict(value=' Brass/Black', price=0, price_string='', is_selected=True), dict(value='Steel', price=26.1, price_string='$26.10')],
        'Size': None, 'Style': [dict(value='Old', asin='B0INVENT09', is_available=False, is_selected=False)]})
SHOPSIM = dict(asin='900000000017', title='云步 男士轻跑鞋', shop_name='云步运动店', category='运动鞋new›跑步鞋', query='跑鞋', product_category='跑步鞋', pricing=[199.0, 229.9, 500], attribute=['男', '透气'],
    small_description=['鞋面透气'], full_description='轻。', images=['x.jpg'], instructions=[dict(instruction='买鞋')], user_persona={}, reason_key=[], tag='train', domain='运动户外',
    customization_options={'鞋码': [dict(value='40', price=199.0, image='', is_available=True), dict(value='41', price=229.9, image='', is_available=False)], '颜色分类': [dict(value='黑/绿', price=199)]},
    variant_combinations=[dict(options={'鞋码': '40', '颜色分类': '黑/绿'}, price=199.0), dict(options={'颜色分类': '黑/绿', '鞋码': '41'}, price=229.9), dict(options={'鞋码': '40'}, price=None)])
BENCH = dict(id='0400000017', contents='...', product=dict(product_id='0400000017', shop_id='731055', brand='NORDPINE', category='Home > Kitchen > Mugs', title='Stoneware Mug 350ml Matte', short_description='Dishwasher safe;',
    description='A mug.', specification='model:m1', price=249.5, sold_count=12, sku_options={'1': dict(color_family='sage', size='350 ml'), '2': dict(color_family='clay', size='500 ml')},
    attributes=dict(material=['stoneware', 'clay'], brand=['nordpine']), main_image_url='', product_url='', service=['COD', 'freeShipping']))
AMAZEBAY = dict(main_category='All Beauty', title='Rose Clay Mask', average_rating=4.37, rating_number=88, features=['Vegan', 'Six uses'], description=['A mask.', 'For all skin.'], price='$1,299.07', images=None, videos=None,
    store='Quillmoor Shop', categories=['Beauty', 'Masks'], details='{"Brand": "Quillmoor", "Item Form": "Powder", "UPC": 617}', parent_asin='B0INVENT77', bought_together=None, subtitle=None, author=None)
VALID = dict(webshop=WEBSHOP, shopsim=SHOPSIM, shoppingbench=BENCH, amazebay=AMAZEBAY)
ID_OF = dict(webshop=lambda r, i: r.update(asin=i), shopsim=lambda r, i: r.update(asin=i), shoppingbench=lambda r, i: r['product'].update(product_id=i), amazebay=lambda r, i: r.update(parent_asin=i))


def dumps(x): return json.dumps(x, ensure_ascii=False)


def write(path, content):
    content = content if isinstance(content, bytes) else content.encode('utf-8', 'surrogatepass')
    path.write_bytes(gzip.compress(content) if path.suffix == '.gz' else content)
    return path


def lines(path, *rows): return write(path, '\n'.join(map(dumps, rows)) + '\n')


def changed(base, **keys): return copy.deepcopy(base) | keys


def one(tmp_path, record): return next(read_products(lines(tmp_path/'one.jsonl', record)))


# What a record becomes

def test_webshop_mapping(tmp_path):
    p = one(tmp_path, WEBSHOP)
    assert (p.id, p.lang, p.category, p.price, p.price_range) == ('B0INVENT01', 'en', ('Home & Kitchen', 'Lighting', 'Desk Lamps'), 2450, (2450, 103107))
    assert p.offers == (Option('color', 'brass | black'), Option('color', 'steel', 2610), Option('style', 'old', None, False)) and p.axes == ('color', 'style')
    assert [v.values for v in p.variants] == [('', ''), ('', '')]
    assert (native(p, 'query'), native(p, 'department'), native(p, 'none')) == ('desk lamps', 'garden', '') and p.table == ()
    assert p.bullets == ('Dims in five steps ', 'Two metre cable') and p.rating == 4.5


@pytest.mark.parametrize('tag, price, span', [('$10.71', 1071, (1071, 1071)), ('$10.71$18.34', 1071, (1071, 1834)), ('$44.99$33.98', 3398, (3398, 4499)), ('$5$5', 500, (500, 500)), ('', 10000, (10000, 10000)),
    (None, 10000, (10000, 10000)), ('12.50', 10000, (10000, 10000)), ('$2,356.08', 235608, (235608, 235608)), ('$1.00 - $2.00$3.00', 100, (100, 200)), ('$0.01', 1, (1, 1))])
def test_webshop_price_tag(tmp_path, tag, price, span):
    p = one(tmp_path, changed(WEBSHOP, pricing=tag, customization_options=''))
    assert (p.price, p.price_range) == (price, span) and p.stock == STOCK * max(1, len(p.variants))


def test_shopsim_mapping(tmp_path):
    p = one(tmp_path, SHOPSIM)
    assert (p.id, p.lang, p.shop, p.category, p.price, p.features) == ('900000000017', 'zh', '云步运动店', ('运动鞋new', '跑步鞋'), 19900, ('男', '透气'))
    assert p.axes == ('鞋码', '颜色分类') and p.offers[1] == Option('鞋码', '41', 22990, False)
    assert p.variants == (Variant('900000000017-0', ('40', '黑 | 绿'), 19900, STOCK), Variant('900000000017-1', ('41', '黑 | 绿'), 22990, 0), Variant('900000000017-2', ('40', ''), 19900, STOCK))
    assert p.stock == 2 * STOCK and native(p, 'query') == '跑鞋' and native(p, 'domain') == '运动户外'
    plain = one(tmp_path, {k: v for k, v in SHOPSIM.items() if k != 'variant_combinations'})
    assert plain.price_range == (19900, 22990) and plain.offers == p.offers and [v.values for v in plain.variants] == [('', '')] * 2


def test_shoppingbench_mapping(tmp_path):
    p = one(tmp_path, BENCH)
    assert (p.id, p.shop, p.brand, p.category, p.price, p.sold, p.services) == ('0400000017', '731055', 'NORDPINE', ('Home', 'Kitchen', 'Mugs'), 24950, 12, ('COD', 'freeShipping'))
    assert [v.values for v in p.variants] == [('sage', '350 ml'), ('clay', '500 ml')] and {v.price for v in p.variants} == {24950} and p.offers == ()
    assert p.table == (('material', 'stoneware'), ('material', 'clay'), ('brand', 'nordpine'))
    odd = one(tmp_path, dict(product=changed(BENCH['product'], product_id=400, service='COD, freeShipping', sku_options=[dict(size=42), dict(color=['a', 'b'])], attributes=dict(material='tin', none=[]), price='1,249.50')))
    assert (odd.id, odd.services, odd.price, odd.table) == ('400', ('COD', 'freeShipping'), 124950, (('material', 'tin'),))
    assert odd.axes == ('size', 'color') and [v.values for v in odd.variants] == [('42', ''), ('', 'a, b')] and [(o.axis, o.value) for o in odd.options] == [('size', '42'), ('color', 'a, b')]


def test_amazebay_mapping(tmp_path):
    p = one(tmp_path, AMAZEBAY)
    assert (p.id, p.category, p.brand, p.shop, p.price, p.rating, p.n_reviews) == ('B0INVENT77', ('All Beauty', 'Beauty', 'Masks'), 'Quillmoor', 'Quillmoor Shop', 129907, 4.37, 88)
    assert p.table == (('Brand', 'Quillmoor'), ('Item Form', 'Powder'), ('UPC', '617')) and p.bullets == ('Vegan', 'Six uses') and p.description == 'A mask. For all skin.'
    assert (p.stock, native(p, 'ship_days')) == (gym_stock('B0INVENT77')[0], str(gym_stock('B0INVENT77')[1]))


@pytest.mark.parametrize('price', [None, '', 'None', 'from 14.99', '—', '0', '$0.00', '-3', 0, '12,50'])
def test_amazebay_missing_price(tmp_path, price):
    counts = Counts()
    p, = read_products(lines(tmp_path/'a.jsonl', changed(AMAZEBAY, price=price)), counts=counts)
    assert p.price == 999 and counts.mended == {'no price: 9.99': 1}


def test_gym_stock_is_as_published():
    many = [gym_stock(f'B{n:09d}') for n in range(2000)]
    sold_out = sum(s == 0 for s, _ in many) / 2000
    assert gym_stock('B0') == (19, 1) and gym_stock('B8') == (0, 2) and 0.08 < sold_out < 0.12
    assert 19 < sum(s for s, _ in many if s) / sum(s > 0 for s, _ in many) < 21 and 2.4 < sum(d for _, d in many) / 2000 < 2.6


# Money

def test_money_is_exact_from_any_spelling():
    for cents in [*range(0, 3000), *range(10**7, 10**7 + 300), 10**14 + 1]:
        text = f'{cents // 100}.{cents % 100:02d}'
        number, = decode(f'{{"p": {text}}}'.encode()).values()
        assert parse_amount(text) == parse_amount(number) == (cents, False)
        if cents < 10**8: assert parse_amount(float(text)) == (cents, False)
    digits, = decode(b'{"p": 0.004999999999999999999999}').values() # as a float this is 0.005
    assert parse_amount(digits) == (0, True)
    assert parse_amount(Decimal('0.015')) == (2, True) and parse_amount(Decimal('1e-400')) == (0, True)
    assert [parse_amount(x) for x in (Decimal('NaN'), Decimal('1e400'), 10**30, float('inf'), True, {}, '٣', '1,00', '1e3', ' ')] == [None] * 10


# Real samples, where they are (the fixture `samples`)

def test_the_thousand_products_of_webshop(tmp_path, samples):
    file, words = samples/'webshop'/'items_shuffle_1000.json', samples/'webshop'/'items_ins_v2_1000.json'
    shop = import_catalog(file, tmp_path/'shop', attributes=words)
    P, raw = list(shop), json.loads(file.read_text(encoding='utf-8'), parse_float=str, parse_int=str)
    prices = lambda p: {o.price for o in p.offers if o.price is not None}
    assert shop.meta['origin']['counts'] == dict(read=1000, kept=1000, dropped={}, mended={'no price: 100.00': 89, 'option group without values left out': 110, 'no category: general': 22})
    assert sum(len(prices(p)) > 1 for p in P) == 134 and sum(len(p.variants) == 2 for p in P) == sum(p.variants != () for p in P) == 93
    assert sum(p.offers != () for p in P) == 423 and sum(len(p.offers) for p in P) == 3499 and sum(o.price is not None for p in P for o in p.offers) == 714
    assert sum(not o.available for p in P for o in p.offers) == 129 and sum(p.features != () for p in P) == 815
    assert sum(not p.title.strip() for p in P) == 1 and shop.currency == 'USD' and shop.verify() == shop.digest
    for p, r in zip(P, raw): # the same facts straight from the text of the file, with string work only
        assert p.id == r['asin'] and p.title == r['name'] and p.description == r['full_description']
        tags = [x.replace(',', '') for x in r['pricing'].split('$')[1:]] or ['100.00']
        as_cents = lambda t: int((t.split('.') + [''])[0]) * 100 + int((t.split('.') + [''])[1].ljust(2, '0')[:2])
        assert ([v.price for v in p.variants] or [p.price]) == [as_cents(t) for t in tags] and p.price == min(map(as_cents, tags))
        listed = [(g.lower(), v['value'].strip().replace('/', ' | ').lower(), as_cents(v['price_string'][1:].replace(',', '')) if v.get('price_string') else None)
            for g, vs in (r['customization_options'] or {}).items() for v in vs or ()]
        assert [(o.axis, o.value, o.price) for o in p.offers] == listed


@pytest.mark.parametrize('name', ['shoppingbench/synthesize_product_test.jsonl', 'shoppingbench/synthesize_voucher_test.jsonl', 'shopsim/sft_validation_24.jsonl', 'webshop/items_human_ins.json', 'webshop/items_ins_v2_1000.json'])
def test_published_files_that_are_no_catalogues(tmp_path, samples, name):
    with pytest.raises(DataError) as e: import_catalog(samples/name, tmp_path/'shop')
    assert Path(name).name in str(e.value) and 'keys' in str(e.value) and '\n' not in str(e.value) and not list(tmp_path.iterdir())


# Containers

@pytest.mark.parametrize('format', VALID)
def test_every_container_gives_the_same_catalogue(tmp_path, format):
    rows = []
    for n in range(40):
        rows.append(copy.deepcopy(VALID[format]))
        ID_OF[format](rows[-1], f'A{n}')
    sources = [lines(tmp_path/'a.jsonl', *rows), write(tmp_path/'a.json', json.dumps(rows, indent=1)), lines(tmp_path/'b.jsonl.gz', *rows), write(tmp_path/'b.json.gz', dumps(rows)),
        write(tmp_path/'bom.json', b'\xef\xbb\xbf' + dumps(rows).encode()), write(tmp_path/'gaps.jsonl', '\r\n \n'.join(map(dumps, rows)))]
    shops = [import_catalog(s, tmp_path/f'shop{n}') for n, s in enumerate(sources)]
    assert {detect(s) for s in sources} == {format} and len({s.digest for s in shops}) == 1 and len(shops[0]) == 40
    assert list(shops[0]) == list(read_products(sources[0])) and shops[0].currency == FORMATS[format].currency
    origins = [s.meta['origin'] for s in shops]
    assert [o['file'] for o in origins] == [s.name for s in sources] and len({o['sha256'] for o in origins}) == len(sources) and all(o['counts']['kept'] == 40 for o in origins)


def test_parquet_equals_lines(tmp_path):
    rows = [changed(AMAZEBAY, parent_asin=f'B{n}', price=[None, '12.99', '$7'][n % 3]) for n in range(1500)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path/'a.parquet', row_group_size=700)
    a, b = import_catalog(tmp_path/'a.parquet', tmp_path/'p'), import_catalog(lines(tmp_path/'a.jsonl', *rows), tmp_path/'l')
    assert a.digest == b.digest and len(a) == 1500 and a.meta['origin']['counts']['mended'] == {'no price: 9.99': 500}
    numbers = [changed(AMAZEBAY, price=x) for x in (1299.07, float('nan'))]
    pq.write_table(pa.Table.from_pylist(numbers), tmp_path/'n.parquet')
    assert next(read_products(tmp_path/'n.parquet')).price == 129907


@pytest.mark.parametrize('chunk', [1, 2, 7, 64, 4096])
def test_array_is_cut_anywhere(tmp_path, monkeypatch, chunk):
    rows = [{'asin': f'A{n}', 'name': '茶 "]}[{,\\ ' * (n % 5), 'deep': {'list': [n, 1.5, None, {'x': [True]}]}} for n in range(30)]
    path = write(tmp_path/'a.json', json.dumps(rows, indent=n) if (n := chunk % 3) else dumps(rows))
    monkeypatch.setattr(streams, 'CHUNK', chunk)
    assert [r for _, r in records(path)] == json.loads(path.read_text(encoding='utf-8'), parse_float=Decimal) and [p for p, _ in records(path)] == [f'record {n}' for n in range(30)]


@pytest.mark.parametrize('kind', ['jsonl', 'json'])
def test_memory_does_not_grow_with_the_file(tmp_path, kind):
    def peak(n):
        rows = [changed(BENCH['product'], product_id=str(10**9 + i), description=f'{i} ' * 2000) for i in range(n)]
        path = lines(tmp_path/'m.jsonl', *({'product': r} for r in rows)) if kind == 'jsonl' else write(tmp_path/'m.json', dumps([{'product': r} for r in rows]))
        del rows
        tracemalloc.start()
        try: assert sum(1 for _ in read_products(path)) == n
        finally: top = tracemalloc.get_traced_memory()[1]; tracemalloc.stop()
        return path.stat().st_size, top
    (small, low), (large, high) = peak(400), peak(1200)
    assert high - low < 0.1 * (large - small), f'{high - low} bytes more for {large - small} bytes of file'


# Defects that published files are known to have

def test_webshop_ids(tmp_path):
    rows = [WEBSHOP, changed(WEBSHOP, asin='nan'), changed(WEBSHOP, name='again'), changed(WEBSHOP, asin='B0INVENT012'), changed(WEBSHOP, asin='B0INVENT02'), changed(WEBSHOP, asin='nan')]
    shop = import_catalog(write(tmp_path/'i.json', dumps(rows)), tmp_path/'shop')
    c = shop.meta['origin']['counts']
    assert [p.id for p in shop] == ['B0INVENT01', 'B0INVENT02'] and shop['B0INVENT01'].title == WEBSHOP['name']
    assert c['dropped'] == {"asin 'nan'": 2, 'asin longer than 10 characters': 1, 'id that came before': 1} and c['mended'] == {'option group without values left out': 2}
    assert c['read'] == c['kept'] + sum(c['dropped'].values()) == 6


def test_mended_records(tmp_path):
    shop = import_catalog(lines(tmp_path/'s.jsonl', changed(SHOPSIM, asin=1, pricing=None), changed(SHOPSIM, asin='2', pricing=[9.999], category='', customization_options={'a': [dict(value=' '), dict(value=7)]}, variant_combinations=[])), tmp_path/'s')
    assert shop['1'].price == 10000 and shop['2'].price == 1000 and shop['2'].category == ('general',) and shop['2'].offers == (Option('a', '7'),)
    assert shop.meta['origin']['counts']['mended'] == {'no price: 100.00': 1, 'combination without a price: that of the product': 1, 'amount finer than a cent: rounded': 1, 'no category: general': 1, 'option without a value left out': 1}
    bench = import_catalog(lines(tmp_path/'b.jsonl', BENCH, dict(product=changed(BENCH['product'], product_id='2', price=None))), tmp_path/'b')
    assert bench.meta['origin']['counts']['dropped'] == {'no price': 1}
    bay = import_catalog(lines(tmp_path/'a.jsonl', changed(AMAZEBAY, details='{"x": '), changed(AMAZEBAY, parent_asin='B2', details='None', store=None), changed(AMAZEBAY, parent_asin=None)), tmp_path/'a')
    assert bay['B0INVENT77'].brand == 'Quillmoor Shop' and bay['B2'].brand == '' and bay.meta['origin']['counts'] == dict(read=3, kept=2, dropped={'no id': 1}, mended={'details that cannot be read left out': 1})


def test_attributes_file_is_merged(tmp_path):
    words = write(tmp_path/'ins.json', json.dumps({'B0INVENT01': dict(attributes=['dimmable', 'brass'], instruction='x'), 'B0OTHER': dict(attributes=[])}, indent=1))
    shop = import_catalog(write(tmp_path/'i.json', dumps([WEBSHOP, changed(WEBSHOP, asin='B0INVENT02')])), tmp_path/'shop', attributes=words)
    assert shop['B0INVENT01'].features == ('dimmable', 'brass') and shop['B0INVENT02'].features == () and shop.meta['origin']['attributes']['file'] == 'ins.json'
    for bad, key in (('{"B0INVENT01": {"attributes": [1]}}', 'attributes'), ('{"B0INVENT01": []}', 'B0INVENT01'), ('[]', 'object'), ('{', 'object')):
        with pytest.raises(DataError, match=key) as e: import_catalog(tmp_path/'i.json', tmp_path/'new', attributes=write(tmp_path/'bad.json', bad))
        assert 'bad.json' in str(e.value) and '\n' not in str(e.value) and not (tmp_path/'new').exists()


# Texts

TEXTS = dict(unicode='茶 ☕ naïve ß 😀 e\u0301', empty='', long='长' * 10_000, rtl='\u202eمرحبا بالعالم שלום\u202c', lines='a\nb\r\nc\td\u2028e', control='\x00\x07\x1b[31m', markup='<script>&amp;</script>')


@pytest.mark.parametrize('text', TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize('format', VALID)
def test_texts_come_back_as_they_were(tmp_path, format, text):
    place = dict(webshop=('name', 'full_description'), shopsim=('title', 'full_description'), shoppingbench=('title', 'description'), amazebay=('title', 'store'))[format]
    r = copy.deepcopy(VALID[format])
    (r['product'] if format == 'shoppingbench' else r).update({k: text for k in place})
    made, = read_products(source := lines(tmp_path/'t.jsonl', r))
    back, = import_catalog(source, tmp_path/'shop')
    assert back == made and back.title == text and (back.shop == text.strip() if format == 'amazebay' else back.description == text)


@pytest.mark.parametrize('format, key', [('webshop', 'small_description'), ('shopsim', 'small_description'), ('amazebay', 'features')])
def test_bullets_are_lines(tmp_path, format, key):
    source = lines(tmp_path/'t.jsonl', changed(VALID[format], **{key: ['one\ntwo', ' ', '', 'three ']}))
    assert import_catalog(source, tmp_path/'shop').at(0).bullets == ('one two', 'three ')
    assert one(tmp_path, changed(VALID[format], **{key: 'alone'})).bullets == ('alone',) and one(tmp_path, changed(VALID[format], **{key: ['']})).bullets == ()


@pytest.mark.parametrize('format', VALID)
def test_half_a_surrogate_pair_is_mended(tmp_path, format):
    r = json.loads(dumps(VALID[format]).replace('Brass Desk', 'Bra\\ud83dss Desk').replace('轻跑鞋', '轻\\ud83d跑鞋').replace('Matte', 'Ma\\ud83dtte').replace('Clay', 'Cl\\ud83day'))
    shop = import_catalog(write(tmp_path/'s.jsonl', json.dumps(r)), tmp_path/'shop')
    assert '\ufffd' in shop.at(0).title and shop.meta['origin']['counts']['mended']['broken characters replaced'] == 1


# Broken files

def nested(base, path, value): # a copy with another value at a path of keys
    r = copy.deepcopy(base)
    at = r
    for k in path[:-1]: at = at[k]
    at[path[-1]] = value
    return r


BROKEN = [ # name, the broken record (or raw text), format of its neighbours, what the message must name
    ('torn line', '{"asin": "B2", "name"', 'webshop', ['line 2', 'JSON object', '"name"']),
    ('no object', '[1, 2]', 'webshop', ['line 2', 'record', 'object', '[1, 2]']),
    ('deep nesting', '{"asin": ' + '[' * 100_000, 'webshop', ['line 2', 'JSON object']),
    ('not UTF-8', b'{"asin": "\xff\xfe"}', 'webshop', ['line 2', 'UTF-8']),
    ('huge number', '{"asin": ' + '9' * 5000 + '}', 'webshop', ['line 2', 'JSON object']),
    ('no id', {k: v for k, v in WEBSHOP.items() if k != 'asin'}, 'webshop', ['line 2', 'asin', 'id', 'nothing']),
    ('id is a list', changed(WEBSHOP, asin=['B2']), 'webshop', ['line 2', 'asin', "['B2']"]),
    ('blank id', changed(SHOPSIM, asin='  '), 'shopsim', ['line 2', 'asin', "'  '"]),
    ('no title', {k: v for k, v in SHOPSIM.items() if k != 'title'} | dict(asin='2'), 'shopsim', ['line 2', "'2'", 'title', 'nothing']),
    ('price tag is a number', changed(WEBSHOP, asin='B2', pricing=10.5), 'webshop', ['line 2', "'B2'", 'pricing', 'text', '10.5']),
    ('price tag without digits', changed(WEBSHOP, asin='B2', pricing='$free'), 'webshop', ['line 2', "'B2'", 'pricing', 'amount', "''"]),
    ('price tag with two points', changed(WEBSHOP, asin='B2', pricing='$1.2.3'), 'webshop', ['line 2', 'pricing', '1.2.3']),
    ('negative price', nested(BENCH, ['product', 'price'], -249.5), 'shoppingbench', ['line 2', "'0400000017'", 'product.price', '0 or more', '-249.5']),
    ('price NaN', dumps(nested(BENCH, ['product', 'price'], 0)).replace('"price": 0', '"price": NaN'), 'shoppingbench', ['line 2', 'product.price', 'NaN']),
    ('price beyond all bounds', nested(BENCH, ['product', 'price'], 10**20), 'shoppingbench', ['line 2', 'product.price']),
    ('pricing is no list', changed(SHOPSIM, asin='2', pricing='199'), 'shopsim', ['line 2', "'2'", 'pricing', 'list', "'199'"]),
    ('price in the list is text', changed(SHOPSIM, asin='2', pricing=[1, 'cheap']), 'shopsim', ['line 2', 'pricing[1]', "'cheap'"]),
    ('options are a list', changed(WEBSHOP, asin='B2', customization_options=[1]), 'webshop', ['line 2', 'customization_options', 'object of lists', '[1]']),
    ('option group is text', changed(WEBSHOP, asin='B2', customization_options={'Color': 'red'}), 'webshop', ['line 2', 'Color', 'list', "'red'"]),
    ('two groups in one', changed(WEBSHOP, asin='B2', customization_options={'Cup  Size': [dict(value='a')], 'cup size ': [dict(value='b')]}), 'webshop', ['line 2', "'B2'", 'customization_options', 'different names', "['Cup  Size', 'cup size ']"]),
    ('two groups in one', changed(SHOPSIM, asin='2', customization_options={'颜色': [dict(value='a')], ' 颜色': [dict(value='b')]}), 'shopsim', ['line 2', "'2'", 'customization_options', 'different names', "['颜色', ' 颜色']"]),
    ('negative tag', changed(WEBSHOP, asin='B2', pricing='$10.00$-3'), 'webshop', ['line 2', "'B2'", 'pricing', '0 or more', "'$10.00$-3'"]),
    ('option is text', changed(WEBSHOP, asin='B2', customization_options={'Color': [dict(value='a'), 'red']}), 'webshop', ['line 2', "customization_options.'Color'[1]", 'object', "'red'"]),
    ('option price', nested(SHOPSIM, ['customization_options', '鞋码', 0, 'price'], 'x'), 'shopsim', ['line 2', "customization_options.'鞋码'[0].price", "'x'"]),
    ('option availability', nested(SHOPSIM, ['customization_options', '鞋码', 0, 'is_available'], 'yes'), 'shopsim', ['line 2', 'is_available', 'true or false', "'yes'"]),
    ('combination without options', changed(SHOPSIM, variant_combinations=[dict(price=1)]), 'shopsim', ['line 2', 'variant_combinations[0].options', 'object', 'nothing']),
    ('combinations are an object', changed(SHOPSIM, variant_combinations={}), 'shopsim', ['line 2', 'variant_combinations', 'list', '{}']),
    ('product is text', dict(id='7', product='mug'), 'shoppingbench', ['line 2', "'7'", 'product', 'object', "'mug'"]),
    ('sku is text', nested(BENCH, ['product', 'sku_options', '2'], 'red'), 'shoppingbench', ['line 2', "product.sku_options.'2'", 'object', "'red'"]),
    ('attribute is a number', nested(BENCH, ['product', 'attributes', 'material'], 3), 'shoppingbench', ['line 2', 'product.attributes.material', 'list of texts', '3']),
    ('sold is negative', nested(BENCH, ['product', 'sold_count'], -1), 'shoppingbench', ['line 2', 'product.sold_count', '2147483647', '-1']),
    ('sold is a fraction', nested(BENCH, ['product', 'sold_count'], 1.5), 'shoppingbench', ['line 2', 'product.sold_count', '1.5']),
    ('rating above five', changed(AMAZEBAY, average_rating=9), 'amazebay', ['line 2', "'B0INVENT77'", 'average_rating', 'from 0 to 5', '9']),
    ('features are a number', changed(AMAZEBAY, features=5), 'amazebay', ['line 2', 'features', 'list of texts', '5']),
    ('price is an object', changed(AMAZEBAY, price={'low': 1}), 'amazebay', ['line 2', 'price', "{'low': 1}"]),
    ('long text where none belongs', changed(AMAZEBAY, rating_number='x\n' * 5000), 'amazebay', ['line 2', 'rating_number', '…']),
]


@pytest.mark.parametrize('record, format, names', [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_broken_record_is_one_clear_line(tmp_path, record, format, names):
    row = record if isinstance(record, (str, bytes)) else dumps(record)
    row = row.encode() if isinstance(row, str) else row
    source = write(tmp_path/'source.jsonl', dumps(VALID[format]).encode() + b'\n' + row + b'\n')
    old = import_catalog(lines(tmp_path/'fine.jsonl', AMAZEBAY), tmp_path/'old')
    before = {p: p.read_bytes() for p in tmp_path.rglob('*') if p.is_file()}
    for target in (tmp_path/'new', tmp_path/'old'):
        with pytest.raises(DataError) as e: import_catalog(source, target)
        message = str(e.value)
        assert all(n in message for n in ['source.jsonl', *names]), message
        assert len(message.splitlines()) == 1 and len(message) < 400 and message.isprintable()
    assert {p: p.read_bytes() for p in tmp_path.rglob('*') if p.is_file()} == before and not (tmp_path/'new').exists() and Catalog(old.path).verify() == old.digest
    kept = import_catalog(source, tmp_path/'new', broken=1)
    assert len(kept) == 1 and kept.meta['origin']['counts']['dropped'] == {'broken': 1}


ARRAYS = [ # text of a JSON array after one good record, what the message must name
    (', {"asin": "B2", "name": ]', ['record 1', 'JSON value', '"B2"', "Expecting value"]), ('', ['record 0', "','", "']'", 'the end of the file']), (', ', ['record 1', 'the end of the file']), (' {"asin": "B2"}]', ['record 0', "','", "'{'"]),
    (',]', ['record 1', "']"]), (']]', ['record 0', 'the end of the file', "']'"]), (', 7]', ['record 1', 'object', '7']), (', {"asin": "B2", "name": "x", "pricing": []}]', ['record 1', "'B2'", 'pricing', 'text', '[]'])]


@pytest.mark.parametrize('rest, names', ARRAYS, ids=range(len(ARRAYS)))
@pytest.mark.parametrize('suffix', ['.json', '.json.gz'])
def test_broken_array_is_one_clear_line(tmp_path, rest, names, suffix):
    source = write(tmp_path/f'source{suffix}', '[' + dumps(WEBSHOP) + rest)
    with pytest.raises(DataError) as e: import_catalog(source, tmp_path/'new')
    assert all(n in str(e.value) for n in [source.name, *names]) and len(str(e.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == [source]


def test_endless_object_in_an_array_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, 'CHUNK', 64); monkeypatch.setattr(streams, 'LARGEST', 5000)
    source = write(tmp_path/'a.json', '[' + dumps(WEBSHOP) + ', {"asin": "' + 'x' * 100_000 + '"}]')
    with pytest.raises(DataError, match='record 1'): list(read_products(source))


FILES = dict(missing=None, empty=b'', spaces=b' \n \n', pointer=b'version https://git-lfs.github.com/spec/v1\noid sha256:a0\nsize 1\n', text=b'asin,name\n1,2\n', utf16=dumps([WEBSHOP]).encode('utf-16'),
    torn_gzip=gzip.compress(dumps([changed(WEBSHOP, asin=f'B{n}') for n in range(50)]).encode())[:-40], bad_gzip=b'\x1f\x8b' + b'junk' * 30, torn_parquet=b'PAR1' + b'x' * 400, no_record=b'[]', other=b'{"query": "mug"}')


@pytest.mark.parametrize('content', FILES.values(), ids=FILES)
def test_file_that_is_no_catalogue(tmp_path, content):
    source = tmp_path/'given.dat'
    if content is not None: source.write_bytes(content)
    for format in (None, 'webshop'):
        with pytest.raises(DataError) as e: import_catalog(source, tmp_path/'new', format)
        assert 'given.dat' in str(e.value) and len(str(e.value).splitlines()) == 1 and not [p for p in tmp_path.iterdir() if p != source]


def test_truncation_anywhere_is_noticed(tmp_path):
    rows = [changed(WEBSHOP, asin=f'B{n}') for n in range(3)]
    for name, whole in (('a.json', dumps(rows).encode()), ('a.json.gz', gzip.compress(dumps(rows).encode())), ('a.jsonl.gz', gzip.compress('\n'.join(map(dumps, rows)).encode()))):
        for cut in range(1, len(whole), 17):
            (tmp_path/name).write_bytes(whole[:cut])
            with pytest.raises(DataError, match=re.escape(name)): list(read_products(tmp_path/name, 'webshop'))


JUNK = [None, True, -1, 1.5, 10**25, '', 'x' * 300, '\ud800', [], [None], [['x']], {}, {'': None}, {'value': {}}, float('nan')]


def every_path(x, at=()):
    yield at
    for k, v in x.items() if isinstance(x, dict) else enumerate(x) if isinstance(x, list) else (): yield from every_path(v, (*at, k))


@pytest.mark.parametrize('format', VALID)
def test_junk_anywhere_is_loaded_or_refused_in_one_line(tmp_path, format):
    refused, paths = 0, [p for p in every_path(VALID[format]) if p]
    for path in paths:
        for junk in JUNK:
            try: p = FORMATS[format].product(Record(decode(json.dumps(nested(VALID[format], path, junk)).encode()), Counter()))
            except (Defect, Dropped) as e: refused += 1; assert str(e) and str(e).isprintable() and len(str(e)) < 300
            else: assert p.id and 0 <= p.price <= 10**15
    assert 0.1 < refused / (len(paths) * len(JUNK)) < 0.9
    draws = Draws(7, 'junk', format) # what was loaded can also be written and read back
    for _ in range(25):
        rows = [VALID[format]] + [nested(VALID[format], draws.pick(paths), draws.pick(JUNK)) for _ in range(20)]
        for n, r in enumerate(rows): ID_OF[format](r := copy.deepcopy(r), f'A{n}') if isinstance(r.get('product', {}), dict) else None
        source = write(tmp_path/'r.jsonl', '\n'.join(map(json.dumps, rows)))
        assert list(import_catalog(source, tmp_path/'shop', format, broken=len(rows))) == list(read_products(source, format, broken=len(rows)))


# The folder

def test_other_folders_are_never_replaced(tmp_path):
    source = lines(tmp_path/'s.jsonl', AMAZEBAY)
    (tmp_path/'thesis').mkdir(); (tmp_path/'thesis'/'chapter.tex').write_text('years of work')
    for target in (tmp_path/'thesis', source):
        with pytest.raises(DataError, match='is not a catalogue'): import_catalog(source, target)
    assert (tmp_path/'thesis'/'chapter.tex').read_text() == 'years of work' and len(list(tmp_path.iterdir())) == 2
    (tmp_path/'empty').mkdir()
    assert len(import_catalog(source, tmp_path/'empty')) == 1 and len(import_catalog(source, tmp_path/'empty')) == 1


def test_interrupt_leaves_nothing(tmp_path):
    source = lines(tmp_path/'s.jsonl', *(changed(AMAZEBAY, parent_asin=f'B{n}') for n in range(30)))
    def stop(products):
        for n, p in enumerate(products):
            if n == 20: raise KeyboardInterrupt
            yield p
    with pytest.raises(KeyboardInterrupt): import_catalog(source, tmp_path/'shop', progress=stop)
    assert list(tmp_path.iterdir()) == [source]
    seen = []
    import_catalog(source, tmp_path/'shop', progress=lambda ps: (seen.append(p.id) or p for p in ps))
    assert seen == [f'B{n}' for n in range(30)]


def test_unknown_format_and_too_many_broken(tmp_path):
    with pytest.raises(DataError, match='choose one of'): import_catalog(lines(tmp_path/'s.jsonl', AMAZEBAY), tmp_path/'shop', 'taobao')
    source = lines(tmp_path/'b.jsonl', AMAZEBAY, {}, {'parent_asin': 'B3', 'features': 1}, {'parent_asin': 'B4', 'features': 2})
    with pytest.raises(DataError, match='line 4'): import_catalog(source, tmp_path/'shop', broken=1)
    assert import_catalog(source, tmp_path/'shop', broken=2).meta['origin']['counts']['dropped'] == {'no id': 1, 'broken': 2}


# The hub

def hub(monkeypatch, load): monkeypatch.setitem(sys.modules, 'datasets', load and types.SimpleNamespace(load_dataset=load))


def test_hub_without_the_package(tmp_path, monkeypatch):
    hub(monkeypatch, None)
    with pytest.raises(DataError, match=r'package `datasets`.*shopping-grpo\[train\]'): import_catalog('hf:someone/catalog', tmp_path/'shop')
    assert not list(tmp_path.iterdir())


def test_hub_without_the_network(tmp_path, monkeypatch):
    def offline(*a, **k): raise ConnectionError('no route\nto host')
    hub(monkeypatch, offline)
    with pytest.raises(DataError) as e: import_catalog('hf:someone/catalog', tmp_path/'shop')
    assert str(e.value) == 'hf:someone/catalog: cannot be read (no route to host); check name, split and network, or fetch the file and import that'
    def breaks(*a, **k): yield AMAZEBAY; raise TimeoutError
    hub(monkeypatch, breaks)
    with pytest.raises(DataError, match='hf:someone/catalog: row 1: .*TimeoutError'): import_catalog('hf:someone/catalog', tmp_path/'shop')
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('format', VALID)
def test_hub_rows_go_the_same_way(tmp_path, monkeypatch, format):
    asked = []
    hub(monkeypatch, lambda name, split, streaming: asked.append((name, split, streaming)) or iter([VALID[format]]))
    shop = import_catalog('hf:someone/catalog:test[:10]', tmp_path/'shop')
    assert set(asked) == {('someone/catalog', 'test[:10]', True)} and list(shop) == [one(tmp_path, VALID[format])]
    assert shop.meta['origin'] | dict(counts=None) == dict(importer='shopping_grpo.importers', format=format, file='hf:someone/catalog:test[:10]', sha256=None, counts=None)
    hub(monkeypatch, lambda name, split, streaming: [VALID[format], {'parent_asin': 'B2', 'features': 1, 'product': 5, 'asin': []}])
    with pytest.raises(DataError, match='hf:someone/catalog: row 1: '): import_catalog('hf:someone/catalog', tmp_path/'other', format)


def test_counts_summary_is_plain():
    c = Counts(read=2, kept=1, dropped=Counter(x=1))
    assert json.loads(json.dumps(c.summary())) == dict(read=2, kept=1, dropped={'x': 1}, mended={})
