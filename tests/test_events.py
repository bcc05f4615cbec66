"Numbered events and panels: ids that stay, episodes whose every count is known, nobody lost, nothing leaked."
import json, math
from collections import Counter
import pytest
from shopping_grpo.core import DataError, canonical_json
from shopping_grpo.env import ToolCall, arguments, problem
from shopping_grpo.envs.ecomrlve import EcomRLVE
from shopping_grpo.envs.shoppingbench import ShoppingBench
from shopping_grpo.envs.shoppingbench_shop import Market
from shopping_grpo.envs.shoppingbench_tools import PublishedTools
from shopping_grpo.envs.shopsim import ShopSim
from shopping_grpo.envs.webshop import WebShop
from shopping_grpo.events import PANELS, ROLES, candidates_seen, events, panel_frame, panel_table, panels, refusal, role, standing
from shopping_grpo.generate import generate
from shopping_grpo.policy import scripted
from shopping_grpo.request import Requests
from shopping_grpo.rollout import rollout
from shopping_grpo.search import build_index
from shopping_grpo.store import Run
from shopping_grpo.tally import reason

FAMILIES = ShopSim, WebShop, ShoppingBench, PublishedTools, EcomRLVE


def turn(name, observation, error=False, more={}, **args): return dict(action=dict(name=name, args=args), observation=observation, error=error) | more
def text(said, error=False): return dict(action=dict(text=said), observation='The episode ended with a message instead of a tool call.', error=error)
def row(steps, outcome='purchased', **more):
    return dict(id='x', task_key='t', attempt=0, env='shopsim', policy='p', outcome=outcome, success=False, prompt='four', reward=dict(value=-.85, valid=True, kind='wrong_purchase'), steps=steps) | more

def no(what): return f'Error: {what}. Possible now: search_products.'


@pytest.fixture(scope='module')
def world(tmp_path_factory):
    "Two policies on a few tasks of each family: family -> rows."
    where = tmp_path_factory.mktemp('families')
    catalog, _ = generate(where/'catalog', 'tiny', languages=('en',), workers=1)
    engine, market = build_index(where/'index', catalog, workers=1), Market(where/'index', catalog)
    shops = [ShopSim(catalog, engine), WebShop(catalog, engine), ShoppingBench(catalog, market), EcomRLVE(catalog, market)]
    tasks = {e.name: (e.requests(1) if hasattr(e, 'requests') else Requests(catalog, 1)).tasks('train', 8) for e in shops}
    return {e.name: [rollout(scripted(p, catalog), e, t, seed=i) for p in ('rule', 'random') for i, t in enumerate(tasks[e.name])] for e in shops}


def test_ids_are_the_place_in_the_episode_and_survive_the_file(world, tmp_path):
    for name, rows in world.items():
        with Run.open('eval', name, config={}, planned=[(r['task_key'], n) for n, r in enumerate(rows)], root=tmp_path) as run:
            for n, r in enumerate(rows): run.add(r | dict(attempt=n))
        again = {r['id']: r for r in Run.load(run.path).episodes()}
        for r in rows:
            stream = events(r)
            assert stream == events(again[r['id']]) == events(json.loads(canonical_json(r)))
            assert [e.id for e in stream] == [f'e{n:04d}' for n in range(1, len(r['steps']) + 1)]
            assert [e.step for e in stream if e.step] == [f's{n:04d}' for n in range(sum(e.kind == 'step' for e in stream))]
            for n in range(len(r['steps'])): assert events(r | dict(steps=r['steps'][:n])) == stream[:n], 'a longer episode renumbers nothing'


def test_nothing_but_turns_reaches_an_event(world):
    secret = dict(reward=dict(value=1.0, valid=True, kind='CANARY', parts=dict(CANARY=1.0), gates=dict(CANARY=True)), native=dict(kind='CANARY'), success='CANARY', teacher='CANARY', goal='CANARY', category='CANARY', policy='CANARY')
    inner = dict(why='CANARY', mistake='CANARY', state='CANARY', reward='CANARY', tokens=dict(ids=['CANARY'], context=[]), teacher='CANARY')
    for r in sum(world.values(), []):
        bad = r | secret | dict(steps=[s | inner for s in r['steps']])
        assert b'CANARY' not in canonical_json(events(bad)) and events(bad) == events(r)


@pytest.mark.parametrize('family', FAMILIES, ids=lambda f: f.__name__)
def test_every_tool_of_our_environments_has_a_role(family):
    assert [t for t in family.toolbox() if role(t) == 'other'] == []
    assert max(Counter(t for tools in ROLES.values() for t in tools.split()).values()) == 1


def test_panels_of_an_episode_that_is_known():
    page = 'page 1 of 2, 3 results\n11111 | CNY 30.00 | Red mug\n22222 | CNY 45.00 | Blue m[…14]ug\nno cells here'
    steps = [turn('search_products', page, query='Red  mug', more=dict(raw='let me see', calls=3, tokens=dict(context=[1, 2, 3], ids=[4, 5]))), turn('open_product', no("'99' is not on this page of results"), True, asin='99'),
        turn('open_product', no("'99' is not on this page of results"), True, asin='99'), turn('nothing', no("there is no tool 'nothing'"), True),
        turn('search_products', no('the arguments are not JSON'), True, more=dict(action=dict(name='search_products', args='{"qu'))), turn('open_product', '11111 Red mug', asin='11111'),
        turn('back_to_search', 'home', more=dict(finish='length')), turn('search_products', page.replace('11111 |', '33333 |'), query='red MUG', more=dict(tokens=dict(context=[6], ids=[7]))), turn('open_product', '33333 Red mug', asin='33333'), turn('buy_now', 'ordered')]
    p = panels(row(steps, usage=dict(prompt=100, completion=20, cached=None, cost=.5), timing=dict(model=2.0, env=.25, wait=1.0)))
    assert list(p) == list(PANELS)
    want = dict(
        outcome=dict(kind='wrong_purchase', valid=True, reward=-.85, success=False, native=None, outcome='purchased', purchased=True, answered=False, max_turns=False),
        actions=dict(attempts=10, steps=6, search=2, open=2, read=0, page=1, select=0, commit=1, end=0, other=0, products_listed=3, products_opened=2),
        repetition=dict(queries=1, queries_in_a_row=1, calls=2, calls_in_a_row=1, loop=False),
        legality=dict(rejections=4, malformed=1, schema=1, illegal=2, messages=0, dropped_calls=2, gave_up_on=False),
        context=dict(characters=4 + sum(len(s['observation']) for s in steps), shortened_pages=2, any_shortened=True, answers_cut_off=1, longest_input=6, full=False),
        cost=dict(prompt_tokens=100, completion_tokens=20, cached_tokens=None, price=.5, model_seconds=2.0, env_seconds=.25, wait_seconds=1.0, seconds=3.25),
        validity=dict(infrastructure_failed=False, error=None, ungraded=False, judgeable=True))
    assert {k: {j: p[k][j] for j in v} for k, v in want.items()} == want
    assert events(row(steps))[0].said == 'let me see' and events(row(steps))[4].args == '{"qu'


@pytest.mark.parametrize('steps, outcome, panel, want', [
    ([text('I would buy the red one.')], 'stopped', 'legality', dict(messages=1, rejections=0, gave_up_on=False)),
    ([turn('buy_now', no('buy_now is not possible here'), True)] * 3, 'stopped', 'legality', dict(rejections=3, illegal=3, gave_up_on=True)),
    ([], 'stopped', 'actions', dict(attempts=0, steps=0, products_listed=0, products_opened=0)),
    ([turn('search', 'nothing that looks like a list', query='mug')], 'max_turns', 'actions', dict(search=1, products_listed=None)),
    ([turn('search', 'Page 1 (Total results: 2) [SEP] Next > [SEP] B01 [SEP] Red mug [SEP] $9.5 [SEP] B02 [SEP] Blue mug [SEP] $8', query='mug')], 'max_turns', 'actions', dict(search=1, products_listed=2)),
    ([turn('view_product', 'a', products='7, 8'), turn('view_product', 'a', products='7')], 'answered', 'actions', dict(open=2, products_opened=2)),
    ([turn('search', 'x', query='a')] * 3, 'loop', 'repetition', dict(queries=2, queries_in_a_row=2, calls=2, loop=True)),
    ([], 'max_tokens', 'context', dict(full=True, longest_input=None)),
    ([turn('search', 'x', query='a', more=dict(tokens=dict(prompt_ids=[1] * 9, ids=[1])))], 'purchased', 'context', dict(longest_input=9)),
    ([], 'purchased', 'cost', dict(prompt_tokens=None, seconds=None, wait_seconds=None)),
])
def test_special_episodes(steps, outcome, panel, want):
    p = panels(row(steps, outcome))[panel]
    assert {k: p[k] for k in want} == want


def test_a_place_on_the_page_is_not_a_product():
    first, second = '1 | $150 | Helan, 78 pieces\n2 | $80 | Oak, 64 pieces', '1 | $90 | Pine, 10 pieces\n2 | $80 | Oak, 64 pieces'
    stream = events(row([turn('search', first, query='a'), turn('open_product', 'Helan', asin='1'), turn('back_to_search', 'home'), turn('search', second, query='b'), turn('open_product', 'Pine', asin='1'), turn('prev_page', second), turn('open_product', 'Oak', asin='2')]))
    assert candidates_seen(stream) == (3, 3)


def test_the_sorts_of_refusal_are_those_of_the_contract():
    "Every wrong call that the contract can refuse, by the contract's own words."
    tools = ShopSim.toolbox()
    calls = [('none', {}), (7, {}), ('open_product', {}), ('open_product', dict(asin='1', x=1)), ('open_product', dict(asin=1)), ('open_product', dict(asin='1' * 501)), ('open_product', dict(asin='\ud800')), ('finish_without_purchase', dict(reason='tired'))]
    for name, args in calls:
        wrong = problem(tools, name, args)
        assert wrong and refusal(reason(no(wrong).encode(errors='replace').decode())) == 'schema', wrong
    for args in ('{"a"', '[1]', '{"a": 1, "a": 2}', 'x' * 20_001): assert refusal(reason(no(arguments(ToolCall('open_product', args))))) == 'malformed', args
    for wrong in ("'99' is not on this page of results", 'buy_now is not possible here', 'this combination is sold out', 'the question is empty'): assert refusal(reason(no(wrong))) == 'illegal'


def test_the_broken_stay_in_the_denominator():
    won = row([turn('buy_now', 'ordered')], success=True, reward=dict(value=1.0, valid=True, kind='success'))
    lost = row([turn('search_products', 'x', query='a')], 'error', reward=dict(value=0.0, valid=False, kind='error'), error=dict(type='PolicyError', message='503'))
    dim = row([turn('buy_now', 'ordered')], reward=dict(value=None, valid=False, kind='unverifiable'))
    rows = [won, lost, dim]
    assert standing(rows, 5) == dict(planned=5, judgeable=2, not_judged=1, missing=2)
    assert not [k for k in panel_table({'a': (rows, 5)}).index if k[1] in ('kind', 'version', 'error')], 'texts are not summed'
    with pytest.raises(DataError, match='3 episodes for 2 planned'): standing(rows, 2)
    p = panels(lost)
    assert p['outcome']['reward'] is None and p['validity'] == dict(infrastructure_failed=True, error='PolicyError', ungraded=False, judgeable=False) and panels(dim)['validity']['ungraded']
    table = panel_table({'a': (rows, 5), 'b': ([won], 2)})
    share = table.xs('share', axis=1, level=1)
    assert share.loc[('outcome', 'success')].tolist() == [1/5, 1/2] and share.loc[('validity', 'infrastructure_failed'), 'a'] == 1/5
    assert table.loc[('outcome', 'reward'), 'a'].tolist()[:3] == [1.0, 1, 1.0], 'an error is not a zero'
    assert math.isnan(table.loc[('cost', 'prompt_tokens'), ('a', 'mean')]) and table.loc[('cost', 'prompt_tokens'), ('a', 'episodes')] == 0


def test_a_torn_step_is_named():
    with pytest.raises(DataError, match='episode x, step 2: no action or no observation'): events(row([turn('buy_now', 'x'), dict(observation='x')]))


def test_real_episodes_of_all_families(world):
    for name, rows in world.items():
        frame = panel_frame(rows)
        assert len(frame) == 16 and (frame['actions.attempts'] == [r['n_steps'] for r in rows]).all() and (frame['legality.rejections'] == [r['guard_rejections'] for r in rows]).all()
        assert (frame['actions.steps'] == frame[[f'actions.{r}' for r in (*ROLES, 'other')]].sum(axis=1)).all() and (frame['actions.other'] == 0).all()
        assert (frame['cost.seconds'] > 0).all() and frame['actions.products_listed'].notna().all()
        assert (frame['outcome.outcome'] == [r['outcome'] for r in rows]).all() and frame['validity.judgeable'].all()
