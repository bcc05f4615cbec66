"Trackers: a run that is killed and resumed is one run in the dashboard, whatever is missing is one line, and whatever breaks does not stop training."
import importlib.util, os, struct, subprocess, sys
from pathlib import Path
import pytest
from shopping_grpo import tracker
from shopping_grpo.core import DataError
from shopping_grpo.tracker import TRACKERS, Tracker, find_tracker

SITTING = '''
import os, sys
from shopping_grpo.tracker import find_tracker
name, path, first, last = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
t = find_tracker(name)('sft/demo', path, dict(training=dict(lr=0.25), lessons=[1, 0]))
for step in range(first, last): t.log(step, loss=step + first / 16, val_success=0.5 if step == 3 else None)
if first == 1 and name in ('tensorboard', 'mlflow'): os._exit(9) # killed; the others keep their last seconds in memory, which is lost then
t.close()
'''

def events(path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    seen = EventAccumulator(str(path)).Reload()
    assert 'lr' in seen.Tensors('config/text_summary')[0].tensor_proto.string_val[0].decode() and [e.step for e in seen.Scalars('val_success')] == [3]
    return {e.step: e.value for e in seen.Scalars('loss')}

def mlflow(path):
    from mlflow import MlflowClient
    client = MlflowClient(path.as_uri())
    run, = client.search_runs([client.get_experiment_by_name('shopping-grpo').experiment_id])
    assert run.info.status == 'FINISHED' and [m.value for m in client.get_metric_history(run.info.run_id, 'val_success')] == [0.5, 0.5]
    return {m.step: m.value for m in client.get_metric_history(run.info.run_id, 'loss')}

def trackio(path):
    from trackio.sqlite_storage import SQLiteStorage
    run, = SQLiteStorage.get_runs('shopping-grpo')
    assert run == (path/'label').read_text()
    return {r['step']: r['loss'] for r in SQLiteStorage.get_logs('shopping-grpo', run)}

def folders(path, pattern, config, number): # of tools that keep one folder a sitting and join them by id
    label, out = (path/'label').read_text(), {}
    sittings = sorted(path.glob(pattern))
    assert len(sittings) == 2 and all(s.name.replace('_', '-').endswith(label) for s in sittings), sittings
    for first, s in zip((1, 3), sittings):
        raw = b''.join(p.read_bytes() for p in s.rglob('*') if p.is_file() and p.suffix in ('.wandb', '.swanlab', config))
        assert all(word in raw for word in (b'val_success', b'lr', b'0.25'))
        out |= {step: step + first / 16 for step in range(1, 7) if number(step + first / 16) in raw}
    return out

def wandb(path): return folders(path, 'wandb/offline-run-*', '', lambda x: str(x).encode())
def swanlab(path): return folders(path, 'run-*', '.yaml', lambda x: struct.pack('<d', x))

READ = dict(tensorboard=events, wandb=wandb, swanlab=swanlab, trackio=trackio, mlflow=mlflow)


@pytest.mark.parametrize('name', TRACKERS)
def test_two_sittings_are_one_run(name, tmp_path, monkeypatch):
    "The first ends behind step 4, the second goes on from the checkpoint of step 2; what the second says counts. Nothing asks for a network or a key."
    if not importlib.util.find_spec(TRACKERS[name].package): pytest.skip(f'{name} is not installed: pip install -e ".[{name}]"')
    for k in [k for k in os.environ if k.startswith(('WANDB_', 'SWANLAB_', 'TRACKIO_', 'MLFLOW_'))]: monkeypatch.delenv(k)
    monkeypatch.setenv('MLFLOW_ALLOW_FILE_STORE', 'true'); monkeypatch.setenv('TRACKIO_DIR', str(tmp_path/'there'))
    for first, last in ((1, 5), (3, 7)):
        done = subprocess.run([sys.executable, '-c', SITTING, name, str(tmp_path/'there'), str(first), str(last)], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode in (0, 9) and 'left behind' not in done.stdout, done.stdout + done.stderr
    assert READ[name](tmp_path/'there') == {1: 1 + 1 / 16, 2: 2 + 1 / 16, **{s: s + 3 / 16 for s in range(3, 7)}}
    assert [p.name for p in tmp_path.iterdir()] == ['there']


class Broken(Tracker):
    package = 'math'
    def __init__(self, *a, at): super().__init__(*a); self.at = at
    def _do(self, what):
        if what == self.at: raise ConnectionError('the dashboard\nis gone')
    def _open(self, step): self._do('open')
    def _send(self, step, numbers): self._do(step)
    def _end(self): self._do('end')

@pytest.mark.parametrize('at', ['open', 2, 'end'])
def test_a_tracker_that_breaks_says_so_once(tmp_path, capsys, at):
    with Broken('sft/demo', tmp_path/'x', {}, at=at) as t:
        for step in (1, 2, 3): t.log(step, loss=0.5)
    said = capsys.readouterr().out
    assert said.count('left behind') == 1 and 'the dashboard is gone' in said and len(said.splitlines()) == 1


def test_what_is_missing_is_one_line(monkeypatch):
    monkeypatch.setattr(tracker.importlib.util, 'find_spec', lambda name: None)
    for name in TRACKERS:
        with pytest.raises(DataError, match=rf'pip install -e "\.\[{name}\]"') as e: find_tracker(name)
        assert '\n' not in str(e.value)


def test_every_tracker_is_an_extra():
    import tomllib
    extras = tomllib.loads((Path(__file__).parents[1]/'pyproject.toml').read_text())['project']['optional-dependencies']
    assert TRACKERS.keys() <= extras.keys()
