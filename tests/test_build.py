"""Builds under fire: killed for real, two at once, foreign files in the way, damage, orphans; and what the command line says then."""
import json, os, signal, subprocess, sys, time
from pathlib import Path
import pytest
from shopping_grpo.catalog import Catalog
from shopping_grpo.core import DataError, hold
from shopping_grpo.generate import generate
from shopping_grpo.search import Tantivy, build_index

BUILD = """import sys
from shopping_grpo import core
from shopping_grpo.generate import generate
from shopping_grpo.search import build_index
core.hold(sys.argv[1]) # no guard: workers do not import the script
c, _ = generate(sys.argv[1] + '/catalog', 'small', workers=2)
print('made', flush=True)
build_index(sys.argv[1] + '/index', c, workers=2)
"""


@pytest.fixture
def build(tmp_path):
    (tmp_path/'build.py').write_text(BUILD)
    return lambda: subprocess.Popen([sys.executable, str(tmp_path/'build.py'), str(tmp_path/'small')], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def children(parent):
    "Processes below one, by /proc."
    below = {}
    for p in Path('/proc').glob('[0-9]*'):
        try: below.setdefault(int((p/'stat').read_text().rsplit(')', 1)[1].split()[1]), []).append(int(p.name))
        except OSError: pass # it has just ended
    out = below.get(parent, [])
    return out + [g for c in out for g in children(c)]


def test_a_build_that_is_killed_and_killed_again_ends_like_an_undisturbed_one(build, tmp_path, small, small_engine):
    "Real SIGKILLs of the main process at several moments; its workers leave, and the next start goes on and sweeps up."
    for seconds in (0.6, 1.2, 1.8, 2.4):
        p = build()
        time.sleep(seconds)
        below = children(p.pid)
        p.kill(); p.communicate()
        for _ in range(100):
            if not any(Path(f'/proc/{c}').exists() and 'Z' not in Path(f'/proc/{c}/stat').read_text().rsplit(')', 1)[1].split()[0] for c in below): break
            time.sleep(0.1)
        else: pytest.fail('workers outlived their parent')
    out, err = (p := build()).communicate(timeout=120)
    assert p.returncode == 0, err
    catalog = Catalog(tmp_path/'small'/'catalog')
    assert catalog.verify() == small.digest and sorted(x.name for x in (tmp_path/'small').iterdir()) == ['.lock', 'catalog', 'index']
    engine = Tantivy(tmp_path/'small'/'index', catalog)
    for r in range(0, 20_000, 1999): assert engine.search(small.at(r).title) == small_engine.search(small.at(r).title)


def test_two_builds_of_one_folder(build):
    "The second is told so at once."
    one, two = build(), build()
    results = [p.communicate(timeout=120) + (p.returncode,) for p in (one, two)]
    assert sorted(r[2] for r in results) == [0, 1]
    assert 'another process is building small' in next(r[1] for r in results if r[2])


def test_files_of_others_are_not_replaced(tiny, tmp_path):
    for make in (lambda p: build_index(p, tiny, workers=1), lambda p: generate(p, 'tiny', workers=1)):
        path = tmp_path/'mine'
        path.mkdir(exist_ok=True); (path/'thesis.txt').write_text('years of work')
        with pytest.raises(DataError, match='holds other files'): make(path)
        assert (path/'thesis.txt').read_text() == 'years of work'


@pytest.mark.parametrize('text', ['', '[]', '{}', '{"format": 2', 'null'])
def test_a_damaged_catalogue_is_made_anew(tmp_path, tiny, text):
    generate(tmp_path/'c', 'tiny', workers=1)
    (tmp_path/'c'/'catalog.json').write_text(text)
    with pytest.raises(DataError, match='catalog.json is damaged'): Catalog(tmp_path/'c')
    assert generate(tmp_path/'c', 'tiny', workers=1)[1] and Catalog(tmp_path/'c').digest == tiny.digest


@pytest.mark.parametrize('name', ['products.arrow', 'words.arrow'])
def test_rubbish_of_the_right_size(tmp_path, name):
    generate(tmp_path/'c', 'tiny', workers=1)
    (tmp_path/'c'/name).write_bytes(os.urandom((tmp_path/'c'/name).stat().st_size))
    with pytest.raises(DataError, match='damaged'): Catalog(tmp_path/'c')


@pytest.mark.parametrize('name', ['meta.json', 'engine.json', '.term', '.idx'])
def test_a_damaged_index_refuses(tmp_path, tiny, name):
    build_index(tmp_path/'i', tiny, workers=1)
    path = next(p for p in (tmp_path/'i').iterdir() if p.name.endswith(name))
    path.write_bytes(path.read_bytes()[:10])
    with pytest.raises(DataError, match='data build'): Tantivy(tmp_path/'i', tiny)


def test_hold_is_for_one_process(tmp_path):
    hold(tmp_path/'f'); hold(tmp_path/'f')
    code = f"from shopping_grpo.core import hold\ntry: hold({str(tmp_path/'f')!r})\nexcept Exception as e: print(e)"
    assert 'another process is building f' in subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout
    (tmp_path/'file').write_text('x')
    with pytest.raises(DataError, match='cannot be used as a folder'): hold(tmp_path/'file')


@pytest.fixture
def shell(tmp_path, monkeypatch):
    monkeypatch.setenv('SHOPPING_GRPO_ROOT', str(tmp_path))
    (tmp_path/'settings.ini').write_text('[paths]\ndata = data\nruns = runs\n')
    (tmp_path/'items.json').write_text(json.dumps([dict(asin='1', title='手机', pricing=[10.0]), dict(asin='1', title='手机', pricing=[10.0])]))
    return lambda *a: subprocess.run([Path(sys.executable).parent/'shopping-grpo', *a], capture_output=True, text=True, cwd=tmp_path, env=os.environ | {'COLUMNS': '200'})


def test_import_says_what_it_did_and_replaces_nothing_unasked(shell, tmp_path):
    first = shell('data', 'import', 'items.json', '--name', 'mine', '--format', 'shopsim')
    assert first.returncode == 0 and 'read 2, kept 1' in first.stdout, first.stderr
    again = shell('data', 'import', 'items.json', '--name', 'mine')
    assert again.returncode == 1 and '--replace' in again.stderr
    (tmp_path/'data'/'built'/'mine'/'tasks').mkdir()
    assert shell('data', 'import', 'items.json', '--name', 'mine', '--replace').returncode == 0 and not (tmp_path/'data'/'built'/'mine'/'tasks').exists()
    for name in ('', '..', '../../escape', '.hidden', 'a/b'): assert 'cannot name a catalogue' in shell('data', 'import', 'items.json', '--name', name).stderr
    assert [p.name for p in (tmp_path/'data'/'built').iterdir()] == ['mine']
    assert 'no run nope' in shell('compare', 'nope', 'nada').stderr
