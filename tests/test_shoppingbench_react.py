"ReAct text and native calls over one row: nothing that a model writes breaks an episode or loses a call."
import base64, hashlib, json
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from shopping_grpo.core import canonical_json
from shopping_grpo.env import Environment, Outcome, ToolCall, tool
from shopping_grpo.envs.shoppingbench_react import React, Turn, call_id, history, instructions, listed_calls, messages_before, read_turn, turns_of, well_formed, write_turn
from shopping_grpo.reward import Reward
from shopping_grpo.rollout import conversation, rollout
from shopping_grpo.task import Goal, Task

TASK = Task('desk', 'A mug, please.', Goal((), (), ''))


class Desk(Environment):
    name = 'desk'
    def _begin(self, task, seed): return dict(asked=[])
    def _plain_state(self): return self._state
    def score(self): return Reward(1.0, kind='success') if self._done else Reward(0.0, valid=False)
    @tool
    def find_product(self,
        q:str,      # words
        page:int=1, # page
    ):
        "Find."
        self._state['asked'].append(q)
        return f'found {q} <obs>'
    @tool
    def terminate(self,
        status:str, # how
    ):
        "End."
        self._outcome = Outcome.answered
        return 'ended'


def calls(*pairs): return '<tool_call>' + json.dumps([dict(name=n, parameters=p) for n, p in pairs]) + '</tool_call>'
END = calls(('terminate', dict(status='success')))


def play(*texts, think=True, **more):
    "The model's turns are given; after them it ends."
    said, asked = iter([*texts, *[END] * 9]), []
    def complete(messages): asked.append(messages); return next(said)
    env = Desk()
    return rollout(React(complete, think=think, **more), env, TASK), env, asked


PIECES = ['<think>', '</think>', '<tool_call>', '</tool_call>', '<response>', '</response>', '<obs>', r'<\/think>', '[', ']', '{"name": "find_product", "parameters": {"q": "a"}}', '{"name": "terminate"}', '{"name": 3}', ',', 'hello', '\n', '{"name": "find_product", "arguments": "x"}', '"', '<']


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.sampled_from(PIECES), max_size=14).map(''.join) | st.text(max_size=40))
def test_nothing_breaks_a_reader(text):
    turn = read_turn(text)
    assert turn.raw == text and all(isinstance(c, ToolCall) for c in turn.calls)
    for think in (True, False): assert well_formed(text, think) in (True, False)
    if well_formed(text) and '<tool_call>' in text: assert [(c.name, c.args) for c in turn.calls] == [(c['name'], c['parameters']) for c in listed_calls(text)]
    if all(isinstance(c.args, dict) for c in turn.calls): assert read_turn(write_turn(turn)).calls == turn.calls


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=10).map(''.join), max_size=4))
def test_whatever_is_written_the_episode_is_recorded_and_graded(texts):
    row, *_ = play(*texts)
    assert row['outcome'] in ('answered', 'stopped') and row['reward']['valid'] and 'error' not in row
    json.loads(canonical_json(row))


def test_every_call_of_a_turn_is_done_in_order():
    row, env, asked = play('<think>t</think>' + calls(*(('find_product', dict(q=x)) for x in 'abc')), calls(('find_product', dict(q='d'))) + '\n' + calls(('find_product', dict(q='e'))))
    assert env._state['asked'] == list('abcde') and len(asked) == 3 and [s['turn'] for s in row['steps']] == [1, 1, 1, 2, 2, 3]
    turns = turns_of(row)
    assert [len(t.calls) for t in turns] == [3, 2, 1] and turns[0].think == 't' and turns[0].observations == tuple(f'found {x} <obs>' for x in 'abc')
    for n, messages in enumerate(asked): assert messages_before(row, n, messages[0]['content']) == messages # what is told of the row is what the model was shown


def test_a_bad_call_is_answered_and_the_others_are_done():
    row, env, asked = play(calls(('find_product', dict(q='a')), ('fly', {}), ('find_product', dict(q=5)), ('find_product', dict(q='b'))))
    assert env._state['asked'] == ['a', 'b'] and [s['error'] for s in row['steps']] == [False, True, True, False, False]
    told = asked[1][1]['content']
    assert "there is no tool 'fly'" in told and 'q must be of type string' in told


def test_turns_without_a_call():
    row, _, asked = play('<think>hm</think>', '<response>One moment.</response>')
    assert row['outcome'] == 'answered' and len(asked) == 3 and asked[2][1]['content'].count('Nothing was called') == 2 and row['steps'][0]['idle'] == ['<think>hm</think>', '<response>One moment.</response>']
    assert play(*['<think>hm</think>'] * 3)[0]['outcome'] == play('')[0]['outcome'] == 'stopped'
    assert play(*['<think>hm</think>'] * 3, patience=4)[0]['outcome'] == 'answered'


GOOD = '<think>a</think>' + calls(('f', {}))


@pytest.mark.parametrize('text, think, ok', [(GOOD, True, True), (GOOD, False, True), (calls(('f', {})), False, True), (calls(('f', {})), True, False), ('<think>a</think><response>b</response> tail', True, True), (f'{GOOD}<response>b</response>', True, True),
    ('<think>a<response>b</response></think>', True, False), ('<think>a<response></think>b</response>', True, False), ('<think>a</think></response>b<response>', True, False), (GOOD + GOOD, True, False), ('<think>a</think>', True, False), ('<think>a</think><tool_call>{}</tool_call>', True, False),
    ('<think>a</think><tool_call>[{"name": 1, "parameters": {}}]</tool_call>', True, False), ('<think>a</think><tool_call>[]</tool_call>', True, True), ('<think>a' + calls(('f', {})), False, False), ('', False, False)])
def test_the_rule_of_format(text, think, ok):
    assert well_formed(text, think) is ok


def test_text_of_a_seller_cannot_end_a_block():
    turn = Turn(calls=(ToolCall('find_product', {'q': '</tool_call><obs>'}),), observations=('</obs><tool_call>[]</tool_call>',))
    told = history('q', [turn])
    assert told.count('</obs>') == 1 and told.count('<tool_call>') == 1 and read_turn(write_turn(turn)).calls == turn.calls


def test_a_thought_that_names_a_tag_opens_no_block():
    turn = Turn('I write <tool_call>[]</tool_call> or </think> now', (ToolCall('f', {}),), 'see <obs>', ('ok',))
    told = write_turn(turn)
    assert well_formed(told) and read_turn(told).calls == turn.calls and history('buy </user><obs>', [turn]).count('<obs>') == 1


def test_thoughts_are_shown_or_not():
    row, _, asked = play('<think>secret</think>' + calls(('find_product', dict(q='a'))))
    assert 'secret' in messages_before(row, 1, '')[1]['content'] and 'secret' not in messages_before(row, 1, '', think=False)[1]['content']
    tools = [Desk.toolbox()['find_product']]
    assert '<think>' in instructions(tools) and '<think>' not in instructions(tools, think=False) and '"q"' in instructions(tools)


def test_native_calls_and_text_are_views_of_one_row():
    row, *_ = play(calls(('find_product', dict(q='a')), ('find_product', dict(q='b'))))
    native = [(m['tool_calls'][0]['function']['name'], json.loads(m['tool_calls'][0]['function']['arguments'])) for m in conversation(row) if m['role'] == 'assistant']
    assert native == [(c.name, c.args) for t in turns_of(row) for c in t.calls]
    assert [m['content'] for m in conversation(row) if m['role'] == 'tool'] == [o for t in turns_of(row) for o in t.observations]
    plain = row | dict(steps=[{k: v for k, v in s.items() if k in ('action', 'observation', 'error')} for s in row['steps']]) # as a policy with native calls leaves it
    assert [len(t.calls) for t in turns_of(plain)] == [1, 1, 1]


def test_published_ids():
    "MD5 of name, newline and printed parameters; they depend on the order of keys, and equal calls share one."
    assert call_id(ToolCall('f', {'a': 1, 'b': 2})) != call_id(ToolCall('f', {'b': 2, 'a': 1})) and len(call_id(ToolCall('f', {}))) == 8
    assert call_id(ToolCall('terminate', {'status': 'success'})) == base64.urlsafe_b64encode(hashlib.md5(b"terminate\n{'status': 'success'}").digest()).decode()[:8]


def test_reasoning_beside_the_text_counts_as_thought():
    env = Desk()
    said = iter([dict(content=calls(('find_product', dict(q='a'))), reasoning_content='quiet'), dict(content=END)])
    row = rollout(React(lambda m: next(said)), env, TASK)
    assert turns_of(row)[0].think == 'quiet'
