# Everything runs in .venv, made from requirements.lock. `make demo` and `make test` need nothing but Python and gcc.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
PRESET := h200-llama31-8b-accept-1.8-illustrative
DEMO := results/demo


.PHONY: demo test soak soak-streams soak-hour fuzz test-sglang-full lint format lock clean

# The main job on simulated servers. What people read goes to standard error; the last line on standard output is JSON.
demo: $(INSTALLED)
	@rm -rf $(DEMO)
	@$(BIN)/specpivot sweep --sim $(PRESET) --variants baseline,eagle3,forced_off --concurrency 1,4,16,64 \
	  --repeats 3 --warmup 1 --duration 1.5 --random-range-ratio 0.5 --out $(DEMO) >/dev/null || [ $$? = 3 ]
	@$(BIN)/specpivot recommend $(DEMO) >$(DEMO)/answer.jsonl || [ $$? = 3 ]
	@$(BIN)/specpivot export $(DEMO) --format sglang -o $(DEMO)/flags.sh
	@$(BIN)/specpivot report $(DEMO) >/dev/null
	@tail -n 1 $(DEMO)/answer.jsonl

# The real SGLang is installed under ~/.cache/specpivot at the first run: four releases, some minutes.
test: $(INSTALLED)
	$(BIN)/python -m pytest --ignore tests/sglang_cpu -m "not soak"
	$(BIN)/python -m pytest -m sglang

soak: $(INSTALLED)
	$(BIN)/python -m pytest --ignore tests/sglang_cpu -m soak

# Each takes what it needs: MINUTES of load, SECONDS for each reader. Their last line is one JSON document.
soak-streams: $(INSTALLED)
	$(BIN)/python -m tests.soak_streams $(or $(MINUTES),10)

soak-hour: $(INSTALLED)
	$(BIN)/python -m tests.soak_commands $(or $(MINUTES),60)

fuzz: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check atheris==3.0.0 schemathesis==4.32.5
	for reader in config dataset trace preset weights policy manifest levels requests recommendation stream response \
	  server_info; do echo "== $$reader"; $(BIN)/python -m tests.fuzz_readers $$reader $(or $(SECONDS),30) || exit 1; done
	$(BIN)/python -m tests.fuzz_service

test-sglang-full: $(INSTALLED)
	$(BIN)/python -m pytest -m sglang_full

lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock:
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --no-annotate \
	  --group dev pyproject.toml -o requirements.lock

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info < (3, 14); \
	  sys.exit(None if ok else "SpecPivot needs Python 3.11 to 3.13: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
