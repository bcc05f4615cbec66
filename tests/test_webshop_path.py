"""WebShop from demonstrations to the held-out table, in a few steps: the path, not the learning."""
import json, shutil
from pathlib import Path
import pytest
from shopping_grpo.core import ShopError
from shopping_grpo.env import load_env
from shopping_grpo.envs.webshop_shop import publish
from shopping_grpo.stage import profile_steps, run_stage
from shopping_grpo.store import Run
from shopping_grpo.task import load_tasks
from webfiles import write_files

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


def test_a_run_that_stopped_early_names_no_sweep(own_root):
    "Before the first validation there is no checkpoint to compare; the next command leads into the same shop."
    text = printed(run_stage('35', dict(data='web', hidden=32, layers=1, vocab=900, budget=4096, validation_tasks=3, checks=1, steps=1, keep=True, lessons='0', name='early'), quiet=True))
    assert not (own_root/'runs'/'sft'/'early'/'checks').exists() and 'the sweep' not in text and 'no checkpoint was validated before the end' in text
    assert f"""next: shopping-grpo run 45_run_grpo -p env=webshop -p size=tiny-en -p "shop={SHOP}" -p model=runs/sft/early/best""" in text
    whole = printed(own_root/'runs'/'run_sft'/'web'/'notebook.ipynb')
    assert f"""the sweep: shopping-grpo run 55_run_eval -p env=webshop -p size=tiny-en -p "shop={SHOP}" -p split=val -p "policies=local:runs/sft/web/checks/*""" in whole


@pytest.mark.parametrize('given, says', [
    (dict(confidence=0.85), 'confidence is that of a second opinion, and nobody gives one here; add judge='), (dict(assist=True, rationale=30), 'assist, rationale: only endpoints are told that, and none teaches here; add endpoint:MODEL@URL'),
    (dict(confidence=7.0, judge='endpoint:m@http://127.0.0.1:9/v1'), 'confidence must lie in 0 to 1')])
def test_a_setting_without_effect_is_refused(given, says, own_root):
    with pytest.raises(ShopError, match=says) as e: run_stage('25', WORLD | given | dict(target=1, name='idle'), quiet=True)
    assert '\n' not in str(e.value) and not (own_root/'runs'/'collect'/'idle'/'manifest.json').exists()


def test_without_a_size_the_shop_is_the_familys_own(own_root):
    run_stage('55', dict(env='webshop', policies='do-nothing', n=3, name='own'), quiet=True)
    assert Run.load(own_root/'runs'/'eval'/'own-do-nothing').manifest['config'] | dict(size='tiny-en', split='test', n=3) == Run.load(own_root/'runs'/'eval'/'own-do-nothing').manifest['config']
    with pytest.raises(ShopError, match="no shop is called 'tiny'; give size=tiny-en, which is made at first use"): run_stage('55', dict(env='webshop', size='tiny', policies='do-nothing', n=3, name='none'), quiet=True)


def test_a_protocol_is_evaluated_as_published(own_root, tmp_path):
    "Tasks 123 to 378 of val, all 256 of them, in nine turns, by the protocol's name alone; with n its first ones; what contradicts it is refused."
    items, ins, _ = write_files(tmp_path, load_env('webshop').catalog, 300, asked=5)
    with pytest.raises(ShopError, match='protocol ragen256 needs its own shop; import the published files'): run_stage('55', dict(env='webshop', protocol='ragen256', name='early'), quiet=True)
    publish('files-300', items, ins, rules='ragen256')
    text = printed(run_stage('55', dict(env='webshop', protocol='ragen256', policies='oracle,rule,do-nothing', name='ragen'), quiet=True))
    assert 'ragen256: tasks 123 to 378 of val in files-300, 9 turns' in text
    val = [t.key for t in load_tasks(own_root/'data'/'built'/'files-300'/'tasks'/'webshop-val.jsonl')]
    for name in ('oracle', 'rule', 'do-nothing'):
        run = Run.load(own_root/'runs'/'eval'/f'ragen-{name}')
        rows = list(run.episodes())
        assert run.counts()['planned'] == len({r['task_key'] for r in rows}) == 256 and [r['task_key'] for r in rows] == val[123:379] and max(r['n_steps'] for r in rows) <= 9
        assert run.manifest['config'] | dict(protocol='ragen256', first=123, n=256, split='val', size='files-300') == run.manifest['config']
        assert {r['outcome'] for r in rows} == ({'stopped'} if name == 'do-nothing' else {'purchased'})
    assert 'ragen256: tasks 123 to 127 of val in files-300, the first of its 256, 9 turns' in printed(run_stage('55', dict(env='webshop', protocol='ragen256', policies='rule', n=5, name='few'), quiet=True))
    assert [r['task_key'] for r in Run.load(own_root/'runs'/'eval'/'few-rule').episodes()] == val[123:128]
    for wrong, says in ((dict(split='test'), 'protocol ragen256 evaluates split val, not test; leave split out'), (dict(n=257), '257 tasks were asked for, protocol ragen256 holds 256; leave n out'), (dict(shop={'rules': 'paper500'}), r"protocol ragen256 and shop=\{'rules': 'paper500'\} say different things")):
        with pytest.raises(ShopError, match=says): run_stage('55', dict(env='webshop', protocol='ragen256', policies='rule', name='wrong') | wrong, quiet=True)
    run_stage('55', dict(env='webshop', protocol='clean', size='tiny-en', policies='do-nothing', name='clean'), quiet=True)
    assert Run.load(own_root/'runs'/'eval'/'clean-do-nothing').counts()['planned'] == 200


def test_the_profile_is_whole():
    "Its lines name stages and parameters that exist, and the last step evaluates on held-out tasks with trivial agents and oracle."
    steps = profile_steps('webshop')
    assert [s for s, *_ in steps] == ['25', '35', '45', '55']
    last = dict(x.split('=', 1) for x in steps[-1][1])
    assert last.get('split', 'test') == 'test' and {'oracle', 'rule', 'random', 'do-nothing'} <= set(last['policies'].split(','))
