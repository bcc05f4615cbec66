"""ShoppingBench through the stages: demonstrations, SFT with and without thoughts, GRPO by the offline reward, evaluation by intent."""
import copy, json, shutil
from pathlib import Path
import pytest
from shopping_grpo.core import ShopError
from shopping_grpo.env import Message, Outcome, ToolCall
from shopping_grpo.envs.shoppingbench_offline import offline_reward
from shopping_grpo.envs.shoppingbench_react import Turn, write_turn
from shopping_grpo.envs.shoppingbench_steps import TeacherSteps, step_reward, step_tasks
from shopping_grpo.stage import run_stage
from shopping_grpo.store import Run

ROOT = Path(__file__).resolve().parents[1]
SHOP = dict(env='shoppingbench', size='tiny-en', shop={'view': 'brief', 'page_size': 2, 'python': False})


CALLS = [ToolCall('find_product', dict(query='blue mug', page=1)), ToolCall('find_product', dict(query='blue mug')), ToolCall('find_product', dict(query='mug, blue', sort='priceasc')), ToolCall('view_product', dict(products='1,2')), ToolCall('view_product', dict(products='2')),
    ToolCall('recommend_product', dict(products='1#2', vouchers='V1')), ToolCall('terminate', dict(status='success')), ToolCall('nothing', {})]

@pytest.mark.parametrize('wanted', CALLS[:-1], ids=lambda c: c.name)
def test_a_step_is_paid_as_its_text_is(wanted):
    "The reward of an action is that of the published formula on the same turn as text."
    text = lambda c: write_turn(Turn('', (c,)))
    for c in CALLS: assert step_reward(wanted, c) == offline_reward(text(wanted), text(c))
    assert step_reward(wanted, Message('sorry')) == offline_reward(text(wanted).replace('<tool_call>', '<think>x</think><tool_call>'), '<think>y</think><response>sorry</response>') == -2
    assert step_reward(wanted, Message('<tool_call>{')) == step_reward(wanted, ToolCall('find_product', 'x')) == -3 and step_reward(wanted, wanted) == 4


def test_steps_are_those_that_are_learnt():
    call = lambda n, **args: dict(role='assistant', content='<think>so</think>', tool_calls=[dict(id=f'call_{n}', type='function', function=dict(name='find_product', arguments=json.dumps(args)))])
    row = dict(id='r', lang='en', scenario='product', untrained=[3], tools=[dict(function=dict(name='find_product')), dict(function=dict(name='terminate'))],
        messages=[dict(role='system', content='s'), dict(role='user', content='A mug.'), call(0, query='a'), dict(role='tool', content='A'), call(1, query='b'), dict(role='tool', content='B'), call(2, query='c')])
    tasks = step_tasks([row | dict(untrained=[4])])
    assert [t.goal.more['teacher']['wanted'][1]['query'] for t in tasks] == ['a', 'c'] and [len(t.goal.more['teacher']['before']) for t in tasks] == [0, 2] and tasks[1].goal.more['teacher']['before'][1] == ['find_product', dict(query='b'), 'B']
    class Shop: # what is wrapped
        @staticmethod
        def toolbox(): return dict(find_product='F', terminate='T')
    env = TeacherSteps(Shop())
    assert env.reset(tasks[1]).text == 'A mug.' and env.tools == ['F', 'T'] and env.before[1] == (ToolCall('find_product', dict(query='b')), 'B') and not env.score().valid
    twin = copy.copy(env)
    assert env.step(ToolCall('find_product', dict(query='c'))).done and env.score().kind == 'success' and not twin.score().valid
    twin.stop(Outcome.max_tokens)
    assert not twin.score().valid and env.state_hash() == twin.state_hash() == tasks[1].key


@pytest.fixture(scope='module')
def own_root(tmp_path_factory):
    "A root with a small collection."
    root, patch = tmp_path_factory.mktemp('root'), pytest.MonkeyPatch()
    shutil.copytree(ROOT/'nbs', root/'nbs', ignore=shutil.ignore_patterns('.ipynb_checkpoints'))
    shutil.copy(ROOT/'settings.ini', root)
    patch.setenv('SHOPPING_GRPO_ROOT', str(root))
    run_stage('25', SHOP | dict(target=24, turns=20, validation=0.0, name='few'), quiet=True)
    yield root
    patch.undo()


FAST = dict(data='few', hidden=32, layers=1, vocab=700, budget=4096, max_length=4096, validation_tasks=2, max_new=16, checks=1, lessons='0')

@pytest.mark.slow
def test_the_stages_of_shoppingbench(own_root):
    for name, think in (('plain', False), ('think', True)): run_stage('35', FAST | dict(name=name, think=think), quiet=True)
    plain, think = (Run.load(own_root/'runs'/'sft'/n) for n in ('plain', 'think'))
    assert plain.status == think.status == 'done' and 'think' not in plain.manifest['config'] and think.manifest['config']['think'] and think.metrics().tokens.max() > plain.metrics().tokens.max()
    step = SHOP | dict(model=str(own_root/'runs'/'sft'/'plain'/'best'), offline='few', reward='verified', filter='everything', algorithm='grpo', groups=4, n=4, steps=2, validate=2, validation_tasks=2, max_new=16, max_length=4096, name='offline')
    with pytest.raises(ShopError, match='offline pays single turns by itself'): run_stage('45', step | dict(reward='success_first', name='wrong'), quiet=True)
    run_stage('45', step, quiet=True)
    log = Run.load(own_root/'runs'/'grpo'/'offline').metrics()
    assert log.step.tolist() == [0, 1, 2] and (log.paid.dropna().between(-3, 4)).all() and (log.turns.dropna() == 1).all() and log.val_reward.dropna().between(-1, 1).all() and log.grad_norm.dropna().gt(0).all() and log.mismatch.dropna().max() < 1e-3
    run_stage('55', SHOP | dict(policies='oracle,do-nothing,local:plain=runs/sft/plain/best,local:think=runs/sft/think/best,local:offline=runs/grpo/offline/best', n=4, options={'max_new': 16, 'max_length': 4096}, name='end'), quiet=True)
    assert all(Run.load(own_root/'runs'/'eval'/f'end-{p}').status == 'done' for p in ('oracle', 'plain', 'think', 'offline'))
