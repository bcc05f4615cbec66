# The two commands: `make reproduce` and `make test`. Both set up .venv by themselves; nothing else is needed but Python 3.11+.
PY ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin

.PHONY: reproduce smoke test test-slow install readme benchmarks notebooks clean

reproduce: .venv/ready            ## the whole pipeline on a CPU, from nothing to reports/index.html: about twenty minutes
	$(BIN)/shopping-grpo reproduce --profile laptop

smoke: .venv/ready                ## every stage in three minutes, the published table measured again
	$(BIN)/shopping-grpo reproduce

test: .venv/ready                 ## package = notebooks, notebooks run, battery passes
	$(BIN)/python tests/exported.py
	$(BIN)/shopping-grpo reproduce --profile smoke >/dev/null
	cd nbs && ../$(BIN)/nbdev-test --n-workers 2
	$(BIN)/python -m pytest

test-slow: .venv/ready            ## the battery at its full sizes
	$(BIN)/python -m pytest -m "slow or not slow"

install: .venv/ready

.venv/ready: constraints.txt pyproject.toml
	@test -n "$(PY)" || { echo "Python 3.11 or newer is needed; name one with: make PY=/path/to/python3.11"; exit 1; }
	$(PY) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,train,serve]"
	$(BIN)/python -m ipykernel install --prefix .venv >/dev/null 2>&1
	touch .venv/ready

readme: .venv/ready               ## README.md from nbs/index.ipynb
	$(BIN)/jupyter nbconvert --log-level WARN --to markdown nbs/index.ipynb --output-dir . --output README.md --TagRemovePreprocessor.remove_input_tags hide_input

benchmarks: .venv/ready           ## measured on this machine; bench_world.py --sizes large needs 2.3 GB of disk and five minutes, bench_gpu.py a GPU
	$(BIN)/python benchmarks/bench_world.py
	$(BIN)/python benchmarks/bench_parity.py --sizes tiny
	$(BIN)/python benchmarks/bench_env.py
	$(BIN)/python benchmarks/bench_eval.py
	$(BIN)/python benchmarks/bench_first.py
	$(BIN)/python benchmarks/bench_sft.py
	$(BIN)/python benchmarks/bench_grpo.py
	$(BIN)/python benchmarks/bench_webshop.py
	$(BIN)/python benchmarks/bench_shoppingbench.py

notebooks: .venv/ready            ## open the notebooks
	$(BIN)/jupyter lab nbs

clean:                            ## what was built; never runs or raw data
	rm -rf .venv data/built build dist *.egg-info
