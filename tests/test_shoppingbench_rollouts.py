"Published rollouts as episode rows: any line is read or reported, nothing of a turn is lost, and what our own loop writes comes back."
import json
from collections import Counter
import pytest
from benchfiles import document, write_corpus
from hypothesis import HealthCheck, given, settings, strategies as st
from shopping_grpo.catalog import Catalog
from shopping_grpo.core import DataError, canonical_json
from shopping_grpo.env import ToolCall
from shopping_grpo.envs.shoppingbench_files import read_instruction
from shopping_grpo.envs.shoppingbench_published import PublishedBench, publish
from shopping_grpo.envs.shoppingbench_react import React, call_id, turns_of, write_turn
from shopping_grpo.envs.shoppingbench_rollouts import ODD, read_rollouts, read_step, recommended, rollout_samples
from shopping_grpo.envs.shoppingbench_shop import Market
from shopping_grpo.records import Counts, Defect
from shopping_grpo.rollout import conversation, rollout
from shopping_grpo.task import load_tasks

ASKED = [dict(query='A mug.', reward=dict(product_id='4000000017', title=['Stoneware Mug'], attributes=[{'material': ['clay']}])), dict(query='Two.', reward=[dict(product_id='4000000017', title=['Stoneware Mug']), dict(product_id='4000000018', title=['Oak Saucer'])])]
DOCS = [document('4000000017', 'A', 'Stoneware Mug', 300.0, dict(material=['clay'])), document('4000000018', 'A', 'Oak Saucer', 20.0)]


@pytest.fixture(scope='module')
def shop(tmp_path_factory):
    where = tmp_path_factory.mktemp('rollouts')
    (where/'asked.jsonl').write_text('\n'.join(map(json.dumps, ASKED)))
    built = publish('x', write_corpus(where/'d.jsonl', DOCS), where/'asked.jsonl', where=where/'x')
    catalog = Catalog(built/'catalog')
    return PublishedBench(catalog, Market(built/'index', catalog)), load_tasks(built/'tasks'/'shoppingbench-test.jsonl'), [read_instruction(x) for x in ASKED]


def step(calls, obs=(), query='A mug.', **message):
    return dict(prompt=[dict(role='system', content='Shop.'), dict(role='user', content=f'x <user>{query}</user>')], completion=dict(content='raw', message=dict(think='so', tool_call=calls, obs=obs) | message), extra_info=dict(step=1, query=query))


def load(tmp_path, lines, *a, **how):
    (tmp_path/'r.jsonl').write_text('\n'.join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    counts, broken = Counts(), []
    return list(read_rollouts(tmp_path/'r.jsonl', *a, counts=counts, broken=broken, **how)), counts, broken


def written(row):
    "One of our rows as the published loop would have written it."
    turns, out = turns_of(row), []
    for n, t in enumerate(turns):
        message = {k: v for k, v in dict(think=t.think, tool_call=[dict(name=c.name, parameters=c.args) for c in t.calls], obs=[dict(tool_call_id=call_id(c), results=o) for c, o in zip(t.calls, t.observations)], response=t.response).items() if v}
        out.append(dict(prompt=[], completion=dict(content=t.raw, reasoning_content='', message=message), extra_info=dict(step=n, query=row['prompt'], timestamp=n)))
    return out


def test_what_our_loop_played_comes_back(shop, tmp_path):
    "Our ReAct episodes, written in the published form and read again: the same turns, samples and published score."
    env, tasks, asked = shop
    texts = [['<think>a</think><tool_call>[{"name": "find_product", "parameters": {"query": "mug"}}, {"name": "view_product", "parameters": {"products": "4000000017"}}]</tool_call>', '<think>b</think><response>Thinking.</response>',
        '<think>c</think><tool_call>[{"name": "recommend_product", "parameters": {"products": "4000000017"}}, {"name": "terminate", "parameters": {"status": "success"}}]</tool_call>'],
        ['<tool_call>[{"name": "recommend_product", "parameters": {"products": "4000000018, 4000000017"}}, {"name": "terminate", "parameters": {"status": "success"}}]</tool_call>']]
    rows = [rollout(React(lambda m, it=iter(t): next(it)), env, task) for t, task in zip(texts, tasks)]
    back, counts, broken = load(tmp_path, map(written, rows), asked, env.catalog)
    assert not broken and counts.kept == 2
    for a, b in zip(rows, back):
        assert [(t.think, t.calls, t.observations) for t in turns_of(a)] == [(t.think, t.calls, t.observations) for t in turns_of(b) if t.calls] and a['native']['value'] == b['native']['value'] and a['outcome'] == b['outcome']
        assert [write_turn(t) for t in turns_of(b) if t.calls] == [write_turn(t) for t in turns_of(a)] and [m['role'] for m in conversation(b)][:2] == ['user', 'assistant']
    assert back[0]['success'] and not back[1]['success'] # the published score looks at the order


@pytest.mark.parametrize('odd, calls', [
    ('a call without parameters', [dict(name='terminate')]), ('a call without parameters', [dict(name='find_product', arguments=dict(q='x'))]), ('parameters that are no object', [dict(name='recommend_product', parameters=['1'])]),
    ('parameters that are no object', ['find']), ('one call without a list', dict(name='find_product', parameters=dict(q='x'))), ('a call without an answer', [dict(name='fly', parameters={})]), ('no recommendation', []),
    ('ids with blanks or in a list', [dict(name='recommend_product', parameters=dict(product_ids='4000000017, 4000000018'))]), ('ids with blanks or in a list', [dict(name='recommend_product', parameters=dict(product_ids=['4000000017']))])])
def test_odd_turns_are_read_and_counted(tmp_path, odd, calls):
    (row,), counts, broken = load(tmp_path, [[step(calls)]])
    assert not broken and counts.mended[odd] == 1 and set(counts.mended) <= set(ODD)
    canonical_json(row)


def test_identical_calls_get_their_answers_in_order():
    call = dict(name='find_product', parameters=dict(q='x'))
    id = call_id(ToolCall('find_product', dict(q='x')))
    _, said = read_step(step([call, dict(name='odd', parameters={}), call], [dict(tool_call_id=id, results='one'), dict(tool_call_id=id, results='two'), dict(tool_call_id='?', results='three')]), odd := Counter())
    assert said == ['one', None, 'two'] and odd['an answer without a call'] == 1


BROKEN = ['{"a": 1}', '[1, 2]', '[]', 'nonsense', '[{"extra_info": {"query": "x"}}]', '[{"completion": {"message": {}}}]', '{"messages": [3]}', '{"messages": [{"role": "assistant", "content": "x"}]}', '{"messages": [{"role": "user", "content": "x"}]}', 'null']

@pytest.mark.parametrize('line', BROKEN)
def test_a_line_that_is_no_rollout_is_named(tmp_path, line):
    rows, counts, broken = load(tmp_path, [[step([dict(name='terminate', parameters=dict(status='failure'))])], line])
    assert len(rows) == counts.kept == 1 and counts.dropped['broken'] == 1 and broken[0].startswith('r.jsonl: line 2: ') and '\n' not in broken[0]


def test_a_file_without_a_rollout_is_an_error(tmp_path):
    with pytest.raises(DataError, match=r'r\.jsonl: none of its 2 rows is a rollout: r\.jsonl: line 1: '): load(tmp_path, ['[1]', '[2]'])


def test_nothing_is_learnt_from_test_rollouts(shop, tmp_path):
    env, _, asked = shop
    done = [step([dict(name='recommend_product', parameters=dict(product_ids='4000000017')), dict(name='terminate', parameters=dict(status='success'))], [])]
    rows, *_ = load(tmp_path, [done], asked, env.catalog)
    with pytest.raises(DataError, match="split 'test'; a model learns from split 'train' only"): rollout_samples(rows)
    assert rows[0]['success'] and rows[0]['task_key'] == asked[0].key
    rows, counts, _ = load(tmp_path, [done, [step([], query='Unknown.')]], asked, env.catalog, split='train')
    assert counts.mended['no instruction has this query'] == 1 and not rows[1]['reward']['valid']
    assert [s.system for s in rollout_samples(rows, refused=True)] == ['Shop.']


VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(['find_product', 'recommend_product', 'terminate']), lambda x: st.lists(x, max_size=3) | st.dictionaries(st.sampled_from(['name', 'parameters', 'arguments', 'product_ids', 'results', 'tool_call_id', 'think', 'tool_call', 'obs', 'response', 'content', 'message', 'completion', 'role']), x, max_size=4), max_leaves=12)

@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(VALUES, VALUES, VALUES)
def test_nothing_breaks_the_reader(calls, obs, content):
    for message in (dict(tool_call=calls, obs=obs, think=content, response=content), content):
        try: turn, said = read_step(dict(completion=dict(content=content, reasoning_content=obs, message=message)), Counter())
        except Defect: continue
        assert len(turn.calls) == len(said) and all(x is None or isinstance(x, str) for x in said)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(VALUES, max_size=4))
def test_nothing_breaks_a_file(tmp_path, values):
    good = [step([dict(name='terminate', parameters=dict(status='failure'))])]
    rows, counts, broken = load(tmp_path, [good, *[[step(v, v)] for v in values], *[dict(messages=v) for v in values], *[dict(messages=[dict(role='user', content='x'), v]) for v in values]])
    assert counts.read == 1 + 3 * len(values) == counts.kept + len(broken) and counts.kept == len(rows) >= 1
    for r in rows: canonical_json(r); recommended(r); turns_of(r)
