"""One small world for all tests, built once a session from the notebooks' own package."""
import os
from pathlib import Path
import pytest
from shopping_grpo.generate import generate
from shopping_grpo.search import build_index

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope='session')
def samples():
    "Real samples of published data, where a checkout has them beside it."
    path = Path(os.environ.get('SHOPPING_GRPO_SAMPLES', ROOT.parent/'shared'/'data'))
    if not path.exists(): pytest.skip('the real samples are not here; set SHOPPING_GRPO_SAMPLES to their folder')
    return path


@pytest.fixture(scope='session')
def tiny(tmp_path_factory):
    return generate(tmp_path_factory.mktemp('tiny')/'catalog', 'tiny', workers=1)[0]


@pytest.fixture(scope='session')
def small(tmp_path_factory):
    return generate(tmp_path_factory.mktemp('small')/'catalog', 'small', workers=2)[0]


@pytest.fixture(scope='session')
def tiny_engine(tiny, tmp_path_factory): return build_index(tmp_path_factory.mktemp('index')/'tiny', tiny, workers=1)


@pytest.fixture(scope='session')
def small_engine(small, tmp_path_factory): return build_index(tmp_path_factory.mktemp('index')/'small', small, workers=2)
