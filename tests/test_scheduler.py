"""The scheduler: what agents reach, what never moves it, windows, states, and tasks on demand for every family."""
import json, math
from types import SimpleNamespace
import numpy as np, pytest
from shopping_grpo.core import DataError, Draws
from shopping_grpo.generate import generate
from shopping_grpo.policy import scripted
from shopping_grpo.request import Requests
from shopping_grpo.rollout import rollout
from shopping_grpo.scheduler import SCHEDULES, TRIES, Even, Pool, Scheduler, Source, make_schedule, plan
from shopping_grpo.search import build_index
from shopping_grpo.task import Goal, Task, check_splits

KINDS = ('PD', 'CART', 'RETURN')


class Fake:
    "A generator of several kinds; `many` different tasks at each level of each."
    def __init__(self, kinds=KINDS, top=20, many=10**9): self.kinds, self.top, self.many = kinds, top, many
    def at(self, split, number, d, kind): return Task('fake', f'{kind} {d} {number % self.many}', Goal((), (f'{kind}{d}',), ''), split, 'en', difficulty=d)


def learn(s, chance, episodes=20_000, n=8, seed=0, until=lambda s: False):
    "Episodes by an agent that is right at (kind, d) with a chance, in groups of `n`; the windows that were seen."
    seen, d = [], Draws('learn', seed)
    for _ in range(episodes // (8 * n)):
        for kind, level in s.draw(8):
            for x in d.uniform(n): s.note(kind, level, x < chance(kind, level))
        seen.append({k: s.levels(k) for k in s.kinds})
        if until(s): break
    return seen


# what agents reach --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('how', [{}, dict(window=1), dict(window=5), dict(trials=128), dict(demote=.3), dict(per_kind=False), dict(top=7)], ids=str)
def test_a_perfect_agent_reaches_the_top_of_every_kind_and_stays(how):
    s = Scheduler(KINDS, **how)
    learn(s, lambda kind, d: 1, 200_000, until=lambda s: all(s.frontier(k) == s.top for k in KINDS))
    assert [s.frontier(k) for k in KINDS] == [s.top] * 3
    learn(s, lambda kind, d: 1, 3000)
    assert [s.frontier(k) for k in KINDS] == [s.top] * 3


@pytest.mark.parametrize('p', [0, .1, .5])
@pytest.mark.parametrize('demote', [None, .2])
def test_a_random_agent_stays_at_zero(p, demote):
    s = Scheduler(KINDS, demote=demote)
    learn(s, lambda kind, d: p, 100_000)
    assert [s.frontier(k) for k in KINDS] == [0] * 3


def test_each_kind_has_a_window_of_its_own():
    "An agent that can do one kind, another up to level 5, and nothing of the third."
    s = Scheduler(KINDS)
    learn(s, lambda kind, d: dict(PD=1, CART=d < 5, RETURN=0)[kind], 60_000)
    assert [s.frontier(k) for k in KINDS] == [20, 5, 0]


# what counts ----------------------------------------------------------------------------------------------------------------
def test_only_the_frontier_counts_and_the_count_begins_anew():
    s = Scheduler(['x'], trials=4, threshold=.75, start=3)
    for d in (0, 1, 2, 4, 9): s.note('x', d, True)
    assert s.state['at']['x'] == [3, 0, 0]
    for right in (True, True, False): s.note('x', 3, right)
    assert s.state['at']['x'] == [3, 2, 3]
    s.note('x', 3, True) # three of four
    assert s.state['at']['x'] == [4, 0, 0] and s.levels('x') == range(1, 5)
    for right in (True, True, False, False): s.note('x', 4, right)
    assert s.state['at']['x'] == [4, 0, 0]


def test_the_published_rule_by_hand():
    "Against a second, literal writing of the rule (l, h, a, b) of the published gym, on the same episodes."
    for window in (1, 4, 5):
        s, (low, high, a, b) = Scheduler(['x'], window=window, top=50), (0, 0, 0, 0)
        d = Draws('rule', window)
        for _ in range(8000):
            (_, level), = s.draw(1)
            assert low <= level <= high
            right = d.uniform()[0] < (.97 if level < 14 else .5)
            s.note('x', level, right)
            if level != high: continue
            a, b = a + right, b + 1
            if b >= 32:
                if a / b >= .9:
                    high += 1
                    if high - low + 1 > window: low = high - window + 1
                a = b = 0
            assert s.levels('x') == range(low, high + 1)
        assert high > 5


def test_demotion_moves_down_and_not_below_zero():
    s = Scheduler(['x'], trials=4, start=2, demote=.25)
    for _ in range(4): s.note('x', 2, False)
    assert s.levels('x') == range(0, 2)
    for right in (True, False, False, False): s.note('x', 1, right)
    assert s.frontier('x') == 0
    for _ in range(8): s.note('x', 0, False)
    assert s.frontier('x') == 0
    firm = Scheduler(['x'], trials=4, start=2)
    for _ in range(40): firm.note('x', 2, False)
    assert firm.frontier('x') == 2


def test_demotion_follows_a_learner_that_forgets():
    s = Scheduler(KINDS, demote=.3)
    learn(s, lambda kind, d: d < 9, 60_000)
    assert {s.frontier(k) for k in KINDS} <= {8, 9}
    learn(s, lambda kind, d: d < 4, 60_000)
    assert {s.frontier(k) for k in KINDS} <= {3, 4}


# windows --------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('seed', range(12))
def test_a_window_is_never_wider_than_asked_nor_outside(seed):
    d = Draws('window', seed)
    top, window, per_kind = d.one(12), 1 + d.one(6), bool(d.one(2))
    s = Scheduler(KINDS, window, threshold=.6, trials=1 + d.one(12), start=d.one(top + 1), top=top, demote=[None, .2][d.one(2)], per_kind=per_kind, seed=seed)
    for seen in learn(s, lambda kind, level: 1 / (1 + math.exp(level - 4)), 8000, seed=seed):
        for w in seen.values(): assert 1 <= len(w) <= window and w[0] >= 0 and w[-1] <= top
    drawn = s.draw(4000)
    for k in KINDS: assert {level for kind, level in drawn if kind == k} == {*s.levels(k)}


def test_kinds_come_equally_often_and_levels_evenly():
    s = Scheduler(KINDS, start=3, seed=4)
    drawn = [x for _ in range(600) for x in s.draw(7)]
    for k in KINDS:
        levels = [d for kind, d in drawn if kind == k]
        assert abs(len(levels) - 1400) < 120 and all(abs(levels.count(d) - len(levels) / 4) < 90 for d in range(4))
    assert all({k for k, _ in s.draw(3)} == {*KINDS} for _ in range(20))


@pytest.mark.parametrize('name,levels', [('easy', range(2)), ('hard', range(6, 7)), ('wide', range(7))])
def test_static_ranges_never_move(name, levels):
    s = make_schedule(name, KINDS, top=6)
    for agent in (0, 1): learn(s, lambda kind, d: agent, 20_000)
    assert all(s.levels(k) == levels for k in KINDS) and {d for _, d in s.draw(500)} == {*levels}


# states ---------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('name', SCHEDULES)
@pytest.mark.parametrize('cut', [0, 1, 17])
def test_a_state_by_way_of_json_continues_identically(name, cut):
    "Draws, windows and tasks: 40 steps, and `cut` steps with the rest from the state."
    new = lambda: plan(Source(Fake(many=50)), name, dict(trials=8) if name == 'adaptive' else {}, seed=3)
    def steps(c, first, last):
        out = []
        for step in range(first, last):
            for lesson in c.draw(9):
                won = Draws('won', step, lesson.task.key).uniform(4) < (.97 if lesson.d < 5 else .5)
                c.note(lesson, won.astype(float))
                out.append((lesson, dict(c.signs)))
        return out
    whole, part, rest = new(), new(), new()
    all_, first = steps(whole, 0, 40), steps(part, 0, cut)
    rest.state = json.loads(json.dumps(part.state))
    assert first + steps(rest, cut, 40) == all_ and rest.state == whole.state
    if name == 'adaptive': assert max(lesson.d for lesson, _ in all_) >= 3


def test_a_state_of_other_kinds_is_refused():
    with pytest.raises(DataError, match='does not fit'): Scheduler(['a', 'b']).state = Scheduler(['a', 'c']).state


# an evaluation moves nothing ------------------------------------------------------------------------------------------------
def test_an_evaluation_at_a_forced_difficulty_changes_nothing():
    "Tasks for it come from the generator, at any level, also at the frontier; curriculum and coming draws stay as they are."
    requests = Fake()
    c, other = (plan(Source(requests), 'adaptive', dict(trials=8), seed=1) for _ in range(2))
    for x in (c, other):
        for lesson in x.draw(30): x.note(lesson, [1] * 4)
    before = json.dumps(c.state)
    for kind in KINDS:
        for d in range(21): assert [requests.at('val', n, d, kind).split for n in range(40)] == ['val'] * 40
    assert json.dumps(c.state) == before and c.draw(20) == other.draw(20)


# tasks on demand ------------------------------------------------------------------------------------------------------------
def test_no_task_comes_twice_before_all_were_there():
    c = plan(Source(Fake(['x'], top=0, many=20)), 'adaptive')
    keys = [lesson.task.key for _ in range(10) for lesson in c.draw(7)]
    for start in (0, 20, 40): assert len({*keys[start:start + 20]}) == 20


def test_one_draw_is_not_used_at_two_levels():
    "The numbers of a kind run on over its levels, whatever the range: every schedule sees as many different draws as lessons."
    for name in SCHEDULES:
        c = plan(Source(Fake(top=4)), name)
        drawn = [(lesson.kind, lesson.task.prompt.split()[-1]) for _ in range(20) for lesson in c.draw(6)]
        assert len({*drawn}) == len(drawn) == 120


def test_tasks_are_made_once():
    asked = []
    class Slow(Fake):
        def at(self, *a):
            asked.append(a)
            return super().at(*a)
    c = plan(Source(Slow(['x'], top=0, many=5)), 'adaptive')
    for _ in range(40): c.draw(5)
    assert len(asked) == len({*asked}) <= 5 + TRIES


def test_what_may_not_be_trained_on_is_passed_over(monkeypatch):
    from shopping_grpo import scheduler
    made = Fake(['x'], top=0).at('train', 3, 0, 'x')
    monkeypatch.setattr(scheduler, 'final_names', lambda: {made.key: 'sheet'})
    c = plan(Source(Fake(['x'], top=0), keep=lambda t: t.prompt[-1] != '5', aside=('x 0 7', 'x 0 8')), 'adaptive')
    assert [lesson.task.prompt for lesson in c.draw(6)] == [f'x 0 {n}' for n in (0, 1, 2, 4, 6, 9)]


def test_other_splits_are_refused():
    class Careless(Fake):
        def at(self, split, *a): return super().at('val', *a)
    for split in ('val', 'test'):
        with pytest.raises(DataError, match='for training'): Source(Fake(), split=split)
    with pytest.raises(DataError, match="belongs to 'val'"): plan(Source(Careless()), 'adaptive').draw(1)


def test_a_source_that_is_empty_is_an_error():
    with pytest.raises(DataError, match="kind 'PD' at difficulty 0"): plan(Source(Fake(['PD']), keep=lambda t: False), 'adaptive').draw(1)


def test_a_number_without_a_good_task_is_passed_over():
    class Gaps(Fake):
        def at(self, split, number, d, kind):
            if number % 3: raise DataError('no good task')
            return super().at(split, number, d, kind)
    assert [lesson.task.prompt for lesson in plan(Source(Gaps(['x'], top=0)), 'adaptive').draw(3)] == ['x 0 0', 'x 0 3', 'x 0 6']


def test_masked_attempts_do_not_count():
    c = plan(Source(Fake(['x'])), 'adaptive', dict(trials=4))
    lesson, = c.draw(1)
    c.note(lesson, [1, math.nan, 1, math.nan, math.nan, 1])
    assert c.state['schedule']['at']['x'] == [0, 3, 3]
    c.note(lesson, [math.nan] * 6)
    c.note(lesson, [1])
    assert c.signs == dict(frontier=1)


def test_signs_are_per_kind():
    c = plan(Source(Fake()), 'adaptive', dict(trials=8))
    for _ in range(30):
        for lesson in c.draw(6): c.note(lesson, [float(lesson.kind == 'PD')] * 8)
    assert c.signs['frontier_PD'] > 0 == c.signs['frontier_CART'] == c.signs['frontier_RETURN'] and c.signs['frontier'] == c.signs['frontier_PD'] / 3


# given tasks ----------------------------------------------------------------------------------------------------------------
def test_given_tasks_are_sorted_by_their_difficulty():
    tasks = [Task('shop', f'{d} {n}', Goal((), (), ''), difficulty=d) for n in range(5) for d in (2, 7, 11)]
    pool = Pool(tasks)
    assert pool.top == 2 and pool.kinds == ('shop',)
    c = plan(tasks, 'adaptive', dict(trials=4))
    assert {lesson.task.difficulty for lesson in c.draw(5)} == {2}
    for lesson in c.draw(2): c.note(lesson, [1, 1])
    assert {lesson.task.difficulty for lesson in c.draw(40)} == {2, 7}


def test_drawing_evenly_depends_on_the_number_of_draws_only():
    tasks = [SimpleNamespace(key=n) for n in range(10)]
    a, b = Even(tasks, 5), Even(tasks, 5)
    first = [[lesson.task.key for lesson in a.draw(4)] for _ in range(3)]
    assert all(len({*f}) == 4 for f in first) and sorted(lesson.task.key for lesson in a.draw(20)) == sorted([*range(10)] * 2)
    b.state = dict(drawn=2)
    assert [lesson.task.key for lesson in b.draw(4)] == first[2]


@pytest.mark.parametrize('wrong,message', [(dict(kinds=[]), 'one or more'), (dict(kinds=['a', 'a']), 'different'), (dict(window=0), 'window and trials'), (dict(start=21), 'start must lie'), (dict(threshold=0), 'threshold'),
    (dict(demote=.9), 'demote'), (dict(demote=.1, threshold=None), 'demote')], ids=lambda x: None if isinstance(x, str) else str(x))
def test_wrong_parameters_are_named(wrong, message):
    with pytest.raises(DataError, match=message) as e: Scheduler(**dict(kinds=['a']) | wrong)
    assert '\n' not in str(e.value)


# every family --------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope='module')
def english(tmp_path_factory):
    where = tmp_path_factory.mktemp('english')
    catalog = generate(where/'catalog', 'tiny', languages=('en',), workers=1)[0]
    build_index(where/'index', catalog, workers=1)
    return where, catalog


@pytest.fixture(scope='module', params=['shopsim', 'webshop', 'shoppingbench', 'ecomrlve'])
def family(request, english):
    "An environment and its task generator."
    where, catalog = english
    if request.param == 'shopsim':
        from shopping_grpo.envs.shopsim import ShopSim
        from shopping_grpo.search import Tantivy
        return ShopSim(catalog, Tantivy(where/'index', catalog)), Requests(catalog, seed=5)
    if request.param == 'webshop':
        from shopping_grpo.envs.webshop import WebShop
        from shopping_grpo.search import Tantivy
        env = WebShop(catalog, Tantivy(where/'index', catalog))
    elif request.param == 'shoppingbench':
        from shopping_grpo.envs.shoppingbench import Market, ShoppingBench
        env = ShoppingBench(catalog, Market(where/'index', catalog))
    else:
        from shopping_grpo.envs.ecomrlve import EcomRLVE, Market
        env = EcomRLVE(catalog, Market(where/'index', catalog), kind='C4')
    return env, env.requests(5)


def test_tasks_of_every_difficulty_are_good_tasks(family):
    "Of every kind: of the split that was asked for, solvable by the oracle, never two alike, none for nothing, more wishes at the top."
    env, requests = family
    for kind in requests.kinds:
        made = {d: [requests.at('train', n, d, kind) for n in range(6)] for d in sorted({0, 1, requests.top // 2, requests.top})}
        tasks = sum(made.values(), [])
        assert {t.split for t in tasks} == {'train'} and all(requests.split[requests.catalog[a.rsplit('-', 1)[0]].group] == 'train' for t in tasks for a in t.goal.accepted)
        assert all(len({t.key for t in ts}) == len(ts) for ts in made.values())
        assert all(rollout(scripted('oracle', env.catalog), env, t)['success'] for t in tasks[::2]) and not any(rollout(scripted('do-nothing', env.catalog), env, t)['success'] for t in tasks[::5])
        assert np.mean([t.difficulty for t in made[requests.top]]) > np.mean([t.difficulty for t in made[0]]) + .9


def test_tasks_by_difficulty_share_nothing_with_other_splits(family):
    "Products are disjoint by construction, and nothing depends on what was made before."
    env, requests = family
    again = Requests(requests.catalog, seed=5) if requests.env == 'shopsim' else env.requests(5)
    kind = requests.kinds[-1]
    at = lambda r, s, n: r.at(s, n, r.top, kind)
    tasks = [at(requests, s, n) for s in ('train', 'val', 'test') for n in range(6)]
    check_splits(t for t in tasks if len(t.prompt) > 60) # what is short may be alike
    assert [at(again, s, n).key for s in ('test', 'train') for n in (4, 1)] == [t.key for s in ('test', 'train') for n in (4, 1) for t in [tasks[('train', 'val', 'test').index(s) * 6 + n]]]


def test_generating_as_before_is_not_touched(family):
    "A generator that has made tasks by difficulty makes its published ones as if it had not."
    env, requests = family
    fresh = Requests(requests.catalog, seed=5) if requests.env == 'shopsim' else env.requests(5)
    for d in (0, requests.top): requests.at('train', 0, d)
    assert [requests.task('train', n).key for n in range(8)] == [fresh.task('train', n).key for n in range(8)]


def test_an_oracle_climbs_to_the_top_of_every_kind_and_a_random_agent_nowhere(family):
    env, requests = family
    top = min(5, requests.top)
    for name, reached in (('oracle', top), ('random', 0)):
        c = plan(Source(requests, env.plays), 'adaptive', dict(trials=3, window=1, top=top), seed=2)
        for step in range(3 * top):
            for lesson in c.draw(len(requests.kinds)): c.note(lesson, [rollout(scripted(name, env.catalog), env, lesson.task, seed=step)['success']])
        assert {c.scheduler.frontier(k) for k in requests.kinds} == {reached}, name


@pytest.mark.parametrize('kind,d', [('', 99), ('', -1), ('soup', 0)])
def test_what_a_generator_cannot_make_is_named(family, kind, d):
    if family[0].name == 'ecomrlve': pytest.skip('its generator does not check levels')
    with pytest.raises(DataError, match='makes no task of kind'): family[1].at('train', 0, d, kind)
