"Vouchers: discount, best subset and optimal basket against a solver that shares no code and no order of steps with ours."
import itertools
from fractions import Fraction
import pytest
from shopping_grpo.core import DataError, Draws
from shopping_grpo.envs.shoppingbench_voucher import PLATFORM, Offer, Slot, Voucher, best, discount, list_total, needed, solve, total

CASES = 10_000


def whole_cents(x): # rounded down
    return x.numerator // x.denominator


def price_to_pay(basket, entered):
    "The rules of the notebook again, in words of fractions; `basket`: (shop, cents for all pieces)."
    everything = sum(cents for _, cents in basket)
    left = Fraction(0)
    for shop in {s for s, _ in basket}:
        here = sum(c for s, c in basket if s == shop)
        off = Fraction(0)
        for v in entered:
            if v.scope != shop or here < v.threshold: continue
            if v.kind == 'fixed': off += v.face
            else: off += min(Fraction(v.percent, 100) * here, v.cap) if v.cap is not None else Fraction(v.percent, 100) * here
        left += here - min(here, whole_cents(off))
    off = Fraction(0)
    for v in entered:
        if v.scope != PLATFORM or everything < v.threshold: continue
        if v.kind == 'fixed': off += v.face
        else: off += min(Fraction(v.percent, 100) * left, v.cap) if v.cap is not None else Fraction(v.percent, 100) * left
    return int(left) - min(int(left), whole_cents(off))


def may_enter(vouchers):
    for n in range(len(vouchers) + 1):
        for s in itertools.combinations(vouchers, n):
            if n < 2 or not any(not v.stacks for v in s): yield s


def every_basket(slots, one_shop, distinct):
    for picks in itertools.product(*(s.offers for s in slots)):
        if one_shop and len({o.shop for o in picks}) > 1: continue
        if distinct and len({o.product for o in picks}) < len(picks): continue
        yield [(o.shop, o.price * s.quantity) for o, s in zip(picks, slots)]


def draw(d, n_slots=3, n_offers=3, n_vouchers=3):
    "Small numbers of shops, products and prices, so that ties, thresholds hit to the cent, and baskets that cost nothing are common."
    unit = (1, 7, 50, 100, 333)[d.one(5)]
    price = lambda: unit * d.one(12) if d.one(3) else d.one(1200)
    slots = [Slot(tuple(Offer(f'p{d.one(5)}', str(n), 'abc'[d.one(3)], price()) for n in range(1 + d.one(n_offers))), 1 + d.one(3) // 2) for _ in range(1 + d.one(n_slots))]
    vouchers = []
    for n in range(d.one(n_vouchers + 1)):
        fixed, scope, reach = d.one(2), (PLATFORM, PLATFORM, 'a', 'b')[d.one(4)], unit * d.one(24)
        kind = dict(kind='fixed', face=1 + d.one(600)) if fixed else dict(kind='percentage', percent=(1 + d.one(100), 50, 33, 100)[d.one(4)], cap=None if d.one(2) else 1 + d.one(400))
        vouchers.append(Voucher(f'v{n}', scope, threshold=reach, stacks=bool(d.one(3)), **kind))
    return slots, vouchers, bool(d.one(4) == 0), bool(d.one(2))


def test_ten_thousand_shopping_lists_against_brute_force():
    empty = several = 0
    for n in range(CASES):
        slots, vouchers, one_shop, distinct = draw(Draws(7, 'voucher cases', n))
        found, baskets = solve(slots, vouchers, one_shop, distinct), list(every_basket(slots, one_shop, distinct))
        if not baskets: assert found is None, n; empty += 1; continue
        truth = {frozenset(v.key for v in s): min(price_to_pay(b, s) for b in baskets) for s in may_enter(vouchers)}
        assert found.proof == truth, n
        assert found.total == min(truth.values()) == price_to_pay([(s, p * q) for s, p, q in found.lines], found.vouchers), n
        picked = [o for o, s in zip(found.offers, slots) if o in s.offers]
        assert len(picked) == len(slots) and not (distinct and len({o.product for o in picked}) < len(picked)) and not (one_shop and len({o.shop for o in picked}) > 1), n
        several += len(found.vouchers) > 1
        chosen, pay = best(found.lines, vouchers)
        assert pay == found.total == list_total(found.lines) - discount(found.lines, chosen), n
    assert empty > 100 and several > 300 # the draw reaches the hard cases


def test_larger_lists_against_brute_force():
    for n in range(150):
        slots, vouchers, one_shop, distinct = draw(Draws(8, 'larger', n), 4, 9, 4)
        baskets = list(every_basket(slots, one_shop, distinct))
        found = solve(slots, vouchers, one_shop, distinct)
        assert (found and found.proof) == ({frozenset(v.key for v in s): min(price_to_pay(b, s) for b in baskets) for s in may_enter(vouchers)} if baskets else None), n


def test_thresholds_of_platform_and_shops_that_compete():
    "A platform's threshold far above the cheapest basket, and shops whose vouchers make what is added cheap or free: where a bound that promises too much would cut off the best."
    several = 0
    for n in range(600):
        d = Draws(9, 'competing', n)
        slots = [Slot(tuple(Offer(f'p{i}-{k}', '', 'abc'[d.one(3)], 20 + d.one(480)) for k in range(2 + d.one(4))), 1 + d.one(2)) for i in range(2 + d.one(2))]
        vouchers = [Voucher('all', PLATFORM, 'fixed', 500 + d.one(1500), face=100 + d.one(600), stacks=True)]
        for shop in 'ab'[:1 + d.one(2)]:
            kind = dict(kind='percentage', percent=(30, 60, 95, 100)[d.one(4)], cap=(None, 50 + d.one(600))[d.one(2)]) if d.one(4) else dict(kind='fixed', face=200 + d.one(900))
            vouchers.append(Voucher(shop, shop, threshold=d.one(600), stacks=True, **kind))
        found, baskets = solve(slots, vouchers), list(every_basket(slots, False, True))
        assert found.proof == {frozenset(v.key for v in s): min(price_to_pay(b, s) for b in baskets) for s in may_enter(vouchers)}, n
        several += len(found.vouchers) > 1
    assert several > 80


def test_published_sums_are_exact():
    "100 less 42 per cent fits a budget of 58, and what floating point misses on a grid of whole results."
    missed = 0
    for t in range(1, 501):
        for percent in range(10, 51):
            if t * (100 - percent) % 100: continue
            exact = t * (100 - percent) // 100
            assert total([('s', 100 * t, 1)], [Voucher('v', PLATFORM, 'percentage', 0, percent=percent)]) == 100 * exact
            missed += t * (1 - percent / 100) > exact
    assert missed == 53
    assert total([('s', 10, 1), ('s', 20, 1)], []) == 30


def test_a_threshold_is_reached_by_exactly_that_much():
    v = Voucher('v', 'a', 'fixed', 1000, face=1)
    assert [discount([('a', p, 1), ('b', 5000, 1)], [v]) for p in (999, 1000, 1001)] == [0, 1, 1]


def test_needed_vouchers():
    slots = [Slot((Offer('p', '', 'a', 1000),))]
    proof = solve(slots, [Voucher('x', 'a', 'fixed', 0, face=300), Voucher('y', PLATFORM, 'fixed', 0, face=100)]).proof
    assert [needed(proof, b) for b in (699, 700, 900, 1000)] == [None, {'x'}, frozenset(), frozenset()]


@pytest.mark.parametrize('lines', [[('s', 1.0, 1)], [('s', -1, 1)], [('s', 1, 0)], [('s', 1, True)], [('s', '1', 1)]])
def test_a_line_that_is_none(lines):
    with pytest.raises(DataError, match='line .*whole'): total(lines, [])


@pytest.mark.parametrize('call, message', [(lambda: solve([]), 'at least one slot'), (lambda: solve([Slot((Offer('p', '', 's', 1.5),))]), 'price 1.5'), (lambda: solve([Slot((Offer('p', '', 's', 1),), 0)]), '0 pieces'),
    (lambda: best([], [Voucher('v', 's', 'fixed', 0, face=1)] * 2), 'one key')])
def test_wrong_questions(call, message):
    with pytest.raises(DataError, match=message): call()


def test_no_offers_no_basket():
    assert solve([Slot(())]) is None and solve([Slot((Offer('p', '', 's', 1),)), Slot(())], one_shop=True) is None
