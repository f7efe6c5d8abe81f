# Two commands set up a fresh machine: `make replay` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: install replay test test-all check notebooks clean

install: .venv/installed
replay: install
	$(BIN)/moorage replay night --out out/night

test: .venv/installed-test
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal
test-all: .venv/installed-test
	$(BIN)/python -m pytest -n 2 --dist worksteal
check: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_tidy.py

# The replays and experiments that they read, into out/notebooks/, then each of them in place.
notebooks: .venv/installed-test
	$(BIN)/python notebooks/run.py --measure

clean:
	rm -rf .venv out build *.egg-info

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt -e .
	touch $@
.venv/installed-test: .venv/installed
	$(BIN)/pip install --disable-pip-version-check -q -c constraints.txt -e '.[test]'
	touch $@
