"""ShoppingBench: filtered search against brute force, four intents with proofs, typed tools that never fall silent, both grades, and an audit that holds."""
import copy, itertools, json, os, subprocess, sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
import pytest
from shopping_grpo.audit import audit, gate, offered, reachable
from shopping_grpo.checklist import load_sheet
from shopping_grpo.core import DataError, Draws, EnvError, canonical_json
from shopping_grpo.env import FEEDBACK, Message, Outcome, ToolCall, check_env, clean
from shopping_grpo.envs.shoppingbench import ShoppingBench, grade_order
from shopping_grpo.envs.shoppingbench_build import BenchRequests, build, requests_for
from shopping_grpo.envs.shoppingbench_coupons import check_aim
from shopping_grpo.envs.shoppingbench_facts import articles, encyclopedia, makers
from shopping_grpo.envs.shoppingbench_goals import INTENTS, Aim, Knobs, Want, aim_of, offers_of, order, serving
from shopping_grpo.envs.shoppingbench_policy import read_request, solution
from shopping_grpo.envs.shoppingbench_shop import PAGE, PAGES, Market, Pick, price_text, random_query, write_pick
from shopping_grpo.envs.shoppingbench_voucher import subsets, total
from shopping_grpo.filter import examine
from shopping_grpo.generate import generate
from shopping_grpo.lucene import Bm25
from shopping_grpo.policy import Fluent, scripted
from shopping_grpo.rollout import rollout
from shopping_grpo.search import build_index, document, rank_keys, tokens
from shopping_grpo.task import check_splits, load_tasks, save_tasks, sheet_path
from shopping_grpo.teacher import QUIET, Teacher

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope='module')
def shop(tmp_path_factory):
    where = tmp_path_factory.mktemp('bench')
    catalog = generate(where/'catalog', 'tiny', languages=('en',), workers=1)[0]
    build_index(where/'index', catalog, workers=1)
    return catalog, Market(where/'index', catalog)


@pytest.fixture(scope='module')
def tasks(shop): return [t for s in ('train', 'val', 'test') for t in requests_for(shop[0], 5).tasks(s, 20)]


@pytest.fixture(scope='module')
def env(shop): return ShoppingBench(*shop)


def of(tasks, intent): return [t for t in tasks if t.scenario == intent]
def plain(env): return canonical_json(env._plain_state())
def answer(env, picks, entered=(), status='success'):
    env.step(ToolCall('recommend_product', dict(products=', '.join(map(write_pick, picks)), vouchers=','.join(entered))))
    return env.step(ToolCall('terminate', dict(status=status)))


# ---- search

def test_filtered_search_is_that_of_a_scan(shop):
    "1,000 random filtered queries: what is found, in order and in number, is what a scan over all products finds."
    catalog, market = shop
    products, words = list(catalog), {p.id: set(document(p)) for p in catalog}
    twin, hits, orders = Bm25(catalog, tokens, document, k1=1.2, b=.75), 0, set()
    for n in range(1000):
        query, f, sort = random_query(catalog, Draws(7, 'filters', n))
        (low, high), asked = f.price, set(tokens(query))
        kept = [p for p in products if (low or 0) <= p.price and (high is None or p.price <= high) and f.shop in (None, p.shop) and set(f.services) <= set(p.services)]
        if asked and sort == 'relevance':
            scores = {catalog.id_at(r): s for r, s in twin.top(list(dict.fromkeys(tokens(query))), len(catalog))}
            kept = [p for p in kept if p.id in scores]
            keys = (-rank_keys([scores[p.id] for p in kept])).tolist()
        else:
            kept = [p for p in kept if asked <= words[p.id]]
            keys = [dict(price_asc=p.price, price_desc=-p.price).get(sort, -p.sold) for p in kept]
        want = [i for _, i in sorted(zip(keys, (p.id for p in kept)))][:PAGE * PAGES]
        found = [h.product_id for page in range(1, PAGES + 1) for h in market.search(query, PAGE, page, f, sort).hits]
        assert found == want, (query, f, sort)
        hits += bool(want); orders.add(sort)
    assert hits > 500 and len(orders) == 4


def test_known_items_are_found(shop):
    "A product is on the first page for its title, and first for its title in its own shop unless a twin stands there."
    catalog, market = shop
    for p in itertools.islice(catalog, 0, None, 11):
        assert p.id in [h.product_id for h in market.search(p.title, PAGE).hits] or sum(tokens(q.title) == tokens(p.title) for q in catalog) > 1


def test_the_cheapest_of_all(shop, env, tasks):
    "Sorted by price, the first line is the cheapest product of the whole shop that matches, on whatever page relevance would put it."
    catalog, _ = shop
    env.reset(tasks[0])
    for leaf in sorted({p.category[-1] for p in catalog})[::4]:
        shown = env.step(ToolCall('find_product', dict(query=leaf, sort='priceasc'))).observation.data['products']
        cheapest = min((p.price, p.id) for p in catalog if set(tokens(leaf)) <= set(document(p)))
        assert shown[0]['asin'] == cheapest[1]
        env.reset(tasks[0])


# ---- tasks

def test_every_task_is_solved_by_both_grades(env, tasks):
    "The oracle is right in every intent under the verified and the published grade; who does nothing or gives up is not."
    assert {i: len(of(tasks, i)) for i in INTENTS} == dict.fromkeys(INTENTS, 15)
    for t in tasks:
        r = rollout(scripted('oracle', env.catalog), env, t)
        assert r['success'] and r['native']['value'] == 1 and r['outcome'] == 'answered' and r['guard_rejections'] == 0, (t.prompt, r)
    for name in ('do-nothing', 'abstain', 'random'): assert not any(rollout(scripted(name, env.catalog), env, t, seed=i)['success'] for i, t in enumerate(tasks[:24]))


def test_splits_share_no_product(shop, tasks, tmp_path):
    "Nothing that is right in one split is right in another; tasks are read back as they were, and an intent alone is asked for by name."
    check_splits(tasks)
    save_tasks(tmp_path/'t.jsonl', tasks)
    assert load_tasks(tmp_path/'t.jsonl') == tasks
    assert {t.scenario for t in requests_for(shop[0], 5, 'shop').tasks('val', 5)} == {'shop'}
    with pytest.raises(DataError, match='intent .gift. is unknown'): requests_for(shop[0], 5, 'gift')


def test_tasks_are_the_same_everywhere(shop, tasks):
    "The same keys in a process with another hash seed."
    code = f"from shopping_grpo.catalog import Catalog; from shopping_grpo.envs.shoppingbench_build import requests_for; print([t.key for t in requests_for(Catalog({str(shop[0].path)!r}), 5).tasks('val', 8)])"
    out = subprocess.run([sys.executable, '-c', code], env=os.environ | {'PYTHONHASHSEED': '7'}, capture_output=True, text=True)
    assert json.loads(out.stdout.replace("'", '"')) == [t.key for t in tasks if t.split == 'val'][:8], out.stderr


def test_accepted_sets_are_complete(shop, tasks):
    "A scan over all variants in stock finds exactly what is accepted for each want."
    from shopping_grpo.task import satisfied
    for t in tasks[::5]:
        for w in aim_of(t.goal).wants:
            assert w.accepted == tuple(sorted(v.id for p in shop[0] for v in p.variants if v.stock > 0 and all(satisfied(c, p, v) for c in w.constraints if c.hard)))


def test_budgets_need_their_vouchers(shop, tasks):
    "Against all baskets and all sets of vouchers, one by one: the optimum is the least, and without one of the needed vouchers nothing fits the budget."
    checked = 0
    for t in of(tasks, 'voucher'):
        aim = aim_of(t.goal)
        check_aim(shop[0], aim)
        offers = [offers_of(shop[0], w) for w in aim.wants]
        baskets = [b for b in itertools.product(*offers) if len({o.product for o in b}) == len(b)]
        if len(baskets) > 4000: continue
        cost = {s: min(total([(o.shop, o.price, w.quantity) for o, w in zip(b, aim.wants)], s) for b in baskets) for s in subsets(aim.vouchers)}
        assert min(cost.values()) == aim.optimum <= aim.budget and aim.budget % 100 == 0
        assert all(c > aim.budget for s, c in cost.items() if not set(aim.needed) <= {v.key for v in s})
        checked += 1
    assert checked >= 8 and {len(aim_of(t.goal).needed) for t in of(tasks, 'voucher')} == {1, 2}


def test_only_some_shops_have_all(shop, tasks):
    "`serving` is what trying every combination finds, and there is always a right product at a wrong seller."
    for t in of(tasks, 'shop'):
        wants = aim_of(t.goal).wants
        offers = [offers_of(shop[0], w) for w in wants]
        by_hand = {s for s in {o.shop for o in offers[0]} if any(len({o.product for o in b}) == len(b) for b in itertools.product(*[[o for o in mine if o.shop == s] for mine in offers]))}
        assert by_hand == set(serving(shop[0], wants)) and {o.shop for mine in offers for o in mine} - by_hand


def test_riddles_have_one_answer(shop, tasks):
    "The maker is not named, one article leads to it, and the encyclopaedia is the same whenever it is made."
    facts = encyclopedia(shop[0])
    assert facts.digest == encyclopedia(shop[0]).digest and facts.pages == articles(makers({p.brand for p in shop[0]}))
    for t in of(tasks, 'knowledge'):
        aim = aim_of(t.goal)
        assert tokens(aim.answer)[0] not in tokens(t.prompt) and {shop[0][v.rsplit('-', 1)[0]].brand for v in aim.wants[0].accepted} == {aim.answer}
        first = facts.search(aim.question, 1)[0]['title']
        assert aim.answer == (first if aim.hops == 1 else facts.search(f'founded by {first}', 1)[0]['title'])


@pytest.mark.parametrize('wrong', [dict(wishes=(3, 2)), dict(items=(2, 5)), dict(slack=2), dict(hops=(1, 3)), dict(pieces=0)])
def test_impossible_knobs(wrong):
    with pytest.raises(DataError): Knobs(**wrong)


# ---- tools

def test_the_contract(env, tasks):
    "Every clause of `check_env`, with calls that are fine and calls that are not, for each intent."
    for intent in INTENTS:
        t = of(tasks, intent)[0]
        calls = [ToolCall('find_product', dict(query=t.category)), ToolCall('find_product', dict(query='x', price='cheap')), ToolCall('view_product', dict(products='?')), ToolCall('web_search', dict(query='founded in Porto')), ToolCall('terminate', dict(status='success'))]
        check_env(env, t, calls)


BAD = [('find_product', dict(query='')), ('find_product', dict(query='mug', price='100')), ('find_product', dict(query='mug', price='25-10')), ('find_product', dict(query='mug', service='freeshiping')), ('find_product', dict(query='mug', shop='No Such Shop')),
    ('find_product', dict(query='mug', page=6)), ('find_product', dict(query='mug', page='1')), ('find_product', dict(query='mug', sort='price_asc')), ('find_product', {}), ('find_product', dict(q='mug')), ('view_product', dict(products='')), ('view_product', dict(products='12')),
    ('view_product', dict(products='0')), ('recommend_product', dict(products='')), ('recommend_product', dict(products=['1'])), ('recommend_product', dict(products='{id}#99')), ('recommend_product', dict(products='{id}#1*0')), ('recommend_product', dict(products='{id}#1*999')),
    ('recommend_product', dict(products='{id}', vouchers='V99')), ('recommend_product', dict(products=','.join(['{id}'] * 11))), ('calculate_voucher', dict(products='the red one')), ('web_search', dict(query='?!')), ('web_search', dict(query='x', max_results=0)),
    ('python_execute', dict(code=' ')), ('python_execute', dict(code='#' * 4001)), ('terminate', {}), ('terminate', dict(status='done')), ('buy_now', {}), ('find_product', 'not json'), ('find_product', '[1]')]

@pytest.mark.parametrize('name, args', BAD, ids=str)
def test_a_bad_call_is_answered_and_changes_nothing(env, tasks, name, args):
    env.reset(tasks[0])
    if isinstance(args, dict) and isinstance(args.get('products'), str): args = args | dict(products=args['products'].replace('{id}', tasks[0].goal.target))
    before = plain(env)
    o = env.step(ToolCall(name, args)).observation
    assert o.error and o.text.startswith('Error: ') and len(o.text) <= FEEDBACK and '\n' not in o.text and plain(env) == before


def test_published_words_for_services(env, tasks):
    "`freeShipping, COD` with a space, in any case: the same as our names."
    env.reset(tasks[0])
    one, two = (env.step(ToolCall('find_product', dict(query=tasks[0].category, service=s))).observation for s in ('freeShipping, cod', 'cash on delivery,free shipping'))
    assert one.data['products'] == two.data['products'] and all({'free shipping', 'cash on delivery'} <= set(p['services']) for p in one.data['products'])


def test_a_shelf_without_words(shop, env, tasks):
    "A seller's shelf can be looked through, most sold first, to its end."
    catalog, _ = shop
    p = catalog.at(3)
    env.reset(tasks[0])
    o, seen = env.step(ToolCall('find_product', dict(query='', shop=p.shop.upper()))).observation, []
    seen += [r['asin'] for r in o.data['products']]
    for page in range(2, o.data['pages'] + 1): seen += [r['asin'] for r in env.step(ToolCall('find_product', dict(query='', shop=p.shop, page=page))).observation.data['products']]
    mine = sorted((q for q in catalog if q.shop == p.shop), key=lambda q: (-q.sold, q.id))
    assert o.data['total'] == len(mine) and seen == [q.id for q in mine][:PAGE * PAGES]


def test_brief_names(shop, tasks):
    "In the brief view a product keeps the number it was first shown under; both number and id are understood."
    env = ShoppingBench(*shop, view='brief', page_size=4)
    env.reset(tasks[0])
    first = env.step(ToolCall('find_product', dict(query=tasks[0].category))).observation.data['products']
    other = env.step(ToolCall('find_product', dict(query=tasks[0].category, page=2))).observation.data['products']
    assert [p['name'] for p in first + other] == [str(n) for n in range(1, 9)]
    a, b = (env.step(ToolCall('view_product', dict(products=x))).observation.text for x in ('2', first[1]['asin']))
    assert a == b and a.startswith('2 | ')


def test_the_last_recommendation_counts(env, tasks):
    "A wrong one can be taken back, a right one can be spoilt; without one there is nothing to grade."
    t = of(tasks, 'product')[0]
    (right,), _ = solution(aim_of(t.goal), env.catalog)
    wrong = Pick(next(p.id for p in env.catalog if p.id != right.product and p.stock))
    for first, last, value in ((wrong, right, 1), (right, wrong, 0)):
        env.reset(t)
        env.step(ToolCall('recommend_product', dict(products=write_pick(first))))
        assert answer(env, [last]).outcome == Outcome.answered and (env.score().kind == 'success') == value == env.score_native().value
    env.reset(t)
    assert env.step(ToolCall('terminate', dict(status='success'))).outcome == Outcome.abstained and env.score().kind == 'early_abstain' and env.score_native().value == 0


def test_a_recommendation_stands_whatever_ends_the_episode(env, tasks):
    "A turn of text, or the limit of turns; an error outside of the model is no grade at all."
    t = of(tasks, 'product')[1]
    picks, _ = solution(aim_of(t.goal), env.catalog)
    for end in (lambda: env.step(Message('Here it is.')), lambda: env.stop(Outcome.max_tokens)):
        env.reset(t)
        env.step(ToolCall('recommend_product', dict(products=write_pick(picks[0]))))
        end()
        assert env.score().kind == 'success'
    env.reset(t)
    env.stop(Outcome.error)
    assert not env.score().valid and not env.score_native().valid


def test_python_and_its_limits(env, tasks):
    "What is printed is the answer, an error is said, long code is taken, and the network is not there."
    env.reset(tasks[0])
    assert env.step(ToolCall('python_execute', dict(code='print(round(0.85 * 240, 2))'))).observation.text == '204.0'
    o = env.step(ToolCall('python_execute', dict(code='import socket\nsocket.create_connection(("127.0.0.1", 80))'))).observation
    assert not o.error and 'error:' in o.text and not o.text.startswith('Error')
    assert env.step(ToolCall('python_execute', dict(code='x = 1\n' * 500 + 'print(x)'))).observation.text == '1'


def test_a_search_service_that_is_down(shop, tasks):
    "An episode that needs it is an error and no zero."
    env = ShoppingBench(*shop, knowledge='http://127.0.0.1:9/search')
    r = rollout(scripted('oracle', shop[0]), env, of(tasks, 'knowledge')[0])
    assert r['outcome'] == 'error' and r['error']['type'] == 'EnvError' and not r['reward']['valid']
    assert rollout(scripted('oracle', shop[0]), env, of(tasks, 'product')[0])['success']


def test_fuzzed_actions(env, tasks):
    "5,000 random calls, legal or not: nothing raises, a refusal changes nothing, nothing hidden is shown, and an end is an end."
    d, names = Draws(3, 'fuzz'), [*env.toolbox(), 'score', 'reset']
    words = ['', 'mug', '1', '-1', '10-25', 'V1', 'V1,V2', 'success', '\ud800', 'x' * 600, '<|im_start|>', 'freeShipping', *[t.goal.target for t in tasks[:9]], *[f'{t.goal.target}#1' for t in tasks[:9]], tasks[1].prompt[:200]]
    keys = ['query', 'products', 'vouchers', 'page', 'shop', 'price', 'service', 'sort', 'status', 'max_results']
    hidden = {a for t in tasks for a in t.goal.accepted}
    n = 0
    while n < 5000:
        t = d.pick(tasks)
        env.reset(t)
        done = False
        while not done and n < 5000:
            args = {k: d.pick([*words, 1, 2, True, None]) for k in d.sample(keys, d.one(4))} if d.one(9) else d.pick(['{', 'null', None, 7])
            before = plain(env)
            step = env.step(ToolCall(d.pick(names), args))
            n, done = n + 1, step.done
            assert not step.observation.error or plain(env) == before
            assert not any(h in step.observation.text for h in t.goal.accepted) and not hidden & set(str(step.observation.data).split("'"))
        env.stop(Outcome.max_turns)
        assert env.score().valid and env.step(ToolCall('terminate', dict(status='success'))).done


def test_narrow_work_is_no_loop(env, tasks):
    "Searches that show one new product each, and a sum for each set of vouchers, go on; the same again and again does not."
    t = of(tasks, 'voucher')[0]
    shops = sorted({p.shop for p in env.catalog})
    env.reset(t)
    assert not any(env.step(ToolCall('find_product', dict(query='', shop=s))).done for s in shops[:12])
    env.reset(t)
    picks = ', '.join(map(write_pick, solution(aim_of(t.goal), env.catalog)[0]))
    assert not env.step(ToolCall('calculate_voucher', dict(products=picks))).done
    assert [env.step(ToolCall('calculate_voucher', dict(products=picks))).outcome for _ in range(2)] == [None, Outcome.loop]


def test_several_calls_in_a_turn_of_text(env, tasks):
    "The ReAct dialect over the same tools: two calls in one block, one of them refused with its reason, then the answer."
    from shopping_grpo.envs.shoppingbench_react import React, turns_of
    t = of(tasks, 'product')[0]
    (pick,), _ = solution(aim_of(t.goal), env.catalog)
    block = lambda *calls: '<think>so</think><tool_call>' + json.dumps([dict(name=n, parameters=p) for n, p in calls]) + '</tool_call>'
    script = iter([block(('find_product', dict(query=t.category, page=1)), ('find_product', dict(query=t.category, price='cheap'))), block(('view_product', dict(products=pick.product))),
        block(('recommend_product', dict(products=write_pick(pick))), ('terminate', dict(status='success')))])
    r = rollout(React(lambda messages: next(script)), env, t)
    assert r['success'] and r['n_steps'] == 5 and r['guard_rejections'] == 1 and len(turns_of(r)) == 3 and 'is no range' in r['steps'][1]['observation']


def test_without_python(shop, tasks):
    env = ShoppingBench(*shop, python=False)
    env.reset(tasks[0])
    assert 'python_execute' not in {t.name for t in env.tools} and env.step(ToolCall('python_execute', dict(code='print(1)'))).observation.error


def test_the_table_of_intents(env, tasks):
    "A broken episode and a missing one count 0 in the verified and published measures, and not in those with the published denominator."
    some = [t for i in INTENTS for t in of(tasks, i)[:2]]
    rows = [rollout(scripted('oracle', env.catalog), env, t) for t in some]
    table = env.table(rows, some)
    assert (table[['verified', 'ASR', 'CAR']] == 1).all(axis=None) and list(table.index) == [*INTENTS, 'sample-weighted', 'macro']
    broken = [rows[0] | dict(native=None, success=False), *rows[2:]] # one broke, one is missing: both of the intent product
    table = env.table(broken, some)
    assert table.loc['product', 'verified'] == table.loc['product', 'ASR'] == 0 and table.loc['sample-weighted', 'ASR'] == table.loc['macro', 'verified'] == .75 and table.loc['sample-weighted', 'published ASR'] == 1


# ---- grades

def test_grades_of_small_baskets(shop):
    "By hand: order, pieces, open variants, things too many, budget with and without voucher."
    catalog, _ = shop
    ps = [p for p in catalog if len(p.variants) > 1 and p.variants[0].stock > 3 and p.variants[1].stock > 3][:3]
    from shopping_grpo.envs.shoppingbench_voucher import PLATFORM, Voucher
    from shopping_grpo.task import Constraint
    wants = tuple(Want((Constraint('category', p.category[-1]),), (p.variants[0].id,), p.id, p.variants[0].id, ' › '.join(p.category), q) for p, q in zip(ps[:2], (1, 2)))
    plain_ = ps[0].variants[0].price + 2 * ps[1].variants[0].price
    v = Voucher('V1', PLATFORM, 'fixed', 0, face=500)
    aim = Aim('voucher', wants, (v,), plain_ - 500, ('V1',), plain_ - 500)
    a, b = Pick(ps[0].id, 1, 1), Pick(ps[1].id, 1, 2)
    kind = lambda picks, entered=(v,), aim=aim: grade_order(aim, picks, entered, catalog).kind
    assert kind([a, b]) == kind([b, a]) == 'success' and kind([a, b], ()) == 'partial_purchase'
    for picks in ([a], [a, b, Pick(ps[2].id, 1)], [a, b._replace(quantity=1)], [a, b._replace(number=0)], [a, b._replace(number=2)], [b, b], [a._replace(quantity=2), b]): assert kind(picks) != 'success', picks
    assert grade_order(aim, [Pick(ps[2].id, 1)], (), catalog).value in (-0.85, -0.15) and grade_order(aim, [a, b], (v,), catalog).evidence['regret'] == 0
    assert kind([a, b], (v,), replace(aim, budget=plain_ - 501)) == 'partial_purchase'


def test_nothing_wrong_is_worth_more_than_right(env, tasks):
    "A value of 1 belongs to success alone; what misses something is worth .25 at most, and -.15 where a condition of the whole fails."
    for t in tasks[::3]:
        picks, entered = solution(aim_of(t.goal), env.catalog)
        for spoilt in (picks[:-1], [picks[0]._replace(quantity=picks[0].quantity + 1), *picks[1:]], picks + picks[:1]):
            if spoilt:
                r = grade_order(aim_of(t.goal), spoilt, [v for v in aim_of(t.goal).vouchers if v.key in entered], env.catalog)
                assert r.kind != 'success' and r.value <= (.25 if all(g.ok for g in r.gates) else -.15)


def test_the_published_score_takes_positions_and_ignores_the_rest(env, tasks):
    "In our own tasks as published: another order fails, more ids and missing vouchers do not matter."
    seen = set()
    for t in of(tasks, 'shop') + of(tasks, 'voucher'):
        picks, entered = solution(aim_of(t.goal), env.catalog)
        env.reset(t); answer(env, picks + [Pick(next(p.id for p in env.catalog if p.stock and p.id not in [x.product for x in picks]))])
        assert env.score_native().value == 1 and env.score().kind != 'success'
        if len(picks) > 1:
            env.reset(t); answer(env, picks[::-1], entered)
            assert env.score().kind == 'success'
            seen.add(env.score_native().value)
    assert 0.0 in seen


# ---- policies, audit, data

def test_the_audit_holds_and_can_fail(env, tasks):
    "Every agent is as required under the verified grade, what the published rules let through is named, and a shop whose errors give the goal away is caught."
    some = [t for i in INTENTS for t in of(tasks, i)[:5]]
    assert reachable(env, some) == (some, {})
    table = audit(env, some, offered(env))
    gate(table)
    assert (table[table.score == 'verified'].ok != False).all() and set(table[table.known != ''].score) == {'native'}
    class Leaky(ShoppingBench):
        def _refuse(self, wrong): return super()._refuse(f'{wrong} {self._task.goal.accepted[0]}')
    with pytest.raises(DataError, match='no hidden id'): gate(audit(Leaky(env.catalog, env.engine), some[:4], ('verified',)))


def test_the_teacher_can_be_imitated(env, tasks):
    "It succeeds in every intent, the same seed gives the same calls, its episodes pass the filter, and its mistakes are marked."
    train = [t for t in tasks if t.split == 'train']
    quiet, noisy = Fluent(Teacher(env.catalog, QUIET)), Fluent(Teacher(env.catalog))
    rows = [rollout(quiet, env, t, seed=i) for i, t in enumerate(train)]
    assert sum(r['success'] for r in rows) >= .8 * len(rows) and not any('mistake' in s for r in rows for s in r['steps'])
    again = [rollout(noisy, env, t, seed=i)['steps'] for _ in range(2) for i, t in enumerate(train[:8])]
    assert [s['action'] for r in again[:8] for s in r] == [s['action'] for r in again[8:] for s in r]
    r, t = next((r, t) for r, t in zip(rows, train) if r['success'])
    demo = examine(r, env, t)
    assert not demo.reasons and demo.product == t.goal.target and demo.messages[1]['tool_calls']


def test_what_the_teacher_notes_is_what_it_does(env, tasks):
    "The note before a recommendation names the variant that is recommended; a note that ends with no, or with none, is followed by a look at something else."
    noted = 0
    for i, t in enumerate(of(tasks, 'product') + of(tasks, 'knowledge')):
        if t.split != 'train': continue
        steps = rollout(Fluent(Teacher(env.catalog, QUIET)), env, t, seed=i)['steps']
        for s in steps:
            name, why = s['action']['name'], s.get('why', '')
            if name == 'recommend_product': assert why.endswith(f" #{s['action']['args']['products'].partition('#')[2]}") and '?' in why or 'take' in why; noted += 1
            elif why.endswith((', no', '? none')): assert name in ('view_product', 'find_product'); noted += 1
    assert noted > 9


def test_the_rule_policy_reads_every_voucher(tasks):
    "What stands in a request is the vouchers of the task, to the last field."
    baskets = of(tasks, 'voucher')
    assert all(tuple(read_request(t.prompt)['vouchers']) == aim_of(t.goal).vouchers for t in baskets) and len(baskets) > 10


def test_other_intents_for_training_change_nothing_else(shop):
    "Where training tasks ask for one intent more often, they do, in wishes as varied, and the other splits are the same."
    usual, more = BenchRequests(shop[0], 5), BenchRequests(shop[0], 5, training=('product', 'product', 'product', 'shop'))
    assert [more.task('val', n) for n in range(8)] == [usual.task('val', n) for n in range(8)]
    train = [more.task('train', n) for n in range(16)]
    assert Counter(t.scenario for t in train) == dict(product=12, shop=4) and len({len(aim_of(t.goal).wants[0].constraints) for t in train if t.scenario == 'product'}) > 2
    assert [t.scenario for t in map(BenchRequests(shop[0], 5, 'voucher', training=('product',)).task, ['train'] * 3, range(3))] == ['voucher'] * 3


def test_the_brief_view_is_short_and_whole(shop, tasks):
    "Numbers of variants stand behind their values, whole amounts have no cents, and all that the page of another view says but title and seller is there."
    env, some = ShoppingBench(*shop, view='brief'), of(tasks, 'product')[:12]
    for t in some:
        env.reset(t)
        p = shop[0][aim_of(t.goal).wants[0].target]
        brief = env.step(ToolCall('view_product', dict(products=p.id))).observation.text
        assert p.title not in brief and all(f'{clean(k)}: {clean(x)}' in brief for k, x in p.table) and '.00' not in brief
        for n, v in enumerate(p.variants, 1): assert f"{clean(', '.join(v.values))} #{n} {price_text(v.price).removesuffix('.00')}" in brief


def test_the_rule_policy_beats_those_that_do_not_read(env, tasks):
    wins = {n: sum(rollout(scripted(n, env.catalog), env, t, seed=i)['success'] for i, t in enumerate(tasks)) for n in ('rule', 'buy-first')}
    assert wins['rule'] > 3 * wins['buy-first']


def test_a_build_is_there_at_once(tmp_path):
    "Tasks of all intents with a sheet; a second call leaves them alone; an unknown size is refused."
    path = build('tiny-en', n=8, where=tmp_path/'b')
    stamp = (path/'tasks'/'shoppingbench.json').stat().st_mtime_ns
    assert build('tiny-en', n=8, where=tmp_path/'b') == path and (path/'tasks'/'shoppingbench.json').stat().st_mtime_ns == stamp
    assert [t.scenario for t in load_tasks(path/'tasks'/'shoppingbench-test.jsonl')][:4] == list(INTENTS)
    with pytest.raises(DataError, match='no shop is called'): build('tiny')


def test_the_frozen_splits_are_made_again(tmp_path):
    "All of them, as a fresh machine makes them at first use."
    path, sheet = build('tiny-en', where=tmp_path/'b'), json.loads(sheet_path('shoppingbench', 'tiny-en').read_text())
    for split, part in sheet['splits'].items():
        assert part['n'] == 200 and [t.key for t in load_tasks(path/'tasks'/f'shoppingbench-{split}.jsonl')] == part['keys']


def test_options_of_the_environment(shop):
    for wrong in (dict(view='html'), dict(intent='gift'), dict(page_size=0), dict(max_turns=0)):
        with pytest.raises(EnvError): ShoppingBench(*shop, **wrong)


def test_frozen_config(): assert json.loads((ROOT/'environments'/'shoppingbench'/'config.json').read_text()) == json.loads(canonical_json(ShoppingBench.config()))


def test_checklist(): assert len(load_sheet('shoppingbench')) == 42


def test_no_two_tasks_ask_for_the_same(shop, tasks):
    "Another wording, target or order of the things makes no other task; another number, thing or voucher does."
    made = requests_for(shop[0], 5)
    assert len({made.asked(t) for t in tasks}) == len(tasks)
    t = next(t for t in tasks if t.scenario == 'voucher' and len(aim_of(t.goal).wants) > 1)
    aim = aim_of(t.goal)
    first, *rest = aim.wants
    asked = lambda **new: made.asked(replace(t, prompt='something else', goal=order(replace(aim, **new))))
    assert asked() == asked(wants=(*rest, first)) == asked(wants=(replace(first, target='other'), *rest)) == made.asked(t)
    others = [asked(wants=(replace(first, quantity=first.quantity + 1), *rest)), asked(wants=(first,)), asked(vouchers=aim.vouchers[1:]), asked(budget=aim.budget + 1)]
    assert len({made.asked(t), *others}) == 5
