"""Both grades of EcomRLVE: success is exactly what was asked for, everything less is ordered, and ids that nobody showed are worth nothing."""
import itertools, re
from dataclasses import replace
import pytest
from talkfiles import play, run, shop # noqa: F401, the fixture
from shopping_grpo.env import Message, ToolCall
from shopping_grpo.envs.ecomrlve import EcomRLVE
from shopping_grpo.core import Draws
from shopping_grpo.envs.ecomrlve_audit import spam
from shopping_grpo.envs.ecomrlve_goals import KINDS, aim_of
from shopping_grpo.envs.ecomrlve_orders import eligible
from shopping_grpo.envs.ecomrlve_policy import Oracle, call, reply
from shopping_grpo.envs.ecomrlve_score import Given, WORTH, check, efficiency, matching, native, native_task, verified, worth
from shopping_grpo.envs.ecomrlve_terms import make_terms
from shopping_grpo.envs.shoppingbench_audit import Walk
from shopping_grpo.envs.shoppingbench_policy import shown
from shopping_grpo.envs.shoppingbench_shop import Pick, pick_of, unit_price
from shopping_grpo.policy import Briefing
from shopping_grpo.reward import Verdict


def task(shop, kind, d=6, number=0, split='train'): return shop.talks.at(split, number, d, kind)
def first(t): return aim_of(t.goal).parts[0]
def right(shop, w): return pick_of(shop.catalog[w.target], w.target_variant, w.quantity)
def solved(part, given, catalog): return all(v.ok for v in check(part, given, catalog))
def script_of(shop, t): # the calls of the oracle
    o, calls = shop.env.reset(t), []
    p = Oracle(shop.catalog)
    p.begin(Briefing(o.text, 'en', tuple(shop.env.tools)), 0, task=t)
    done = False
    while not done:
        calls.append(p.act(o))
        s = shop.env.step(calls[-1])
        o, done = s.observation, s.done
    return calls


# ---- order

def test_the_order_of_rewards(shop):
    "Malformed < loop < gave up without trying < wrong < looked and gave up < partly right < right, on the same task, and 1 is success alone."
    t = task(shop, 'BUNDLE', 4)
    calls = script_of(shop, t)
    *found, last = calls
    *some, _ = last.args['products'].split(', ')
    other = next(p.id for p in shop.catalog if p.stock and p.id not in last.args['products'])
    search = call('catalog_search', query=shop.catalog[other].title)
    wrong = f"{shown(do_after(shop, t, search))[0]['name']}#1"
    rewards = [run(shop.env, t, [Message('I am done.')]), run(shop.env, t, [call('cart_view')] * 3), run(shop.env, t, [reply()]), run(shop.env, t, [search, reply(products=wrong)]), run(shop.env, t, [search, reply()]),
        run(shop.env, t, [*found, reply(products=some[0])]), run(shop.env, t, [*found, reply(products=', '.join(some))]), run(shop.env, t, calls)]
    assert [r.kind for r in rewards] == ['stopped', 'loop', 'idle', 'wrong', 'failed', 'partial', 'partial', 'success']
    values = [r.value for r in rewards]
    assert values == sorted(set(values)) and values[0] == -1 and values[-1] == 1 and values[-2] < .5
    assert run(shop.env, t, [ToolCall('answer', '{'), ToolCall('answer', '{'), ToolCall('answer', '{')]).value == -1


def do_after(shop, t, *calls):
    shop.env.reset(t)
    for a in calls: o = shop.env.step(a).observation
    return o


def test_the_floor_and_the_ceiling():
    "Every mixture of verdicts and ends: 1 is success and nothing else, the kinds never overlap."
    lowest = {'success': (1, 1), 'partial': (worth(0), worth(1)), 'failed': (-.3, -.3), 'wrong': (-.45, -.45), 'idle': (-.6, -.6), 'loop': (-.8, -.8), 'stopped': (-1, -1)}
    ends, seen = ('answered', 'abstained', 'loop', 'stopped', 'max_turns', 'max_tokens', 'max_time'), set()
    for n, end, worked in itertools.product((1, 2, 3), ends, (True, False)):
        for m in range(n + 1):
            for oks in itertools.product((0., .4, 1.), repeat=m):
                r = verified([[Verdict('x', s == 1, s)] for s in oks], n, end, worked)
                low, high = lowest[r.kind]
                assert low - 1e-9 <= r.value <= high + 1e-9 and (r.value == 1) == (m == n and all(s == 1 for s in oks)), (oks, n, end, worked)
                seen.add(r.kind)
    assert seen == set(lowest) and worth(1) < 1 and WORTH['stopped'] < WORTH['loop'] < WORTH['idle'] < WORTH['wrong'] < WORTH['failed'] < worth(0)


def test_one_more_thing_right_is_never_worth_less(shop):
    "From an empty bundle or cart to a full one, thing by thing, and each wrong thing on top costs something."
    for kind in ('BUNDLE', 'CART'):
        t = task(shop, kind, 9)
        p = first(t)
        picks, last = [right(shop, w) for w in p.wants], -2
        given = lambda xs: Given(products=tuple(xs)) if kind == 'BUNDLE' else Given(cart=tuple(xs))
        value = lambda xs: verified([check(p, given(xs), shop.catalog)], 1, 'answered', True).value
        for n in range(len(picks) + 1):
            now = value(picks[:n])
            assert now > last
            if 0 < n < len(picks): assert value([*picks[:n], Pick(shop.catalog.id_at(5), 1)]) < now
            last = now
        assert last == 1 > value([*picks, Pick(shop.catalog.id_at(5), 1)])


# ---- one kind after the other

@pytest.mark.parametrize('kind', ['PD', 'SUB'])
def test_products_that_are_named(shop, kind):
    "All of them in any order; not one too few or too many, none twice, no open or wrong variant, not the original, not two pieces."
    for i in range(40):
        p = first(t := task(shop, kind, 9, i))
        if p.k > 1: break
    w, c = p.wants[0], shop.catalog
    by = {}
    for a in w.accepted: by.setdefault(a.rsplit('-', 1)[0], a)
    good = [pick_of(c[i], a) for i, a in list(by.items())[:p.k]]
    ok = lambda picks: solved(p, Given(products=tuple(picks)), c)
    assert ok(good) and ok(good[::-1]) and not ok([]) and not ok(good[:-1]) and not ok([*good, *good[:1]]) and not ok([*good[:-1], good[0]]) and not ok([*good, Pick(c.id_at(3), 1)])
    assert not ok([*good[:-1], good[-1]._replace(quantity=2)]) and not ok([*good[:-1], good[-1]._replace(number=0)])
    other = next(n for n, v in enumerate(c[good[-1].product].variants, 1) if v.id not in w.accepted and v.stock)
    assert not ok([*good[:-1], good[-1]._replace(number=other)])
    if kind == 'SUB': assert not any(ok([*good[:-1], Pick(p.original, n)]) for n in range(1, len(c[p.original].variants) + 1))


def test_a_cart_holds_what_was_asked_for(shop):
    "Lines in any order or split in two; not a piece, line or variant more or less. One thing in one piece is exactly right, too."
    c = shop.catalog
    for d in (0, 6, 12):
        for i in range(8):
            p = first(task(shop, 'CART', d, i))
            picks = [right(shop, w) for w in p.wants]
            ok = lambda picks: solved(p, Given(cart=tuple(picks)), c)
            assert ok(picks) and ok(picks[::-1]) and not ok(picks[1:]) and not ok([*picks, Pick(p.visited[0] if p.visited[0] not in [x.product for x in picks] else p.visited[1], 1)])
            for n, (x, w) in enumerate(zip(picks, p.wants)):
                rest = picks[:n] + picks[n + 1:]
                assert not ok([*rest, x._replace(quantity=x.quantity + 1)]) and (x.quantity == 1 or ok([*rest, x._replace(quantity=1), x._replace(quantity=x.quantity - 1)]))
                for k, v in enumerate(c[x.product].variants, 1):
                    if v.stock >= x.quantity: assert ok([*rest, x._replace(number=k)]) == (v.id in w.accepted)


def test_returns_and_refusals(shop):
    "The line, the reason, the method, and the replacement that is wanted; a line past its window is refused after a look, and sending back anything else besides is a failure."
    c, seen = shop.catalog, set()
    for d, i in itertools.product((3, 9), range(30)):
        t = task(shop, 'RETURN', d, i)
        a, p = aim_of(t.goal), first(t)
        order = next(o for o in p.orders if o.id == p.order)
        assert eligible(c, order, next(x for x in order.lines if x.id == p.line), make_terms(a.terms), a.today).ok == (not p.refuse)
        how = dict(order=p.order, line=p.line, reason=p.reason, method=p.method)
        said = Given(order=p.order, line=p.line, status='refused', checked=((p.order, p.line),))
        ok = lambda g: solved(p, g, c)
        if p.refuse:
            assert ok(said) and not ok(replace(said, checked=())) and not ok(replace(said, status='returned')) and not ok(replace(said, line='L9')) and not ok(replace(said, returns=(dict(how, line='L9', pick=None),)))
            seen.add('refused'); continue
        pick = tuple(right(shop, p.wants[0])) if p.wants else None
        done = Given(order=p.order, line=p.line, status='replaced' if p.wants else 'returned', returns=(dict(how, pick=pick),))
        assert ok(done) and not ok(said) and not ok(replace(done, returns=())) and not ok(replace(done, order='A1')) and not ok(replace(done, status='delivered'))
        for bad in (dict(how, reason='other'), dict(how, method='other'), dict(how, line='L9'), dict(how, order='A1')): assert not ok(replace(done, returns=(dict(bad, pick=pick),)))
        assert not ok(replace(done, returns=(*done.returns, dict(how, line='L9', pick=None)))) and not ok(replace(done, returns=(dict(how, pick=None if p.wants else [c.id_at(1), 1, 1]),)))
        if p.wants: assert not ok(replace(done, returns=(dict(how, pick=[*pick[:2], 9]),)))
        seen.add('replaced' if p.wants else 'returned')
    assert seen == {'refused', 'returned', 'replaced'}


def test_the_edge_of_a_window(shop):
    "On its last day a line can go back, and the day after not; both are asked for."
    days = set()
    for i in range(60):
        t = task(shop, 'RETURN', 20, i)
        a, p = aim_of(t.goal), first(t)
        o = next(o for o in p.orders if o.id == p.order)
        e = eligible(shop.catalog, o, next(x for x in o.lines if x.id == p.line), make_terms(a.terms), a.today)
        if abs(e.days - e.window) <= 1: days.add((e.days - e.window, e.ok))
    assert days == {(-1, True), (0, True), (1, False)}


def test_status_order_and_date(shop):
    p = first(task(shop, 'STATUS', 9, 2))
    o = next(o for o in p.orders if o.id == p.order)
    other = next(x for x in p.orders if x.id != p.order)
    good = Given(order=o.id, status=o.status, date=o.delivered or o.eta)
    ok = lambda g: solved(p, g, shop.catalog)
    assert ok(good) and not ok(replace(good, order=other.id)) and not ok(replace(good, status='lost')) and not ok(replace(good, date='2020-01-01')) and not ok(replace(good, order=''))


@pytest.mark.parametrize('said, ok', [('{v}', True), ('{v} {u}', True), ('-{v}', False), ('{v}.0', True), ('NaN', False), ('', False), ('{v} or 3', False), ('1{v}', False), ('inf', False), ('{v} hours', False), ('about {v}', True), ('(-{v})', False)])
def test_values_with_sign_and_unit(shop, said, ok):
    for i in range(6):
        p = first(task(shop, 'POLICY', 9, i))
        assert solved(p, Given(value=said.format(v=p.value, u=p.unit)), shop.catalog) == ok and p.value > 0


def test_a_bundle_within_its_budget(shop):
    "To the cent; one thing for each want, whichever pick fits which; none twice; no second piece."
    c, i = shop.catalog, 0
    while (p := first(task(shop, 'BUNDLE', 9, i))).budget is None: i += 1
    picks = [right(shop, w) for w in p.wants]
    cost = sum(unit_price(x, c[x.product]) for x in picks)
    ok = lambda picks, budget=p.budget: solved(replace(p, budget=budget), Given(products=tuple(picks)), c)
    assert cost <= p.budget and ok(picks) and ok(picks[::-1]) and ok(picks, cost) and not ok(picks, cost - 1) and not ok(picks[1:]) and not ok([*picks, picks[0]]) and not ok([*picks[1:], picks[1]])
    assert not ok([picks[0]._replace(quantity=2), *picks[1:]], 10**9) and not ok([], 10**9)


def test_matching_is_the_best_there_is():
    "Against trying all assignments, on 300 small random graphs."
    d = Draws(5, 'graphs')
    for _ in range(300):
        wants, picks = 1 + d.one(4), 1 + d.one(4)
        edges = [[n for n in range(picks) if d.one(2)] for _ in range(wants)]
        best = max(sum(x is not None and x in edges[n] for n, x in enumerate(way)) for way in itertools.permutations([*range(picks), *[None] * wants], wants))
        assert matching(edges) == best


# ---- made up, or not asked for

def test_ids_nobody_showed(shop):
    "The right answer without a look is no success in any kind that names products or orders, and stays none when the id is only opened, ranked or read by its variants; the published formula takes a tenth of it."
    c = shop.catalog
    for kind in ('PD', 'SUB', 'CART', 'BUNDLE', 'RETURN', 'STATUS'):
        t = next(t for i in range(40) if not (p := first(t := task(shop, kind, 3, i))).refuse and (kind != 'RETURN' or p.script.about.find(p.order) < 0) and (kind != 'STATUS' or p.script.about.find(p.order) < 0) and not shopper_due(shop, t))
        p = first(t)
        blind = [a for a in script_of(shop, t) if a.name not in ('catalog_search', 'visit_history', 'order_list', 'order_get')]
        ids = [w.target for w in p.wants]
        launder = [a for i in ids for a in (call('catalog_get', products=i), call('catalog_rerank', query='good', products=i), call('catalog_variants', product=i))]
        brief = EcomRLVE(c, shop.engine)
        for calls in (blind, launder + blind):
            r = run(shop.env, t, calls)
            assert shop.env._done and r.kind != 'success' and r.value < .5, (kind, r)
            assert shop.env.score_native().evidence['hallucination'] < 0
        assert run(brief, t, script_of(shop, t)).kind == 'success'


def test_orders_by_their_place(shop):
    "In the view `brief` an order may be called by its place in the list: for both grades the same as by its number, and no less made up where no list was shown."
    brief = EcomRLVE(shop.catalog, shop.engine, view='brief')
    for kind in ('STATUS', 'RETURN'):
        t = next(t for i in range(40) if not shopper_due(shop, t := task(shop, kind, 3, i)) and first(t).order not in t.prompt)
        p = first(t)
        place = f"O{[o.id for o in p.orders].index(p.order) + 1}"
        named = [call(a.name, **a.args | (dict(order=place) if a.args.get('order') else {})) for a in script_of(shop, t)]
        assert any(a.args.get('order') == place for a in named)
        by_number, by_place = (run(brief, t, calls) for calls in (script_of(shop, t), named))
        assert by_place.kind == by_number.kind == 'success' and by_place.value == by_number.value
        blind = [a for a in named if a.name not in ('order_list', 'order_get', 'catalog_search')]
        assert run(brief, t, blind).kind != 'success'
        assert run(shop.env, t, named).kind != 'success' # other views know no places


def shopper_due(shop, t):
    shop.env.reset(t)
    return shop.env.shopper.due


def test_an_order_that_the_shopper_names_is_known(shop):
    "Its number stands in the request: to check it at once is no invention."
    t = next(t for i in range(60) if (p := first(t := task(shop, 'RETURN', 0, i))).order in t.prompt and not p.wants and not p.refuse)
    p = first(t)
    how = dict(order=p.order, line=p.line)
    r = run(shop.env, t, [call('return_check', **how), call('return_initiate', **how, reason=p.reason, method=p.method), reply(**how, status='returned')])
    assert r.kind == 'success', r
    assert run(shop.env, t, [reply()]).kind == 'idle' # to have been told is not to have tried


def test_what_nobody_asked_for_is_no_success(shop):
    "A right answer after something else was put into the cart, or sent back, is not right."
    for kind in ('STATUS', 'PD'):
        t = next(t for i in range(60) if not shopper_due(shop, t := task(shop, kind, 3, i)) and (kind != 'STATUS' or next((o for o in first(t).orders if o.status == 'delivered'), None)))
        calls, a = script_of(shop, t), aim_of(t.goal)
        x = next(p for p in shop.catalog if not a.sold_out(p.id) and p.variants[0].stock)
        assert run(shop.env, t, calls).kind == 'success'
        assert run(shop.env, t, [call('catalog_search', query=x.title), call('cart_add', product=f'{x.id}#1'), *calls]).kind != 'success'


def test_asking_for_too_much_pays_little(shop):
    "Everything on the first page, or the whole history in the cart: never a success, on average less than nothing."
    rewards = [play(Walk('spam', spam), shop.env, task(shop, k, d, i), i)[0] for k in KINDS for d in (0, 3, 9) for i in range(2)]
    assert not any(r.kind == 'success' for r in rewards) and sum(r.value for r in rewards) / len(rewards) < -.2


def whole_page(w, o):
    while True:
        o = yield call('catalog_search', query=w.prompt[:300])
        yield reply(products=','.join(p['name'] for p in shown(o)))

def whole_history(w, o):
    while True:
        o = yield call('visit_history')
        for p in shown(o): yield call('cart_add', product=f"{p['name']}#1")
        yield reply()

def same_number(w, o):
    while True:
        yield call('terms_search', query=w.prompt[:300])
        yield reply(value='45')

def echo(w, o): # what was said, without reading
    while True:
        yield call('visit_history')
        order = re.search(r'\bA\d{4,5}\b', w.prompt)
        yield reply(**dict(order=order[0], line='L1', status='delivered') if order else {})

@pytest.mark.parametrize('steps, kinds', [(whole_page, ('PD', 'SUB', 'BUNDLE')), (whole_history, ('CART',)), (same_number, ('POLICY',)), (echo, ('STATUS', 'RETURN'))], ids=lambda x: getattr(x, '__name__', ''))
def test_one_trick_is_not_enough(shop, steps, kinds):
    "Agents with one trick for one kind: no success, and a mean below nothing."
    rewards = [play(Walk('trick', steps), shop.env, task(shop, k, d, i))[0] for k in kinds for d in (3, 9) for i in range(4)]
    assert not any(r.kind == 'success' for r in rewards) and sum(r.value for r in rewards) / len(rewards) < 0


# ---- the published formula

def test_the_published_formula():
    "Ceiling .9, floor -1, turns by hand."
    assert efficiency(1, 0, 4) == 1 and efficiency(4, 0, 4) == -1 and efficiency(4, 3, 4) == 1 and efficiency(2, 0, 1) == -1 and round(efficiency(2, 0, 4), 6) == round(1 / 3, 6)


def test_the_published_formula_on_whole_conversations(shop):
    "Right answers at once are worth .9 where closeness is not ranked; malformed ones -1; sign and size of a value count."
    c = shop.catalog
    for kind in ('CART', 'RETURN', 'STATUS', 'POLICY', 'BUNDLE'):
        t = next(t for i in range(20) if not shopper_due(shop, t := task(shop, kind, 3, i)))
        run(shop.env, t, script_of(shop, t))
        assert shop.env.score_native().value == pytest.approx(.9)
        run(shop.env, t, [Message('bye')])
        assert shop.env.score_native().value == -1 and shop.env.score_native().kind == 'hard_fail'
    t = task(shop, 'POLICY', 3)
    a, p = aim_of(t.goal), first(t)
    of = lambda v: native_task(a, p, Given(value=v), c)
    assert of(str(p.value)) == 1 > of(str(p.value + 1)) > of(str(p.value * 2)) > of('') == of(f'-{p.value}') == -1 and of('0') == -1
    bad = native(a, [Given(used=4, unseen=('a', 'b'))], c, 1, 0, 4, False)
    assert bad.evidence == dict(task=-1.0, efficiency=1.0, hallucination=-.5) and bad.value == pytest.approx(-.65)


def test_the_published_ranking_knows_the_persona(shop):
    "A list by the shopper's weights is worth at least as much as any other list of accepted products."
    a = aim_of(next(t for t in (task(shop, 'PD', 0, i) for i in range(60)) if len({x.rsplit('-', 1)[0] for x in first(t).wants[0].accepted}) >= 3).goal)
    p, c = a.parts[0], shop.catalog
    by = {x.rsplit('-', 1)[0]: x for x in p.wants[0].accepted}
    values = [native_task(a, p, Given(products=(pick_of(c[i], v),)), c) for i, v in by.items()]
    assert max(values) > min(values) and max(values) == pytest.approx(.9) # of .55 + .35 + 0: the best that the formula has
