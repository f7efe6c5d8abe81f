# Two commands set up a fresh machine: `make replay` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
CLIENTS_DIR ?= .clients
# Bytecode is kept whatever the environment says: without it every process compiles all of the
# project, and each of pytest's writes the asserts of all tests anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install replay test test-all test-clients check notebooks clean

install: .venv/installed
replay: install
	$(BIN)/moorage replay night --out out/night

test: .venv/installed-test
	$(BIN)/python -m pytest -m "not slow and not clients" -n 2 --dist worksteal
test-all: .venv/installed-test
	$(BIN)/python -m pytest -m "not clients" -n 2 --dist worksteal
# The real opencode (npm) and Open WebUI (PyPI; 3 GB) against `moorage serve`; what can't be
# installed is said, and its tests are skipped.
test-clients: .venv/installed-test
	$(PYTHON) tests/clients/install.py $(CLIENTS_DIR)
	CLIENTS_DIR=$(CLIENTS_DIR) $(BIN)/python -m pytest -m clients tests/clients
check: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_tidy.py

# The replays and experiments that they read, into out/notebooks/, then each of them in place.
notebooks: .venv/installed-test
	$(BIN)/python notebooks/run.py --measure

clean:
	rm -rf .venv .clients out build *.egg-info

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt -e .
	touch $@
.venv/installed-test: .venv/installed
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt -e '.[test]'
	touch $@
