"""WebShop from demonstrations to the held-out table, in a few steps: the path, not the learning."""
import json, shutil
from pathlib import Path
import pytest
from shopping_grpo.core import ShopError
from shopping_grpo.stage import profile_steps, run_stage
from shopping_grpo.store import Run

ROOT = Path(__file__).resolve().parents[1]
SHOP = {'view': 'brief', 'page_size': 4}
WORLD = dict(env='webshop', size='tiny-en', shop=SHOP)


@pytest.fixture(scope='module')
def own_root(tmp_path_factory):
    "A root whose shop is built by the first stage that asks for it."
    root = tmp_path_factory.mktemp('root')
    shutil.copytree(ROOT/'nbs', root/'nbs', ignore=shutil.ignore_patterns('.ipynb_checkpoints'))
    shutil.copy(ROOT/'settings.ini', root)
    with pytest.MonkeyPatch.context() as m:
        m.setenv('SHOPPING_GRPO_ROOT', str(root))
        yield root


def printed(notebook): return ''.join(''.join(o.get('text', o.get('data', {}).get('text/plain', ''))) for c in json.loads(notebook.read_text())['cells'] if c['cell_type'] == 'code' for o in c['outputs'])


def test_from_demonstrations_to_the_held_out_table(own_root):
    "25 -> 35 -> 45 -> 55 with env=webshop: every stage ends, each eats what the one before wrote, and the last notebook holds the table with trivial agents and oracle."
    runs = own_root/'runs'
    run_stage('25', WORLD | dict(target=40, per_product=20, turns=8, refusals=0, vague=0.0, wrong_hit=0.0, wrong_option=0.0, refusal=0.0, grade='both', name='web'), quiet=True)
    facts = json.loads((runs/'collect'/'web'/'dataset.json').read_text())
    assert facts['counts']['accepted'] == 40 and facts['config']['env'] == 'webshop' and facts['products']['validation'] > 0
    run_stage('35', dict(data='web', hidden=32, layers=1, vocab=900, budget=4096, validation_tasks=3, checks=2, keep=True, lessons='0', name='web'), quiet=True)
    kept = sorted(p.name for p in (runs/'sft'/'web'/'checks').iterdir())
    assert len(kept) == 2 and Run.load(runs/'sft'/'web').status == 'done'
    run_stage('45', WORLD | dict(model='runs/sft/web/best', train_tasks=8, validation_tasks=3, steps=1, groups=2, n=2, passes=1, validate=1, max_new=24, filter='everything', name='web'), quiet=True)
    assert Run.load(runs/'grpo'/'web').status == 'done' and (runs/'grpo'/'web'/'best'/'config.json').exists()
    models = 'local:base=runs/sft/web/base,local:sft=runs/sft/web/best,local:grpo=runs/grpo/web/best'
    out = run_stage('55', WORLD | dict(policies=f'oracle,rule,random,do-nothing,{models},local:runs/sft/web/checks/*', split='val', n=4, options={'max_new': 24}, name='web'), quiet=True)
    names = ['oracle', 'rule', 'random', 'do-nothing', 'base', 'sft', 'grpo', *(f'web-checks-{k}' for k in kept)]
    for name in names:
        run = Run.load(runs/'eval'/f'web-{name}')
        assert run.status == 'done' and run.counts()['done'] == 4 and run.manifest['config']['split'] == 'val', name
    assert Run.load(runs/'eval'/'web-oracle').scores().success.all() and not Run.load(runs/'eval'/'web-do-nothing').scores().success.any()
    text = printed(out)
    assert all(name in text for name in names) and f'chosen on val: web-checks-step-' in text and 'success_planned_low' in text


def test_a_sweep_needs_checkpoints(own_root):
    with pytest.raises(ShopError, match=r"no folder matches 'local:runs/sft/nobody/checks/\*'; train with `-p keep=True` in stage 35") as e:
        run_stage('55', WORLD | dict(policies='local:runs/sft/nobody/checks/*', split='val', n=2, name='none'), quiet=True)
    assert '\n' not in str(e.value)


def test_the_profile_is_whole():
    "Its lines name stages and parameters that exist, and the last step evaluates on held-out tasks with trivial agents and oracle."
    steps = profile_steps('webshop')
    assert [s for s, _ in steps] == ['25', '35', '45', '55']
    last = dict(x.split('=', 1) for x in steps[-1][1])
    assert last.get('split', 'test') == 'test' and {'oracle', 'rule', 'random', 'do-nothing'} <= set(last['policies'].split(','))
