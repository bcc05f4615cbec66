"""The repository itself: numbering, clean notebooks, parameters that arrive, light imports, one-line errors."""
import json, os, re, subprocess, sys
from pathlib import Path
import nbformat, pytest
from shopping_grpo.core import DataError
from shopping_grpo.stage import defaults, parse_parameters, run_stage, stages

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted(p for p in (ROOT/'nbs').rglob('*.ipynb') if '.ipynb_checkpoints' not in p.parts)
SECRET = re.compile(r'sk-[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16}|ghp_[A-Za-z0-9]{30,}|hf_[A-Za-z0-9]{30,}|-----BEGIN [A-Z ]*PRIVATE KEY')
PLACE = re.compile(r'(?<![\w.])/(?:home|root|Users|work|tmp|mnt|opt)/[\w.-]+')


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook(path):
    "N-4, N-5: numbers tell library from stage; no absolute path, secret or huge output; small exported cells, enough prose."
    nb = nbformat.read(path, 4)
    nbformat.validate(nb)
    code = [c.source for c in nb.cells if c.cell_type == 'code']
    exports = [s for s in code if re.search(r'^#\| export', s, re.M)]
    stage = bool(re.match(r'\d[5-9]_', path.stem))
    if re.match(r'\d\d', path.stem) or path.parent.name == 'envs':
        assert bool(exports) != stage and any('#| default_exp' in s for s in code) != stage
    if stage: assert defaults(path), 'a stage has parameters with defaults'
    if path.parent.name == 'guide': assert not exports and sum(c.cell_type == 'markdown' for c in nb.cells) >= 0.3 * len(nb.cells) and 'assert ' in ''.join(code), 'a chapter explains, shows and checks'
    text = path.read_text(encoding='utf-8')
    assert not SECRET.search(text)
    for c in nb.cells:
        assert not PLACE.search(c.source), PLACE.search(c.source)[0]
        for o in c.get('outputs', []):
            shown = json.dumps(o, ensure_ascii=False)
            assert len(shown) < 100_000 and not PLACE.search(o.get('text', '') + str(o.get('data', {}).get('text/plain', ''))), shown[:200]
            assert o.output_type != 'error'
    if exports and not stage: assert sum(c.cell_type == 'markdown' for c in nb.cells) >= 0.25 * len(nb.cells)


def test_modules_are_small():
    long = {p.name: n for p in (ROOT/'shopping_grpo').rglob('*.py') if p.name != '_modidx.py' and (n := len(p.read_text(encoding='utf-8').splitlines())) > 440}
    assert not long


def test_nothing_heavy_at_import():
    "Reading and playing stays light: no torch, no papermill, no Java, and no catalogue is opened."
    code = "import sys, shopping_grpo.cli, shopping_grpo.rollout; print([m for m in ('torch', 'transformers', 'papermill', 'matplotlib', 'jnius', 'IPython') if m in sys.modules])"
    assert subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout.strip() == '[]'


def test_configuration_keeps_the_parameters_tag():
    "N-2: the key that nbdev-clean needs, and the tag in every stage notebook."
    import tomllib
    keys = tomllib.loads((ROOT/'pyproject.toml').read_text())['tool']['nbdev']['allowed_cell_metadata_keys']
    assert 'tags' in keys and all(defaults(p) for p in stages().values())


def test_nbdev_clean_keeps_the_tag(tmp_path):
    "The real command on a copy of a stage notebook, in a repository configured like this one."
    (tmp_path/'nbs').mkdir(); (tmp_path/'shopping_grpo').mkdir()
    (tmp_path/'shopping_grpo'/'__init__.py').write_text('__version__ = "0"')
    (tmp_path/'pyproject.toml').write_text((ROOT/'pyproject.toml').read_text())
    copy = tmp_path/'nbs'/'05_build_data.ipynb'
    copy.write_text((ROOT/'nbs'/'05_build_data.ipynb').read_text())
    subprocess.run([Path(sys.executable).parent/'nbdev-clean'], cwd=tmp_path, check=True)
    assert defaults(copy) == defaults(ROOT/'nbs'/'05_build_data.ipynb')


def test_a_lost_tag_is_an_error(tmp_path):
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell('n = 1')])
    nbformat.write(nb, tmp_path/'x.ipynb')
    with pytest.raises(DataError, match="needs exactly one"): defaults(tmp_path/'x.ipynb')


@pytest.fixture
def own_root(tmp_path, monkeypatch):
    "A root with the notebooks of this repository and folders of its own."
    (tmp_path/'nbs').symlink_to(ROOT/'nbs')
    (tmp_path/'settings.ini').write_text((ROOT/'settings.ini').read_text())
    monkeypatch.setenv('SHOPPING_GRPO_ROOT', str(tmp_path))
    return tmp_path


def test_a_parameter_arrives_in_the_run(own_root):
    "N-3: a seed that is not the default is found in the catalogue that the executed notebook built."
    out = run_stage('05', {'seed': 77, 'languages': 'en'}, quiet=True)
    origin = json.loads((own_root/'data'/'built'/'tiny'/'catalog'/'catalog.json').read_text())['origin']
    assert origin['seed'] == 77 and origin['languages'] == ['en']
    again = nbformat.read(run_stage('05', {'seed': 77, 'languages': 'en'}, 'again', quiet=True), 4)
    said = ''.join(o.get('text', '') for c in again.cells for o in c.get('outputs', []))
    assert said.count('already there, nothing to do') == 3 and out.name == 'notebook.ipynb'


def test_a_parameter_arrives_in_every_stage(own_root):
    "N-3: one value that is not the default for each stage, read back from what the stage wrote."
    run_stage('05', {'tasks': 12}, quiet=True)
    assert json.loads((own_root/'data'/'built'/'tiny'/'tasks'/'shopsim.json').read_text())['n'] == 12
    run_stage('15', {'n': 11, 'name': 'eleven'}, quiet=True)
    assert json.loads((own_root/'runs'/'audit_envs'/'eleven'/'manifest.json').read_text())['config']['n'] == 11
    run_stage('55', {'n': 5, 'policies': 'oracle,rule,buy-first,do-nothing', 'name': 'five'}, quiet=True)
    manifests = {p.parent.name: json.loads(p.read_text()) for p in (own_root/'runs'/'eval').glob('*/manifest.json')}
    assert set(manifests) == {'five-oracle', 'five-rule', 'five-buy-first', 'five-do-nothing'}
    assert all(m['config']['n'] == 5 and m['counts']['planned'] == 5 and m['status'] == 'done' for m in manifests.values())
    run_stage('56', {'runs': 'five-*', 'name': 'fifth'}, quiet=True)
    evidence = json.loads((own_root/'runs'/'judge'/'fifth'/'manifest.json').read_text())
    assert evidence['config']['runs'] == 'five-*' and set(evidence['parents']) == {f'eval/{n}' for n in manifests} and {'panels.csv', 'panel_means.csv', 'rubric_items.csv'} < set(evidence['outputs'])
    assert len((own_root/'data'/'rubrics'/'tiny'/'shopsim-test.jsonl').read_text().splitlines()) == 5
    run_stage('65', {'runs': 'five-*', 'title': 'A title of its own', 'figures': False}, quiet=True)
    assert 'A title of its own' in (own_root/'reports'/'index.html').read_text(encoding='utf-8')
    run_stage('95', {'runs': 'five-*', 'publish': True}, quiet=True)
    assert {r['n'] for r in json.loads((own_root/'reports'/'published.json').read_text())['rows']} == {5}


def test_a_failed_stage_is_one_line_and_no_result(own_root):
    from shopping_grpo.core import ShopError
    with pytest.raises(ShopError, match=r"^stage 05_build_data failed in cell \d+: DataError: size 'huge' is unknown; choose one of [^\n]*$"): run_stage('05', {'size': 'huge'}, 'bad', quiet=True)
    assert [p.name for p in (own_root/'runs'/'build_data'/'bad').iterdir()] == ['failed.ipynb']


@pytest.mark.parametrize('given, message', [('size', 'name=value'), ('sise=small', "no parameter 'sise'"), ('workers=two', 'type int'), ('seed=1.5', 'type int')])
def test_parameters_are_checked(given, message):
    with pytest.raises(DataError, match=message): parse_parameters(stages()['05_build_data'], [given])


@pytest.mark.parametrize('args, code, message', [(['doctor'], 0, 'tantivy'), (['run', 'magic'], 1, "no stage 'magic'"), (['data', 'verify', 'nowhere'], 1, 'catalog.json is missing'),
    (['data', 'build', '-p', 'x=1'], 1, "no parameter 'x'"), (['--help'], 0, 'doctor')])
def test_command_line(args, code, message, own_root):
    "Errors are one line on stderr with exit code 1, without a trace."
    r = subprocess.run([Path(sys.executable).parent/'shopping-grpo', *args], capture_output=True, text=True, env=os.environ | {'COLUMNS': '200'})
    assert r.returncode == code and message in r.stdout + r.stderr and 'Traceback' not in r.stderr
    if code: assert len(r.stderr.strip().splitlines()) == 1


def test_readme_is_the_index_notebook():
    r = subprocess.run([sys.executable, '-m', 'nbconvert', '--log-level', 'ERROR', '--to', 'markdown', '--stdout', str(ROOT/'nbs'/'index.ipynb'), '--TagRemovePreprocessor.remove_input_tags', 'hide_input'], capture_output=True, text=True, check=True)
    assert r.stdout.strip() == (ROOT/'README.md').read_text(encoding='utf-8').strip(), 'run make readme'
