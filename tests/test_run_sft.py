"""Stage 35: a collection becomes a model; adapters are merged; a kill in the middle; what it refuses."""
import json, shutil, signal, subprocess, sys, os, time
from pathlib import Path
import pytest, torch
from safetensors.torch import load_file
from shopping_grpo.core import ShopError
from shopping_grpo.sft_local import rename
from shopping_grpo.stage import run_stage
from shopping_grpo.store import Run

ROOT = Path(__file__).resolve().parents[1]
FAST = dict(data='few', hidden=32, layers=1, vocab=700, budget=2048, validation_tasks=4, checks=1, save_every=3)


@pytest.fixture(scope='module')
def own_root(tmp_path_factory):
    "A root with a small collection."
    root = tmp_path_factory.mktemp('root')
    shutil.copytree(ROOT/'nbs', root/'nbs', ignore=shutil.ignore_patterns('.ipynb_checkpoints'))
    shutil.copy(ROOT/'settings.ini', root)
    before = os.environ.get('SHOPPING_GRPO_ROOT')
    os.environ['SHOPPING_GRPO_ROOT'] = str(root)
    run_stage('05', {'tasks': 40}, quiet=True)
    run_stage('25', {'target': 24, 'name': 'few', 'validation': 0.0}, quiet=True)
    yield root
    if before is None: del os.environ['SHOPPING_GRPO_ROOT']
    else: os.environ['SHOPPING_GRPO_ROOT'] = before


def weights(path): return {k: v for p in path.glob('*.safetensors') for k, v in load_file(p).items()}


def test_a_collection_becomes_a_model(own_root):
    run_stage('35', FAST | dict(name='one', renamed=0.5, keep=True), quiet=True)
    run = Run.load(own_root/'runs'/'sft'/'one')
    log = run.metrics()
    assert run.status == 'done' and log.val_success.notna().sum() == 1 and log.lesson.max() == 1 and {'best/model.safetensors', 'last/model.safetensors', 'base/model.safetensors', 'curves.svg'} <= set(run.manifest['outputs'])
    kept = sorted((own_root/'runs'/'sft'/'one'/'checks').iterdir())
    assert [p.name for p in kept] == [f'step-{log.step.max():06d}'] and all(torch.equal(x, y) for x, y in zip(weights(kept[0]).values(), weights(own_root/'runs'/'sft'/'one'/'best').values()))
    base, best = weights(own_root/'runs'/'sft'/'one'/'base'), weights(own_root/'runs'/'sft'/'one'/'best')
    assert all(not torch.equal(best[k], base[k]) for k in base if k.endswith('_proj.weight'))


@pytest.mark.slow
def test_adapters_are_merged(own_root):
    run_stage('35', FAST | dict(name='whole'), quiet=True)
    start = own_root/'runs'/'sft'/'whole'/'best'
    run_stage('35', FAST | dict(name='lora', model=str(start), lora=4, muon=0.0, lr=0.01, steps=6), quiet=True)
    old, new = weights(start), weights(own_root/'runs'/'sft'/'lora'/'best')
    assert old.keys() == new.keys() and all(torch.equal(old[k], new[k]) != k.endswith('_proj.weight') for k in old)


@pytest.mark.slow
def test_a_killed_stage_goes_on(own_root):
    "kill -9 when the first checkpoint is there; the second sitting ends with the weights of an undisturbed run."
    run_stage('35', FAST | dict(name='undisturbed', save_every=2), quiet=True)
    args = [x for k, v in (FAST | dict(name='killed', save_every=2)).items() for x in ('-p', f'{k}={v}')]
    child = subprocess.Popen([sys.executable, '-c', 'from shopping_grpo.cli import main; main()', 'run', '35', *args], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not list((own_root/'runs'/'sft'/'killed').glob('checkpoints/step-*')) and child.poll() is None: time.sleep(.02)
    os.killpg(child.pid, signal.SIGKILL); child.wait()
    assert Run.load(own_root/'runs'/'sft'/'killed').status == 'started'
    run_stage('35', FAST | dict(name='killed', save_every=2), quiet=True)
    a, b = (weights(own_root/'runs'/'sft'/n/'last') for n in ('undisturbed', 'killed'))
    assert all(torch.equal(a[k], b[k]) for k in a) and len(Run.load(own_root/'runs'/'sft'/'killed').manifest['sittings']) == 2


@pytest.mark.slow
@pytest.mark.parametrize('bad,message', [(dict(data='nothing'), 'there is no data set in'), (dict(model='nobody/none'), 'the hub cannot be reached or has no such model'), (dict(lora=4), 'give muon=0 with lora'), (dict(max_length=10), 'rows are longer than max_length=10'), (dict(tracker='excel'), "tracker 'excel' is unknown")])
def test_wrong_parameters_are_one_clear_line(own_root, bad, message):
    with pytest.raises(ShopError, match=message) as e: run_stage('35', FAST | dict(name='bad') | bad, quiet=True)
    assert '\n' not in str(e.value)


@pytest.mark.slow
def test_a_tracker_listens_and_changes_nothing(own_root):
    "The same weights and the same config, named or not; its files are none of the run's outputs, and a finished run is left alone."
    pytest.importorskip('tensorboard', reason='tensorboard is not installed: pip install -e ".[tensorboard]"')
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    for name, tracker in (('alone', ''), ('watched', 'tensorboard')): run_stage('35', FAST | dict(name=name, tracker=tracker), quiet=True)
    alone, watched = (Run.load(own_root/'runs'/'sft'/n) for n in ('alone', 'watched'))
    a, b = (weights(r.path/'last') for r in (alone, watched))
    assert all(torch.equal(a[k], b[k]) for k in a) and alone.manifest['config_digest'] == watched.manifest['config_digest'] and alone.manifest['outputs'].keys() == watched.manifest['outputs'].keys()
    seen, log = EventAccumulator(str(watched.path/'.tensorboard')).Reload(), watched.metrics()
    for sign in ('loss', 'val_success'): assert {e.step: e.value for e in seen.Scalars(sign)} == pytest.approx(log.set_index('step')[sign].dropna().to_dict())
    before = sorted((watched.path/'.tensorboard').iterdir())
    run_stage('35', FAST | dict(name='watched', tracker='tensorboard'), quiet=True)
    assert sorted((watched.path/'.tensorboard').iterdir()) == before and not watched.changed() and not (alone.path/'.tensorboard').exists()


@pytest.mark.slow
def test_a_hub_that_cannot_be_reached_is_one_line(own_root):
    "By the command, as a person would: no trace, and what to do instead."
    done = subprocess.run([Path(sys.executable).parent/'shopping-grpo', 'run', '35', '-p', 'model=Qwen/Qwen3-0.6B', '-p', 'data=few', '-p', 'name=hub'], capture_output=True, text=True, env=os.environ | {'HF_HUB_OFFLINE': '1'})
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and 'Traceback' not in done.stderr + done.stdout and last.startswith('error: stage 35_run_sft failed')
    assert 'model Qwen/Qwen3-0.6B: there is no such folder, and the hub cannot be reached' in last and 'give `tiny`, `smollm2`, or a folder' in last and not (own_root/'runs'/'sft'/'hub').exists()


def test_names_are_dealt_once_a_row():
    rows = [dict(messages=[dict(role='user', content='by Oak'), dict(role='assistant', content='', tool_calls=[dict(function=dict(arguments='{"query": "Oak cup"}'))]), dict(role='tool', content='Oak | Elm | Ash')])] * 40
    out = [json.dumps(r) for r in rename(rows, ['Oak', 'Elm', 'Ash'], 0.5, 0)]
    changed = [r for r in out if 'by Oak' not in r]
    assert 5 < len(changed) < 25 and all((name := r.split('by ')[1][:3]) in r.split('query')[1][:15] for r in changed)
