"""Tasks: solvable, not trivial, no leak between splits, stable under hash seeds."""
import os, subprocess, sys
from dataclasses import replace
import pytest
from shopping_grpo.catalog import Catalog
from shopping_grpo.core import DataError
from shopping_grpo.envs.shopsim import ShopSim
from shopping_grpo.policy import Abstain, DoNothing, Oracle
from shopping_grpo.request import Requests
from shopping_grpo.rollout import rollout
from shopping_grpo.task import SPLITS, accepted, check_splits, load_tasks, satisfied, save_tasks


@pytest.fixture(scope='module')
def tasks(small): return [t for s in SPLITS for t in Requests(small, seed=5).tasks(s, 60)]


def test_every_task_is_solvable_and_not_for_free(small, small_engine, tasks):
    "D-5: the oracle solves each, whichever accepted variant it buys; doing nothing and giving up solve none."
    env = ShopSim(small, small_engine)
    for pick in (lambda g: g.target_variant, lambda g: g.accepted[0], lambda g: g.accepted[-1]):
        assert all(rollout(Oracle(small, pick), env, t)['success'] for t in tasks)
    for policy in (DoNothing(), Abstain()): assert not any(rollout(policy, env, t)['success'] for t in tasks)


def test_accepted_sets_are_exactly_what_a_scan_finds(small, tasks):
    "Every variant of every product of the shop, not only of the leaf."
    products = list(small)
    for t in tasks[::45]:
        want = sorted(v.id for p in products for v in p.variants if v.stock > 0 and p.lang == t.lang and all(satisfied(c, p, v) for c in t.goal.constraints))
        assert list(t.goal.accepted) == want and t.goal.target_variant in want


def test_no_split_leaks_into_another(tasks):
    "D-4."
    check_splits(tasks)
    t = next(t for t in tasks if t.split == 'train')
    for leak, message in ((replace(t, split='test'), 'task'), (replace(t, split='test', prompt='x' * 50), 'product'),
                          (replace(t, split='test', prompt=t.prompt + '!', goal=replace(t.goal, accepted=('0-0',))), 'nearly the same')):
        with pytest.raises(DataError, match=message): check_splits(tasks + [leak])


def test_every_wish_is_said(tasks):
    "The price, and each plain word or one of its synonyms, stands in the text."
    from shopping_grpo.request import _synonyms
    for t in tasks:
        known = _synonyms(t.lang)
        for c in t.goal.constraints:
            words = known.get((t.category, {'category': '', 'feature': 'feature'}.get(c.kind, c.field)), {}).get(c.value, (c.value,)) if c.kind != 'price' else (str(c.value // 100),)
            assert any(w in t.prompt for w in words), (t.prompt, c)


def test_keys_do_not_depend_on_the_process(small, tasks):
    "E8."
    code = f"from shopping_grpo.catalog import Catalog; from shopping_grpo.request import Requests; print([t.key for t in Requests(Catalog({str(small.path)!r}), seed=5).tasks('test', 10)])"
    outs = {subprocess.run([sys.executable, '-c', code], env=os.environ | {'PYTHONHASHSEED': h}, capture_output=True, text=True, check=True).stdout.strip() for h in '01'}
    assert outs == {str([t.key for t in tasks if t.split == 'test'][:10])}


def test_files(tasks, tmp_path):
    save_tasks(tmp_path/'t.jsonl', tasks)
    assert load_tasks(tmp_path/'t.jsonl') == tasks
    with pytest.raises(DataError, match='data build'): load_tasks(tmp_path/'none.jsonl')


def test_sold_out_is_not_accepted(small, tasks):
    for t in tasks[::20]:
        p = small[t.goal.target]
        gone = p._replace(variants=tuple(v._replace(stock=0) for v in p.variants))
        assert accepted(t.goal.constraints, [gone]) == ()
