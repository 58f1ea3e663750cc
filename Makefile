# Gatehouse: `make up` starts everything on this machine, `make test` and `make check` need nothing running.
# PYTHON=python3.12 chooses the interpreter; DETACH=1 lets `make up` return once it is ready.
PY := .venv/bin/python
runtime = sh config/up/python.sh runtime
dev = sh config/up/python.sh dev
WORKERS ?= 2
ARGS ?=

.PHONY: help up down status demo-key clean test check lint types walls cases bench drill settings

help:
	@echo "make up        start everything; Ctrl-C stops it (DETACH=1 returns when ready)"
	@echo "make status    what runs, where, and how it is"
	@echo "make down      stop it from another terminal"
	@echo "make demo-key  a new API key of tenant demo; the old one stops working"
	@echo "make clean     remove .venv and var"
	@echo "make test      all tests (ARGS='-k relay' for some); sets up its own servers"
	@echo "make check     style, types, import walls, migrations, templates, settings table"
	@echo "make cases     which rows of the cases and requirements the tests show"
	@echo "make drill     endurance: long forms of tests, new random inputs, millions of rows"
	@echo "make bench     measure the relay beside others (bench/README.md)"

up:
	@$(runtime) && exec $(PY) manage.py up $(if $(DETACH),--detach)

down status:
	@test -x $(PY) || { echo "gatehouse: nothing was started in this clone yet (make up)." >&2; exit 1; }
	@exec $(PY) manage.py $@

demo-key:
	@test -x $(PY) || { echo "gatehouse: nothing was started in this clone yet (make up)." >&2; exit 1; }
	@exec $(PY) manage.py demo_key

clean:
	@sh config/up/python.sh clean

test:
	@$(dev)
	$(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not drill" $(ARGS)

check: lint types walls
	$(PY) manage.py makemigrations --check --dry-run
	$(PY) manage.py settings_table --check

lint:
	@$(dev)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	.venv/bin/djlint templates --check --lint --quiet

types:
	@$(dev)
	$(PY) -m mypy

walls:
	@$(dev)
	.venv/bin/lint-imports

cases:
	@$(dev)
	@$(PY) -m tests.cases -n $(WORKERS) $(ARGS)

bench:
	@$(dev)
	$(PY) -m bench $(ARGS)

drill:
	@$(dev)
	$(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "slow or drill or hypothesis" --hypothesis-profile drill -o faulthandler_timeout=3600 $(ARGS)
	GATEHOUSE_TEST_AUDIT_ROWS=1000000 GATEHOUSE_TEST_SCHEMA_EXAMPLES=100 $(PY) -m pytest -o faulthandler_timeout=3600 tests/tenants/api/test_audit_api.py tests/test_schema.py

settings:
	@$(dev)
	$(PY) manage.py settings_table
