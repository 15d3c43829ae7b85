# Everything a newcomer needs: `make demo`, then `make test`. Both set up .venv by themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CODE := src tests examples benchmarks paper scripts docs/conf.py docs/extensions hatch_build.py

# Without bytecode, pytest rewrites every test module anew in each of its processes.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test bench mutants test-gpu test-deploy test-tools fuzz audit release docs screenshots chaos check format clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

# constraints.txt pins torch to a build that also exists for machines without a GPU, and the testbed's parts.
$(STAMP): pyproject.toml paper/pyproject.toml benchmarks/pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dystop needs Python 3.11 or newer; try: make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]' --editable ./paper --editable ./benchmarks
	touch $(STAMP)

demo: $(STAMP) ## DySTop against three rivals on built-in data; ends with a table, figures and a report
	$(BIN)/dystop compare examples/demo.toml --mechanisms dystop,sa-adfl,asydfl,matcha --seeds 1 --out runs --name demo

# Three processes for two cores: many tests wait for a process, a socket or a time-out.
test: $(STAMP) check ## every check and every test
	$(BIN)/python -m pytest --numprocesses 3 --dist worksteal tests src/dystop paper/tests paper/src benchmarks/tests benchmarks/src

bench: $(STAMP) ## speed on this machine beside references measured in the same run, in half a minute
	$(BIN)/dystop bench --quick

docs: $(STAMP) ## the site, into build/site; open build/site/index.html
	$(BIN)/python -m sphinx -W --keep-going -q -j auto -d build/doctrees docs build/site

screenshots: $(STAMP) ## pictures of every page in an installed Chromium, into build/screenshots; fails on errors
	$(BIN)/python scripts/take_screenshots.py --out build/screenshots

chaos: $(STAMP) ## real processes under faults, about an hour; needs Linux, ethtool, nftables and ping
	scripts/own_network.sh $(BIN)/python -m pytest -rs -m chaos tests/chaos tests/studies/executors

mutants: $(STAMP) ## wrong changes to the code, each of which some test must notice
	$(BIN)/python scripts/mutants.py --jobs 3

test-gpu: $(STAMP) ## the back ends on a real GPU against the CPU
	TRITON_INTERPRET=0 $(BIN)/python -m pytest -W default tests/training/backends/test_cuda_device.py

test-deploy: $(STAMP) ## the files under deploy/: each by its own tool, and a fleet from the compose file
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,manifests]'
	$(BIN)/python -m pytest -m 'fleet or not fleet' tests/deploy

test-tools: ## Flower, Weights & Biases, MLflow and Hugging Face data sets, in environments of their own
	test -x build/flower/bin/python || $(PYTHON) -m venv build/flower
	build/flower/bin/python -m pip install --quiet --disable-pip-version-check flwr
	test -x build/tools/bin/python || $(PYTHON) -m venv build/tools
	build/tools/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,wandb,mlflow,huggingface]'
	DYSTOP_FLOWER_PYTHON=$(CURDIR)/build/flower/bin/python build/tools/bin/python -m pytest tests/training/trainers/test_flower.py tests/export tests/data/test_importing.py

# --strict: what the database does not answer for is an error, not a package without advisories.
SECONDS ?= 600
fuzz: $(STAMP) ## mutated bytes for every parser of foreign files and messages; SECONDS=600 SEED=0 TARGETS="trace model"
	PYTHONPATH=tests $(BIN)/python -m fuzz $(TARGETS) --seconds $(SECONDS) --seed $(or $(SEED),0)

audit: build/supply/.installed ## published advisories for the oldest and the locked versions of all dependencies; needs a network
	$(PYTHON) scripts/lower_bounds.py > build/supply/bounds.txt
	build/supply/bin/pip-audit --strict --disable-pip --no-deps --requirement build/supply/bounds.txt
	build/supply/bin/pip-audit --strict --disable-pip --require-hashes --requirement deploy/requirements.txt

# The list of parts (SBOM) is that of an environment which holds the wheel, what it needs and nothing else.
release: build/supply/.installed ## wheels, sdists, their digests and a CycloneDX list of parts, into build/release; needs a network
	rm -rf build/release && mkdir -p build/release
	build/supply/bin/python -m build --outdir build/release
	$(PYTHON) -m venv --clear --without-pip build/parts
	build/supply/bin/python -m pip --python build/parts install --quiet --constraint constraints.txt "$$(ls build/release/*.whl)[testbed]"
	build/supply/bin/cyclonedx-py environment --mc-type library --pyproject pyproject.toml --output-reproducible --output-file build/release/sbom.cdx.json build/parts
	build/supply/bin/python -m build --outdir build/release paper
	build/supply/bin/python -m build --outdir build/release benchmarks
	cd build/release && sha256sum * > SHA256SUMS

build/supply/.installed:
	$(PYTHON) -m venv --clear build/supply
	build/supply/bin/python -m pip install --quiet --disable-pip-version-check build 'cyclonedx-bom>=7.5' pip-audit
	touch $@

check: $(STAMP) ## format, lint, types and import contracts
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## put the code into shape
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

clean: ## remove what can be made again (runs are kept)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
