# Every verb sets up what it needs in .venv and then does one thing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PEERS := .venv-peers
WORKERS ?= 2
# Tests start hundreds of processes: each would compile the whole package where bytecode is not kept.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup demo test lint bench soak docs clean

setup: $(READY)

$(READY): pyproject.toml requirements/dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $(READY)

demo: setup           ## an agent is killed while it pays, and pays once
	@$(BIN)/holdfast demo

lint: setup           ## style, security, types, layers, async twins
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tools/generate_aio.py --check

test: lint            ## lint and every behaviour, at test volume
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

soak: setup           ## the same behaviours at the volumes that wear things out
	HOLDFAST_SCALE=soak $(BIN)/pytest -n $(WORKERS) --dist worksteal --durations=15

# Peers of the benchmark need other releases than development does, so they have an environment of their own.
$(PEERS)/.ready: requirements/peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements/peers.txt \
		&& touch $(PEERS)/.ready || echo "Peers are missing: holdfast is measured without them."

bench: setup $(PEERS)/.ready  ## ratios against the raw limit and peers; writes bench/results.json
	$(BIN)/python -m bench
	$(BIN)/python docs/generate.py

docs: setup           ## the documentation as a site
	$(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) $(PEERS) site build dist
