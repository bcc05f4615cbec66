"""Stage 45: parameters, guards, and a kill in the middle."""
import json, os, shutil, signal, subprocess, sys, time
from pathlib import Path
import pytest
from shopping_grpo.core import ShopError
from shopping_grpo.stage import run_stage
from shopping_grpo.store import Run

ROOT = Path(__file__).resolve().parents[1]
FAST = dict(steps=2, groups=4, n=4, passes=1, validate=1, save_every=1)


@pytest.fixture
def own_root(tmp_path, monkeypatch):
    shutil.copytree(ROOT/'nbs', tmp_path/'nbs', ignore=shutil.ignore_patterns('.ipynb_checkpoints'))
    shutil.copy(ROOT/'settings.ini', tmp_path)
    monkeypatch.setenv('SHOPPING_GRPO_ROOT', str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize('change', [{}, dict(backend='trl', muon=0.0, minibatches=1)], ids=['local', 'trl'])
def test_both_backends_run_from_the_same_parameters(own_root, change):
    run_stage('run_grpo', FAST | dict(name='both') | change, quiet=True)
    run = Run.load(own_root/'runs'/'grpo'/'both')
    assert run.status == 'done' and run.metrics().step.tolist() == [0, 1, 2] and run.manifest['config']['recipe']['n'] == 4
    assert {'best/model.safetensors', 'curves.svg', 'metrics.jsonl'} <= set(run.manifest['outputs']) and not run.changed()


def test_a_dry_run_of_verl_says_what_it_would_start_and_makes_no_run(own_root, monkeypatch):
    "A Python that claims to have the packages; the shop is the toy."
    from shopping_grpo.grpo_verl import PROFILES, free_memory
    if free_memory() < PROFILES['cpu'].memory: pytest.skip(f"{PROFILES['cpu'].memory} GiB of memory are not free")
    fake = own_root/'python'
    fake.write_text('#!/bin/sh\n' + ''.join(f"echo '{json.dumps([n, v])}'\n" for n, v in PROFILES['cpu'].pins.items()))
    fake.chmod(0o755)
    monkeypatch.setenv('SHOPPING_GRPO_VERL_PYTHON', str(fake))
    wish = FAST | dict(name='dry', backend='verl', muon=0.0, minibatches=1, profile='cpu', max_new=24, max_length=200, dry_run=True)
    said = run_stage('run_grpo', wish, quiet=True).read_text()
    assert all(x in said for x in ('verl.trainer.main_ppo', 'trainer.total_training_steps=2', 'GiB free', 'tasks-train.jsonl', 'VERL_PLATFORM'))
    assert not (own_root/'runs'/'grpo').exists() and not (own_root/'runs'/'dry'/'dry'/'verl'/'verl.log').exists()
    monkeypatch.setenv('SHOPPING_GRPO_VERL_PYTHON', sys.executable + '-none')
    with pytest.raises(ShopError, match='there is no Python at'): run_stage('run_grpo', wish, quiet=True)


WRONG = [(dict(backend='ray'), "backend 'ray' is unknown"), (dict(env='shopsim'), 'env toy and model toy belong together'), (dict(env='shopsim', model='tiny'), 'has not learnt to shop yet'), (dict(algorithm='ppo'), "algorithm 'ppo' is unknown"), (dict(tracker='excel'), "tracker 'excel' is unknown"),
    (dict(curriculum='levels'), "curriculum 'levels' is unknown"), (dict(schedule={'top': 3}), 'without a curriculum there is no schedule'), (dict(backend='trl', curriculum='adaptive'), 'backend trl has no curriculum'), (dict(dry_run=True), 'a dry run is of the backend verl')]

@pytest.mark.parametrize('bad,message', [WRONG[0], *(pytest.param(*w, marks=pytest.mark.slow) for w in WRONG[1:])], ids=lambda x: None if isinstance(x, str) else '-'.join(x))
def test_wrong_parameters_are_one_clear_line(own_root, bad, message):
    with pytest.raises(ShopError, match=message) as e: run_stage('run_grpo', bad, quiet=True)
    assert '\n' not in str(e.value)


@pytest.mark.slow
@pytest.mark.parametrize('change', [{}, dict(backend='trl', muon=0.0, minibatches=1)], ids=['local', 'trl'])
def test_a_tracker_sees_what_is_logged_by_both_backends(own_root, change):
    pytest.importorskip('tensorboard', reason='tensorboard is not installed: pip install -e ".[tensorboard]"')
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    run_stage('run_grpo', FAST | dict(name='watched', tracker='tensorboard') | change, quiet=True)
    run = Run.load(own_root/'runs'/'grpo'/'watched')
    seen, log = EventAccumulator(str(run.path/'.tensorboard')).Reload(), run.metrics().set_index('step')
    for sign in ('success', 'kl', 'loss', 'val_success'): assert {e.step: e.value for e in seen.Scalars(sign)} == pytest.approx(log[sign].dropna().to_dict()), sign
    assert 'tracker' not in str(run.manifest['config']) and run.manifest['parameters']['tracker'] == 'tensorboard' and not any('tfevents' in o for o in run.manifest['outputs'])


@pytest.mark.slow
@pytest.mark.parametrize('change', [{}, dict(curriculum='adaptive', schedule={'trials': 4, 'threshold': 0.25, 'demote': 0.2})], ids=['even', 'adaptive'])
def test_a_killed_stage_goes_on(own_root, change):
    "kill -9 when the first checkpoint is there; the second sitting ends with the numbers of an undisturbed run."
    given = FAST | dict(steps=4) | change
    run_stage('run_grpo', given | dict(name='whole'), quiet=True)
    args = [x for k, v in (given | dict(name='killed')).items() for x in ('-p', f'{k}={v}')]
    child = subprocess.Popen([sys.executable, '-c', 'from shopping_grpo.cli import main; main()', 'run', 'run_grpo', *args], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list((own_root/'runs'/'grpo'/'killed').glob('checkpoints/step-*')) and child.poll() is None: time.sleep(.05)
    os.killpg(child.pid, signal.SIGKILL); child.wait()
    assert Run.load(own_root/'runs'/'grpo'/'killed').status == 'started'
    run_stage('run_grpo', given | dict(name='killed'), quiet=True)
    a, b = (Run.load(own_root/'runs'/'grpo'/n).metrics() for n in ('whole', 'killed'))
    assert a.step.tolist() == b.step.tolist() == [0, 1, 2, 3, 4]
    for sign in ('success', 'loss', 'entropy', 'kl', 'val_success', *['frontier'] * bool(change)): assert (a[sign] - b[sign]).abs().max() <= 1e-6, sign
    assert len(Run.load(own_root/'runs'/'grpo'/'killed').manifest['sittings']) == 2


@pytest.mark.slow
def test_tasks_on_demand_in_a_real_shop(own_root):
    "Tasks are made by difficulty from the training families alone; frontiers of all kinds are logged and drawn."
    from shopping_grpo.toy import toy_policy
    toy_policy().save(own_root/'model') # knows nothing of this shop
    given = FAST | dict(env='shoppingbench', size='tiny-en', model=str(own_root/'model'), groups=4, n=2, steps=1, validation_tasks=4, curriculum='adaptive')
    run_stage('run_grpo', given | dict(name='demand', schedule={'top': 3}), quiet=True)
    run = Run.load(own_root/'runs'/'grpo'/'demand')
    signs, kinds = run.metrics().set_index('step').loc[1], ('product', 'knowledge', 'shop', 'voucher')
    assert all(signs[f'frontier_{k}'] == 0 for k in kinds) and signs.frontier == 0 and signs.episodes == 8
    assert run.manifest['config']['recipe']['schedule'] == {'top': 3} and 'frontier_voucher' in (run.path/'curves.svg').read_text()
    for wrong, message in ((dict(train_tasks=5), 'makes its tasks on demand'), (dict(schedule={'top': 30}), 'tasks go up to difficulty 6')):
        with pytest.raises(ShopError, match=message): run_stage('run_grpo', given | dict(name='wrong') | wrong, quiet=True)
