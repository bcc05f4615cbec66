"Recorded episodes keep their grades for as long as the version of the rules stands still."
import json
from collections import Counter
import pytest
import golden
from shopping_grpo.envs.shopsim import ShopSim


@pytest.fixture(scope='module')
def recorded(): return golden.load()


def test_the_record_is_wide(recorded):
    tasks, lines = recorded
    head = json.loads(golden.PATH.open(encoding='utf-8').readline())
    assert head['versions'] == golden.versions(), 'the rules have a new version: record the golden episodes anew with `python tests/golden.py`'
    ends = Counter(line['outcome'] for line in lines), Counter(line['verified'][0] for line in lines), Counter(line['native'][0] for line in lines)
    assert len(lines) == 200 and {'purchased', 'abstained', 'stopped', 'loop', 'max_turns'} <= set(ends[0])
    assert {'success', 'partial_purchase', 'wrong_purchase', 'graceful_stop', 'early_abstain'} <= set(ends[1]) and {'gold_purchase', 'partial_alternative_purchase', 'wrong_purchase'} <= set(ends[2])


def test_no_golden_episode_changes_its_score(recorded, tiny, tiny_engine):
    tasks, lines = recorded
    assert json.loads(golden.PATH.open(encoding='utf-8').readline())['catalog'] == tiny.digest
    env = ShopSim(tiny, tiny_engine)
    changed = [(line['policy'], line['task'], {k: (line[k], v) for k, v in golden.replay(env, tasks[line['task']], line).items() if v != line[k]}) for line in lines]
    changed = [c for c in changed if c[2]]
    assert not changed, f'{len(changed)} golden episodes have another score; if that is meant, raise ShopSim.version and record them anew. The first: {changed[0]}'


def test_a_changed_rule_is_noticed(recorded, tiny, tiny_engine, monkeypatch):
    from shopping_grpo import purchase
    tasks, lines = recorded
    env, line = ShopSim(tiny, tiny_engine), next(line for line in recorded[1] if line['verified'][0] == 'wrong_purchase')
    monkeypatch.setitem(purchase.UTILITY, 'wrong_purchase', -0.8)
    assert golden.replay(env, tasks[line['task']], line)['verified'] != line['verified']
