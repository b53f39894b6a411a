# Everything happens in .venv; the first run sets it up, later runs skip what is done.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
ORRERY := $(VENV)/bin/orrery
INSTALL := $(PY) -m pip install --disable-pip-version-check -c constraints.txt

DEMO_TRACE := demo.jsonl
# Two workers on two cores: each keeps to one thread, or they fight over the cores.
PYTEST_ARGS ?= -n 2 --dist loadfile -m "not gpu"

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help app demo test lint format bench bench-peers docs smollm2 clean

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

app: $(VENV)/.ready ## Set up what is missing and open the app in a browser
	$(ORRERY) app

demo: $(VENV)/.ready ## Generate with a real model, write a trace, replay it, check it, draw one step of it
	$(ORRERY) model fetch smollm2-135m
	$(ORRERY) generate --model smollm2-135m --temperature 0 --max-tokens 40 --stop . --trace $(DEMO_TRACE) \
		--max-num-batched-tokens 24 \
		--prompt "The capital of France is Paris. The capital of Italy is" \
		--prompt "An orrery is a mechanical model of the solar system. It shows how the planets" \
		--prompt "Once upon a time, a clockmaker built a small model of the planets, and every evening he"
	$(ORRERY) replay $(DEMO_TRACE)
	$(ORRERY) check $(DEMO_TRACE)
	$(ORRERY) trace $(DEMO_TRACE) --step 2
	@echo "The same run in the browser: $(ORRERY) app $(DEMO_TRACE)"

test: $(VENV)/.ready-dev smollm2 ## Set up what is missing and run every test that needs no GPU
	OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false $(PY) -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.ready-dev ## Style, format, types, and the arrows between packages
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: $(VENV)/.ready-dev ## Mend what ruff can mend by itself
	$(VENV)/bin/ruff check --fix
	$(VENV)/bin/ruff format

bench: $(VENV)/.ready ## Measure the engine beside its peers on this machine, into docs/benchmarks.md
	$(ORRERY) model fetch smollm2-135m
	$(PY) -m engine.bench --docs docs $(BENCH_ARGS)

bench-peers: $(VENV)/.ready ## Install vLLM for CPUs and llama.cpp into .bench/, for make bench
	$(ORRERY) model fetch smollm2-135m
	$(PY) -m engine.bench.install_peers

docs: $(VENV)/.ready ## Regenerate docs/trace.md and docs/trace.schema.json from the event types
	$(PY) -m engine.trace.docs

clean: ## Remove .venv and the caches of the tools
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache *.egg-info build dist

# Where the weights cannot be had, the tests that need them are skipped and say so.
smollm2: $(VENV)/.ready
	@$(ORRERY) model fetch smollm2-135m || echo "The tests that need smollm2-135m will be skipped."

# Debian splits ensurepip off into python3-venv; python3-pip can fill the new environment as well.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Orrery needs Python 3.11 or newer as $(PYTHON); name another one with: make PYTHON=python3.12" >&2; exit 1; }
	@if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then $(PYTHON) -m venv $(VENV); \
	elif $(PYTHON) -m pip --version >/dev/null 2>&1; then \
		$(PYTHON) -m venv --without-pip $(VENV) && $(PYTHON) -m pip --python $(PY) install --quiet pip; \
	else echo "$(PYTHON) has neither ensurepip nor pip; on Debian or Ubuntu: apt install python3-venv" >&2; exit 1; fi
	@touch $@

$(VENV)/.ready: pyproject.toml constraints.txt | $(VENV)/.created
	@echo "Installing Orrery into $(VENV) (the first time takes a few minutes) …"
	@$(INSTALL) -e '.[all]'
	@touch $@

# After .ready, never beside it: two pips at once in one environment trip over each other.
$(VENV)/.ready-dev: pyproject.toml constraints.txt | $(VENV)/.ready
	@echo "Installing the tools for tests and lint …"
	@$(INSTALL) --quiet -e '.[all,dev]'
	@touch $@
