"Past orders: what a shorter list says a longer one says too, dates make sense, windows close on their day, and words for an order fit no other."
import json, os, re, subprocess, sys
from collections import Counter
from datetime import date, timedelta
import pytest
from shopping_grpo.core import DataError, Draws, canonical_json
from shopping_grpo.envs.ecomrlve_orders import APART, MOST, STATUSES, OrderLine, PastOrder, alike, eligible, find_line, leaf_of, make_orders, newest_first, read_orders, refer
from shopping_grpo.envs.ecomrlve_shopper import Script, unreachable
from shopping_grpo.envs.ecomrlve_terms import make_terms, return_term, window
from shopping_grpo.generate import generate

TODAY = '2026-11-30'
MONTHS = 'January February March April May June July August September October November December'.split()
NUMBERS = 'one two three four five six seven eight nine ten eleven twelve'.split()


@pytest.fixture(scope='module')
def shop(tmp_path_factory):
    catalog = generate(tmp_path_factory.mktemp('orders')/'catalog', 'tiny', languages=('en',), workers=1)[0]
    leaves, by = catalog.column('category'), {}
    for row, leaf in enumerate(leaves): by.setdefault(int(leaf), []).append(row)
    return catalog, range(len(catalog)), [by[int(leaf)] for leaf in leaves]


def make(shop, seed, n, today=TODAY, **how):
    catalog, rows, alike_rows = shop
    target = int(Draws(seed, 'target').one(len(rows)))
    return target, make_orders(catalog, rows, n, today, Draws(seed, 'orders'), target, near=[r for r in alike_rows[target] if r != target], **how)


def confusable(a, b):
    "Whether the words of one kind of thing are all among those of the other: written anew, so that `alike` is checked too."
    a, b = ({w.lower().removesuffix('s') for w in re.findall(r"[\w-]+", x)} for x in (a, b))
    return a <= b or b <= a


def days(later, earlier): return (date.fromisoformat(later) - date.fromisoformat(earlier)).days


def test_a_shorter_list_is_the_beginning_of_a_longer_one(shop):
    for seed in range(60):
        for how in ({}, dict(status='cancelled'), dict(age=seed)):
            longest = make(shop, seed, 13, **how)[1]
            for n in (1, 2, 5, 12): assert make(shop, seed, n, **how)[1] == longest[:n]
    assert len(make(shop, 1, MOST)[1]) == MOST


def test_a_forced_first_order_changes_no_product_of_the_others(shop):
    for seed in range(60):
        plain = make(shop, seed, 8)[1]
        for how in (dict(status='shipped'), dict(age=44)): assert [[x for x in o.lines] for o in make(shop, seed, 8, **how)[1]] == [[x for x in o.lines] for o in plain]


def test_orders_are_sound(shop):
    catalog, seen, status = shop[0], Counter(), Counter()
    for seed in range(300):
        target, orders = make(shop, seed, 11)
        assert len({o.id for o in orders}) == 11 and all(re.fullmatch(r'A\d{4}', o.id) and o.id not in catalog for o in orders)
        assert find_line(orders, catalog.id_at(target))[0] == orders[0]
        products = [x.product for o in orders for x in o.lines]
        assert len({*products}) == len(products)
        listed = newest_first(orders)
        assert [o.placed for o in listed] == sorted((o.placed for o in orders), reverse=True) and [o.id for o in listed] == sorted((o.id for o in orders), reverse=True)
        for i, o in enumerate(orders):
            status[o.status] += 1; seen[listed.index(o)] += i == 0
            assert [x.id for x in o.lines] == [f'L{k + 1}' for k in range(len(o.lines))] and 1 <= len(o.lines) <= 3 and days(TODAY, o.placed) >= 0
            for x in o.lines:
                p = catalog[x.product]
                assert 1 <= x.quantity <= 3 and x.price > 0 and (x.variant, x.price) in ({(v.id, v.price) for v in p.variants} or {('', p.price)})
            kinds = [leaf_of(catalog, x.product) for x in o.lines]
            assert not any(confusable(a, b) for k, a in enumerate(kinds) for b in kinds[:k])
            assert (o.delivered != '') == (o.status == 'delivered') and (o.eta != '') == (o.status in STATUSES[:3])
            if o.delivered: assert days(o.delivered, o.placed) >= 1 and days(TODAY, o.delivered) >= 0
            if o.eta: assert days(o.eta, TODAY) >= 1
    assert {*status} == {*STATUSES} and .4 < status['delivered'] / status.total() < .62 and len(seen) == 11 # the target stands anywhere in the list


def test_things_like_the_target_are_there_and_far_in_time(shop):
    catalog, share = shop[0], 0
    for seed in range(300):
        how = ({}, dict(age=seed % 80), dict(status='in transit'), dict(status='confirmed'))[seed % 4]
        target, orders = make(shop, seed, 11, **how)
        leaf = leaf_of(catalog, catalog.id_at(target))
        others = [o for o in orders[1:] if any(confusable(leaf_of(catalog, x.product), leaf) for x in o.lines)]
        assert all(abs(days(o.placed, orders[0].placed)) >= APART for o in others) and {*others} <= {*orders[1::2]}
        share += bool(others)
    assert share > 150


# ---- a listener who knows the dates and the kinds of things, and nothing of how the words were chosen ----

def meant(words, placed, today):
    "Whether an order that was placed on a day could be the one that the words mean: generous by a day for weeks."
    placed, today = date.fromisoformat(placed), date.fromisoformat(today)
    if m := re.fullmatch(r'(\w+) days ago', words): return (today - placed).days == NUMBERS.index(m[1]) + 1
    if m := re.fullmatch(r'about (\w+) weeks ago', words): return abs((today - placed).days - 7 * (NUMBERS.index(m[1]) + 1)) <= 4
    if m := re.fullmatch(r'the first week of (\w+)', words):
        start = date(placed.year, MONTHS.index(m[1]) + 1, 1)
        return start - timedelta(1) <= placed <= start + timedelta(7)
    if m := re.fullmatch(r'the last week of (\w+)', words):
        month = MONTHS.index(m[1]) + 1
        end = (date(placed.year, month, 28) + timedelta(4)).replace(day=1) - timedelta(1)
        return end - timedelta(7) <= placed <= end + timedelta(1)
    m = re.fullmatch(r'(\d+) (\w+)', words)
    return (placed.day, placed.month) == (int(m[1]), MONTHS.index(m[2]) + 1)


def fitting(catalog, orders, about, words, today):
    "(order, line) ids that a reference could mean."
    if m := re.fullmatch(r'the (.+) in order (A\d+)', about): return [(o.id, x.id) for o in orders for x in o.lines if o.id == m[2] and leaf_of(catalog, x.product) == m[1]]
    kind = re.fullmatch(r'the (.+) that I ordered', about)[1]
    return [(o.id, x.id) for o in orders for x in o.lines if confusable(leaf_of(catalog, x.product), kind) and meant(words, o.placed, today)]


def test_references_mean_one_line(shop):
    catalog, kinds, n = shop[0], Counter(), 0
    for seed in range(250):
        today = (date(2026, 1, 1) + timedelta(seed * 3)).isoformat()
        how = ({}, dict(age=seed % 70), dict(status=STATUSES[seed % 5]))[seed % 3]
        target, orders = make(shop, seed, 11, today, **how)
        for order, line in [find_line(orders, catalog.id_at(target))] + [(o, x) for o in orders[1:] for x in o.lines]:
            for direct in (False, True):
                r = refer(catalog, orders, order, line, today, Draws(seed, order.id), direct)
                words = {f.key: f.exact for f in r.facts}.get('when', ('',))[0]
                assert fitting(catalog, orders, r.about, words, today) == [(order.id, line.id)], (r, order)
                assert r.direct == (order.id in r.about) and (r.direct or not direct)
                kinds[re.sub(r'\w+ (weeks|days)|\d+ \w+|of \w+', 'x', words) if not r.direct else 'direct' if direct else 'fallback'] += 1; n += 1
        assert not refer(catalog, orders, *find_line(orders, catalog.id_at(target)), today, Draws(seed)).direct
    assert n > 5000 and len(kinds) >= 6 and kinds['fallback'] < .03 * n, kinds


def test_a_reference_is_the_same_among_fewer_orders(shop):
    catalog = shop[0]
    for seed in range(200):
        target, orders = make(shop, seed, 12, **({}, dict(age=seed % 60))[seed % 2])
        said = {refer(catalog, orders[:n], *find_line(orders, catalog.id_at(target)), TODAY, Draws(seed)) for n in (1, 2, 4, 7, 12)}
        assert len(said) == 1


def test_words_hold_their_exact_spans_and_no_brace(shop):
    catalog = shop[0]
    for seed in range(200):
        target, orders = make(shop, seed, 5)
        r = refer(catalog, orders, *find_line(orders, catalog.id_at(target)), TODAY, Draws(seed))
        assert [f.key for f in r.facts][:2] == ['when', 'number'] and unreachable(Script('STATUS', r.about, r.facts)) == []
        for text in (r.about, *(w for f in r.facts for w in f.ways)): assert not re.search(r'[{}#|]|None|  ', text) and text == text.strip() and not re.search(r'A\d{4}', text), text


def test_a_time_is_named_only_when_it_tells_two_orders_apart(shop):
    catalog, rows, near = shop
    row = next(r for r in rows if len(near[r]) > 1)
    a, b = (PastOrder(id, '2026-11-01', 'delivered', '', '2026-11-05', (OrderLine('L1', catalog.id_at(near[row][k]), '', 1, 100),)) for k, id in enumerate(('A1001', 'A1002')))
    for o in (a, b):
        r = refer(catalog, (a, b), o, o.lines[0], TODAY, Draws(1))
        assert r.direct and o.id in r.about and r.facts == ()
    later = PastOrder(b.id, '2026-11-02', 'delivered', '', '2026-11-05', b.lines)
    assert {refer(catalog, (a, later), a, a.lines[0], TODAY, Draws(s)).facts[0].exact for s in range(20)} == {('1 November',)}
    later = PastOrder(b.id, '2026-11-20', 'delivered', '', '2026-11-25', b.lines)
    assert {refer(catalog, (a, later), a, a.lines[0], TODAY, Draws(s)).facts[0].exact[0] for s in range(40)} == {'1 November', 'the first week of November', 'about four weeks ago'}


def test_windows_close_on_their_day(shop):
    catalog, n = shop[0], 0
    for seed in range(250):
        terms = make_terms(seed % 12)
        target, _ = make(shop, seed, 1)
        p = catalog[catalog.id_at(target)]
        applies = [c.text for c in return_term(terms, p.category).conditions][:seed % 3]
        limit = window(terms, p.category, applies)
        for x in (-5, -1, 0, 1, 30):
            orders = make(shop, seed, 3, age=max(0, limit + x))[1]
            e = eligible(catalog, *find_line(orders, p.id), terms, TODAY, applies)
            assert e.ok == (x <= 0) == (e.why == '') and e.window == limit and e.days == max(0, limit + x)
            n += 1
            if not e.ok: assert str(limit) in e.why and str(e.days) in e.why
        for o in make(shop, seed, 11)[1]:
            for x in o.lines:
                e = eligible(catalog, o, x, terms, TODAY)
                assert e.ok == (o.status == 'delivered' and days(TODAY, o.delivered) <= window(terms, catalog[x.product].category)); n += 1
                if o.status != 'delivered': assert e.days is None and o.id in e.why and ('cancelled' in e.why) == (o.status == 'cancelled')
    assert n > 4000


def test_only_today_moves_the_dates(shop):
    for seed in range(40):
        a, b = make(shop, seed, 6, '2026-03-01')[1], make(shop, seed, 6, '2026-03-11')[1]
        for x, y in zip(a, b):
            assert (x.id, x.status, x.lines) == (y.id, y.status, y.lines)
            assert all(days(v, u) == 10 if u else v == '' for u, v in ((x.placed, y.placed), (x.eta, y.eta), (x.delivered, y.delivered)))


def test_plain_json_and_back(shop):
    for seed in range(50):
        orders = make(shop, seed, 7)[1]
        assert read_orders(json.loads(canonical_json(orders))) == orders


def test_kinds_of_things():
    assert alike('rice', 'rice cooker') and alike('hiking backpack', 'backpack') and alike('sandal', 'sandals') and not alike('rice cooker', 'induction cooker') and not alike('tea', 'teapot')


def test_no_number_is_that_of_a_product(shop):
    class Crowded:
        "A catalogue that uses every other such number itself."
        def __contains__(self, id): return int(id[1:]) % 2 == 0
        def __getattr__(self, name): return getattr(shop[0], name)
        def __getitem__(self, id): return shop[0][id]
    for seed in range(20):
        orders = make_orders(Crowded(), shop[1], 9, TODAY, Draws(seed))
        assert all(int(o.id[1:]) % 2 for o in orders) and len({o.id for o in orders}) == 9


def test_what_cannot_be_made_is_refused(shop):
    catalog = shop[0]
    for n in (0, -1, MOST + 1):
        with pytest.raises(DataError, match='orders'): make_orders(catalog, shop[1], n, TODAY, Draws(1))
    with pytest.raises(DataError, match='lost'): make_orders(catalog, shop[1], 2, TODAY, Draws(1), status='lost')
    with pytest.raises(DataError, match='rows'): make_orders(catalog, [1, 2], 5, TODAY, Draws(1))
    assert len(make_orders(catalog, shop[1], 3, TODAY, Draws(1))) == 3 # a target of its own choice


def test_same_bytes_under_any_hash_seed(shop):
    code = ("import sys; from shopping_grpo.catalog import Catalog; from shopping_grpo.core import digest, Draws; from shopping_grpo.envs.ecomrlve_orders import *; c = Catalog(sys.argv[1]); "
        "os = [make_orders(c, range(len(c)), 9, '2026-11-30', Draws(s), near=[s, s + 5]) for s in range(20)]; print(digest([os, [refer(c, o, o[k], o[k].lines[0], '2026-11-30', Draws(k)) for o in os for k in range(9)]], 64))")
    out = {subprocess.run([sys.executable, '-c', code, str(shop[0].path)], env=os.environ | {'PYTHONHASHSEED': s}, capture_output=True, text=True, check=True).stdout for s in ('0', '1', '77')}
    assert len(out) == 1 and len(out.pop()) == 65
