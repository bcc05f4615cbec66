"Rejection sampling, step samples and the offline reward of ShoppingBench."
import itertools, json
from collections import Counter
from fractions import Fraction
import pytest
from hypothesis import given, settings, strategies as st
from shopping_grpo.core import DataError
from shopping_grpo.env import Environment, Outcome, tool
from shopping_grpo.envs.shoppingbench_offline import grpo_row, offline_reward, samples_of, save_grpo, save_sft, shortest_successes, step_samples, tool_reward
from shopping_grpo.envs.shoppingbench_react import React, messages_before, read_turn
from shopping_grpo.reward import Reward
from shopping_grpo.rollout import rollout
from shopping_grpo.task import Goal, Task


def turn(*calls, think='So.', response=''):
    return '\n'.join([f'<think>{think}</think>'] * bool(think) + ['<tool_call>' + json.dumps([dict(name=n, parameters=p) for n, p in calls]) + '</tool_call>'] * bool(calls) + [f'<response>{response}</response>'] * bool(response))


SEARCH = dict(q='blue ceramic mug', page=1)
FIND = turn(('find_product', SEARCH))
TWO_IDS = turn(('recommend_product', dict(product_ids='11,12')))


@pytest.mark.parametrize('target, text, reward', [
    (FIND, turn(('find_product', dict(q='ceramic mug', page=1, sort='priceasc'))), 3.0),
    (FIND, FIND, 4.0),
    (FIND, turn(('view_product', SEARCH)), -2.0),
    (FIND, turn(('find_product', SEARCH | dict(page='1'))), 2.5),
    (FIND, turn(('find_product', SEARCH), *[('terminate', dict(status='success'))] * 9), 2.65),
    (FIND, FIND.replace('[{', '{').replace('}]', '}'), -3.0),
    (FIND, turn(response='Here you are.'), -2.0),
    (TWO_IDS, turn(('recommend_product', dict(product_ids='11,13'))), 2.67),
    (turn(('find_product', SEARCH | dict(price='0-100'))), turn(('find_product', SEARCH | dict(price='0-101'))), 2.8),
    (TWO_IDS, turn(('recommend_product', dict(product_ids='12,11'))), 4.0),
    (FIND, turn(('find_product', SEARCH), think='I open <tool_call> now'), -3.0),
    (turn(('f', dict(x=1.5, y=1))), turn(('f', dict(x=1.5, y=1))), 4.0),       # identical: all of it counts
    (turn(('f', dict(x=1.5, y=1))), turn(('f', dict(x=1.5, y=2))), 1.0),       # else a floating-point number earns nothing: 6 * 2/4 - 3 + 1
    (FIND, '', -3.0), (FIND, 'nonsense', -3.0), (FIND, '<think>a</think><tool_call>[{"name": "find_product", "arguments": {}}]</tool_call>', -3.0),
    (turn(response='Done.'), turn(response='Something else.'), 1.0), (turn(response='Done.'), FIND, 1.0), (turn(response='Done.'), '', 0.0), # no calls to compare with
    (turn(('terminate', {}), think=''), turn(('terminate', {})), 4.0), (turn(('terminate', {}), think=''), '<think>Not closed.\n' + turn(('terminate', {}), think=''), 4.0),             # the target has calls only, so that only that block is looked at
    (turn(('terminate', {}), think=''), turn(('terminate', {}), think=''), 4.0), (FIND, turn(('find_product', SEARCH), think=''), 3.0)])
def test_executed_cases(target, text, reward):
    assert round(offline_reward(target, text), 2) == reward


def by_hand(wanted, given):
    "The same formula in floating point, with the greedy choice written out."
    if wanted == given: return 3.0
    jac = lambda a, b: (lambda i: i / (len(a) + len(b) - i) if a or b else 1.0)(sum(min(a.count(x), b.count(x)) for x in set(a)))
    free, s = list(range(len(given))), jac([c['name'] for c in wanted], [c['name'] for c in given])
    for c in wanted:
        best, who = -1, None
        for j in free:
            if given[j]['name'] != c['name']: continue
            p, q = c['parameters'], given[j]['parameters']
            score = jac(list(p), list(q))
            for k in p:
                if k in q and type(p[k]) is str and type(q[k]) is str: score += jac([w for w in p[k].replace(',', ' ').split() if w], [w for w in q[k].replace(',', ' ').split() if w])
                elif k in q and type(p[k]) is int and type(q[k]) is int: score += p[k] == q[k]
            if score > best: best, who = score, j
        if who is not None: s += best; free.remove(who)
    return 6 * s / (1 + sum(1 + len(c['parameters']) for c in wanted)) - 3


CALL = st.fixed_dictionaries(dict(name=st.sampled_from('fg'), parameters=st.dictionaries(st.sampled_from('abc'), st.sampled_from(['x', 'x y', 'y,x z', 1, 2, True, 1.5, None, [1], '']), max_size=3)))


@settings(max_examples=400, deadline=None)
@given(st.lists(CALL, min_size=1, max_size=4), st.lists(CALL, max_size=4))
def test_against_the_formula_by_hand(wanted, given):
    r = tool_reward(wanted, given)
    assert -3 <= r <= 3 and float(r) == pytest.approx(by_hand(wanted, given)) and tool_reward(wanted, wanted) == 3


def test_the_choice_of_a_match_is_greedy():
    "The first of two equal wishes takes the better match, also where the other way round would earn more."
    wanted = [dict(name='f', parameters=dict(a='x y')), dict(name='f', parameters=dict(a='x'))]
    one = [dict(name='f', parameters=dict(a='x'))]
    # names 1/2, parameter 1, and the value 1/2 for the first wish or 1 for the other; S_max = 1 + 2 + 2
    assert tool_reward(wanted, one) == Fraction(6 * 2, 5) - 3 and tool_reward(wanted[::-1], one) == Fraction(6 * 5, 2 * 5) - 3


# episodes that were really played

class Desk(Environment):
    name = 'desk'
    def _begin(self, task, seed): return dict(ids='')
    def _plain_state(self): return self._state
    def score(self): return Reward(float(self._state['ids'] == '7'), kind='success' if self._state['ids'] == '7' else 'failed')
    @tool
    def find_product(self,
        q:str, # words
    ):
        "Find."
        return f'found {q}'
    @tool
    def recommend_product(self,
        product_ids:str, # ids
    ):
        "Recommend."
        self._state['ids'] = product_ids
        return 'noted'
    @tool
    def terminate(self,
        status:str, # how
    ):
        "End."
        self._outcome = Outcome.answered
        return 'ended'


def play(task, attempt, *turns, split='train'):
    said = iter(turns)
    return rollout(React(lambda m: next(said, '')), Desk(), Task('desk', f'Mug {task}', Goal((), (), ''), split), attempt=attempt)


END = turn(('terminate', dict(status='success')))
GOOD = [turn(('find_product', dict(q='mug'))), turn(('recommend_product', dict(product_ids='7'))), END]


def test_shortest_full_success_of_each_task():
    rows = [play('a', 0, GOOD[0], *GOOD), play('a', 1, *GOOD), play('a', 2, END), play('b', 0, turn(('recommend_product', dict(product_ids='8'))), END), play('c', 0, GOOD[1], ''), play('d', 0, turn(('recommend_product', dict(product_ids='7')), ('terminate', dict(status='success'))))]
    counts = Counter()
    kept = shortest_successes(rows, counts)
    assert [(r['task_key'], r['attempt']) for r in kept] == [(rows[1]['task_key'], 1), (rows[5]['task_key'], 0)]
    assert counts == {'kept': 2, 'a shorter one is there': 1, 'no full success': 2, 'not ended by the model': 1}
    for order in itertools.permutations(rows[:3]): assert [r['id'] for r in shortest_successes(order)] == [rows[1]['id']]


def test_only_training_tasks():
    with pytest.raises(DataError, match="split 'test'; a model learns from split 'train' only"): shortest_successes([play('a', 0, *GOOD, split='test')])


def test_infrastructure_errors_are_no_teachers():
    counts = Counter()
    assert shortest_successes([play('a', 0, *GOOD) | dict(outcome='error', reward=dict(valid=False))], counts) == [] and counts == {'an infrastructure error': 1, 'kept': 0}


def test_samples_are_what_the_model_saw_and_wrote():
    row = play('a', 0, *GOOD)
    samples = samples_of(row, 'S')
    assert [s.target for s in samples] == GOOD and all(s.messages[:2] == messages_before(row, n, 'S') for n, s in enumerate(samples))
    assert not any('<obs>' in s.target or 'tool_call_id' in s.target for s in samples)
    for s in samples: assert [(c.name, c.args) for c in read_turn(s.target).calls] == [(x['action']['name'], x['action']['args']) for x in row['steps'] if x['turn'] == s.turn + 1]


def test_think_and_no_think():
    row = play('a', 0, *GOOD[:2], turn(('terminate', dict(status='success')), think=''))
    both = step_samples([row], {True: 'T', False: 'N'})
    assert [(s.turn, s.think) for s in both] == [(0, True), (1, True), (0, False), (1, False), (2, False)] # a turn without a thought teaches no thinking
    assert all('<think>' in s.target for s in both[:2]) and not any('<think>' in s.target + s.history for s in both[2:])


def test_refused_turns_and_long_ones_are_left_out():
    row = play('a', 0, turn(('fly', {})), turn(('find_product', dict(q='a')), ('find_product', dict(q=1))), *GOOD)
    counts = Counter()
    assert [s.turn for s in samples_of(row, 'S', counts=counts)] == [2, 3, 4] and counts == {'refused by the shop': 2, 'kept': 3} and 'fly' in samples_of(row, 'S')[0].history
    assert [s.turn for s in samples_of(row, 'S', refused=True)] == [0, 1, 2, 3, 4]
    assert samples_of(row, 'S', limit=10, counts=(counts := Counter())) == [] and counts['too long'] == 3
    assert len(samples_of(row, 'S', limit=3, count=lambda t: 1)) == 3


def test_rows_of_a_policy_with_native_calls():
    row = play('a', 0, *GOOD)
    plain = row | dict(steps=[{k: s[k] for k in ('action', 'observation', 'error')} for s in row['steps']])
    assert samples_of(plain, 'S') == [] and [s.target for s in samples_of(plain, 'S', think=False)] == [turn((s['action']['name'], s['action']['args']), think='') for s in row['steps']]


def test_files(tmp_path):
    samples = samples_of(play('a', 0, *GOOD), 'S')
    save_sft(tmp_path/'sft.jsonl', samples)
    assert [json.loads(x) for x in (tmp_path/'sft.jsonl').read_text().splitlines()] == [dict(instruction='S', input=s.history, output=s.target) for s in samples]
    assert set(grpo_row(samples[0], 0)) == {'data_source', 'prompt', 'ability', 'reward_model', 'extra_info'}
    for save in (save_sft, save_grpo):
        with pytest.raises(DataError, match='no sample'): save(tmp_path/'none', [])
