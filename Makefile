# make demo [FILES="a.mtx ..."]   virtual environment, install, and A @ x beside SciPy or CuPy, on two matrices and FILES
# make test                       the same, and the tests            (PYTEST_ARGS="-k cvr" passes options on)
# make test-slow                  what takes minutes: every instantiation of the kernels, for all architectures; warm-up; lost workers
# make kill-test                  writers of stores killed at every call that changes the disk, and a hundred rounds of two writers
# make gpu-test                   every test on this machine's GPU with $(PYTHON); writes docs/gpu-report/tests.json
# make gpu-sanitize               compute-sanitizer over the small tests; reports and logs in docs/gpu-report/
#                                 (make gpu-memcheck, make gpu-racecheck: with one of its tools alone)
# make bench                      all generated matrices beside the peers    (BENCH_ARGS="--dtype float32 --json out.json");
#                                 without a GPU also those of CVRARRAY_MATRICES, and the pages of docs/benchmarks are written
# make bench-gpu                  this machine's GPU with $(PYTHON), beside cuSPARSE, CuPy and PyTorch; writes docs/benchmarks/gpu.*
#                                 (BENCH_ARGS="--only rmat,fem* --dtype float32" measures less, "--within 120" for so many seconds)
# make bench-unseen               the same on matrices that nothing was fitted to; writes docs/benchmarks/gpu-unseen.*
# make bench-columns              the same of A @ X with 1 to 256 columns; writes docs/benchmarks/gpu-columns.*
#                                 (BENCH_ARGS=--transposed: of A.T @ X; writes docs/benchmarks/gpu-columns-transposed.*;
#                                 BENCH_ARGS='--families 1000': with matrices that nothing was fitted to; gpu-columns-unseen.*)
# make ablate                     what each candidate of gpu/plan.py buys on unseen matrices; writes docs/benchmarks/ablation.*
# make record-gpu WITHIN=1800     all of these and bench-solve, within so many seconds, on an idle machine with a GPU; and what
#                                 the docs take from them
# make bench-ops                  sums, slices, files, A.T @ x ... beside SciPy on a CPU, with one thread and all; writes
#                                 docs/benchmarks/ops.md                    (BENCH_ARGS="--scale small rmat" for a quick look)
# make bench-few                  values in few bytes beside plain ones; writes docs/benchmarks/few-cpu.* or few-gpu.*
# make bench-solve                an iteration of cg beside SciPy's, on a GPU CuPy's and Warp's; writes docs/benchmarks/solve-*
# make bench-gradients            products at stored places, and solves with gradients, beside PyTorch's; writes
#                                 docs/benchmarks/gradients-cpu.md or gradients-gpu.md; PYTHON has PyTorch
# make bench-asv                  asv over the commit that is checked out, results in .asv/results   (ASV_ARGS="--bench Product")
# make bench-check                asv's benchmarks, some of them run once at small size: do they still work?
# make peer-suites                the tests that SciPy, pydata/sparse and Dask ship, against our arrays; writes docs/peer-suites.json
#                                 (PEER_ARGS="--each-once --most 40 -n auto": one kind of array a case, at most 40 cases a suite;
#                                 "--suites arpack --report docs/peer-suites.json": some suites, the others' counts stay)
# make works                      docs/works.md: calls of other libraries that are made, and what came of them
# make fuzz FUZZ_S=600            mutated and forged inputs of every kind for so many seconds; goes on where it stopped
#                                 (build/fuzz.json); what fails stays in tests/regressions   (FUZZ_ARGS="--kinds npz cvra")
# make docs                       the site, every page executed, warnings as errors: docs/_build/html/index.html
# make docs-check                 the site in headless Chromium, 1280 and 400 pixels wide, light and dark: nothing overflows, no
#                                 picture is missing, axe-core finds no serious fault; screenshots in docs/_build/screenshots
# make wheel-check                an sdist and its wheel, checked; installed in an empty environment, and cvrarray bench run from there
# make house                      the size of the code and what else is counted, beside the goals
# make lint, make format, make clean
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# worksteal: neighbours, which share compiled code, run in one worker.
PYTEST_ARGS ?= -n auto --maxprocesses 8 --dist worksteal
COVERAGE ?=
# A worker a core, at most 16, where pytest-xdist is installed. loadgroup: tests that fill a GPU's memory run one at a time.
GPU_WORKERS ?= $(if $(shell $(PYTHON) -c 'import xdist; print(1)' 2>/dev/null),-n auto --maxprocesses 16 --dist loadgroup)
GPU_PYTEST_ARGS ?=
BENCH_ARGS ?=
ASV_ARGS ?=
FUZZ_S ?= 60
FUZZ_ARGS ?=
ASV_MACHINE ?= local
FILES ?=

# The CuPy that fits the driver: CUDA 13 needs driver 580, CUDA 12 needs 525. Empty where there is no NVIDIA driver.
DRIVER := $(shell nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 | cut -d . -f 1 | grep -E '^[0-9]+$$')
CUDA := $(if $(DRIVER),$(shell if [ $(DRIVER) -ge 580 ]; then echo cuda13; elif [ $(DRIVER) -ge 525 ]; then echo cuda12; fi))
comma := ,

.PHONY: demo house test test-slow peer-suites works kill-test gpu-test gpu-sanitize gpu-memcheck gpu-racecheck bench bench-gpu bench-unseen bench-columns ablate record-gpu bench-ops bench-few bench-solve bench-gradients bench-asv bench-check fuzz docs docs-check wheel-check lint format clean

demo: $(VENV)/.installed-demo$(if $(CUDA),-$(CUDA))
	$(BIN)/cvrarray bench elasticity rmat --repeats 7 $(FILES)

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest $(COVERAGE) $(PYTEST_ARGS)

test-slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest --slow -m slow $(PYTEST_ARGS)

# Nothing of theirs lies in the repository: the tests are those of the installed wheels.
peer-suites: $(VENV)/.installed-test
	$(BIN)/python -m pytest -c tests/peers/pytest.ini --rootdir tests/peers tests/peers -q $(or $(PEER_ARGS),--report docs/peer-suites.json)

works: $(VENV)/.installed-test
	$(BIN)/python docs/works.py

kill-test: $(VENV)/.installed-test
	CVRARRAY_KILL_POINTS=all $(BIN)/python -m pytest -s tests/test_store_kills.py tests/test_store_writers.py

# With "=": a report that is there already would else be taken for the path of tests, and tests/ and its options not be found.
gpu-test:
	@mkdir -p docs/gpu-report
	$(PYTHON) -m pytest --require-gpu --gpu-report=docs/gpu-report/tests.json $(GPU_WORKERS) $(GPU_PYTEST_ARGS)

# CuPy's own kernels are left out: its scan behind nonzero() trips racecheck.
gpu-sanitize: gpu-memcheck gpu-racecheck
gpu-memcheck gpu-racecheck: gpu-%:
	@mkdir -p docs/gpu-report
	compute-sanitizer --tool $* --kernel-regex-exclude kns=cupy_ --target-processes all --error-exitcode 1 \
	  --log-file docs/gpu-report/$*.log \
	  $(PYTHON) -m pytest --unpooled --require-gpu --gpu-report=docs/gpu-report/$*.json -m small -q \
	    $(GPU_WORKERS) $(GPU_PYTEST_ARGS)
	tail -n 1 docs/gpu-report/$*.log

# On a CPU: at 20 million nonzeros instead of 30 to 50, so that it takes minutes.
ON_CPU := --device cpu --scale medium --threads 1,all --repeats 11 --rounds 3 --report docs/benchmarks

bench: $(VENV)/.installed-demo-$(or $(CUDA),bench)
	$(BIN)/python -m asv_bench.record.products $(if $(CUDA),--scale full,$(ON_CPU)) $(BENCH_ARGS) $(FILES)

# On a GPU NVIDIA's Warp takes part where it is installed.
bench-solve: $(VENV)/.installed-demo-$(or $(CUDA),bench)
	$(BIN)/python -m asv_bench.record.solve --report docs/benchmarks $(BENCH_ARGS) $(FILES)

bench-gpu:
	$(PYTHON) -m asv_bench.record.gpu --report docs/benchmarks $(BENCH_ARGS)

bench-unseen:
	$(PYTHON) -m asv_bench.record.gpu --report docs/benchmarks --families 1000 --repeats 9 $(BENCH_ARGS)

bench-columns:
	$(PYTHON) -m asv_bench.record.gpu_columns --report docs/benchmarks $(BENCH_ARGS)

ablate:
	$(PYTHON) -m asv_bench.record.ablate --report docs/benchmarks $(BENCH_ARGS)

# Each has a share of the seconds, within which it begins its last matrix; solves take two minutes.
WITHIN ?= 1800
SHARE = --within $$(( ($(WITHIN) - 150) * $(1) / 100 ))

record-gpu:
	$(PYTHON) -m asv_bench.record.solve --report docs/benchmarks
	$(MAKE) bench-gpu BENCH_ARGS="$(call SHARE,40)"
	$(MAKE) bench-columns BENCH_ARGS="$(call SHARE,30)"
	$(MAKE) bench-columns BENCH_ARGS="--transposed $(call SHARE,15)"
	$(MAKE) bench-unseen BENCH_ARGS="$(call SHARE,15)"
	PYTHONPATH=. $(PYTHON) docs/recorded.py

bench-ops: $(VENV)/.installed-bench
	$(BIN)/python -m asv_bench.record.ops --report docs/benchmarks $(BENCH_ARGS)

bench-gradients:
	$(PYTHON) -m asv_bench.record.gradients --report docs/benchmarks $(BENCH_ARGS)

bench-few: $(VENV)/.installed-demo-$(or $(CUDA),bench)
	$(BIN)/python -m asv_bench.record.few_values --report docs/benchmarks $(BENCH_ARGS) $(FILES)

# asv takes no PYTHONPATH but its own, and asks for a machine's name once: not the host's, which is nobody's business.
ASV := cd asv_bench && ASV_PYTHONPATH="$(CURDIR)" $(abspath $(BIN))/asv
ASV_HERE := --python=same --machine $(ASV_MACHINE) --show-stderr

bench-asv: $(VENV)/.installed-bench-demo
	$(ASV) machine --yes --machine $(ASV_MACHINE)
	$(ASV) run $(ASV_HERE) --set-commit-hash $$(git rev-parse HEAD) $(ASV_ARGS)

# One benchmark of each kind, on one matrix.
ASV_SAMPLE := (Product|ProductMatrix|ProductTransposed)[.]time_call[(].poisson7.*float32.*(cvr|scipy)|HostTime|Import[.]timeraw_import$$

bench-check: $(VENV)/.installed-dev
	$(ASV) machine --yes --machine $(ASV_MACHINE)
	$(ASV) check --python=same
	CVRARRAY_BENCH_SCALE=small && export CVRARRAY_BENCH_SCALE && $(ASV) run --quick $(ASV_HERE) --bench '$(ASV_SAMPLE)' $(ASV_ARGS)

# The state holds how far each kind has come; without it a run begins anew, with the same inputs.
fuzz: $(VENV)/.installed-test
	@mkdir -p build
	PYTHONPATH=tests $(BIN)/python -m fuzz --seconds $(FUZZ_S) --state build/fuzz.json $(FUZZ_ARGS)

# -E: every page is executed again, as what it shows may have changed though its text has not. -j: two pages at a time.
docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -E -W --keep-going -q -j 2 -b html docs docs/_build/html

docs-check: $(VENV)/.installed-browser | docs/_build/html/index.html
	$(BIN)/python docs/check.py docs/_build/html docs/_build/screenshots

docs/_build/html/index.html:
	$(MAKE) docs

# From an empty folder, so that nothing of the repository is imported; at a size that takes seconds.
wheel-check: $(VENV)/.installed-dev
	rm -rf build/wheel-check && mkdir -p build/wheel-check/elsewhere
	$(BIN)/python -m build --outdir build/wheel-check .
	$(BIN)/python -m twine check --strict build/wheel-check/*.whl build/wheel-check/*.tar.gz
	$(BIN)/check-wheel-contents build/wheel-check/*.whl
	$(BIN)/python tests/wheel_contents.py build/wheel-check/*.whl
	$(PYTHON) -m venv build/wheel-check/venv
	build/wheel-check/venv/bin/python -m pip install --quiet --disable-pip-version-check "$$(ls build/wheel-check/*.whl)[demo]"
	cd build/wheel-check/elsewhere && env -u PYTHONPATH ../venv/bin/cvrarray bench --scale small --repeats 3 elasticity rmat
	cd build/wheel-check/elsewhere && env -u PYTHONPATH ../venv/bin/python -m cvrarray --version

house: $(VENV)/.installed-test
	PYTHONPATH=.:tests $(BIN)/python tests/house.py

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis docs/_build docs/jupyter_execute $(VENV)/.installed-*

# A stamp for each set of extras (dashes part them) and for each of its extras, so that a second run installs nothing.
$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(subst -,$(comma),$*)]'
	@touch $@ $(patsubst %,$(VENV)/.installed-%,$(subst -, ,$*))

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "cvrarray needs Python 3.11 or newer, and $(PYTHON) is not. Name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -f $@; \
	  echo "No virtual environment in $(VENV): on Debian and Ubuntu, apt install python3-venv" >&2; exit 1; }
