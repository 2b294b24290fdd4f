PYTHON ?= python3
export PYTHON
unexport PYTHONDONTWRITEBYTECODE  # or every process, and tests start hundreds, compiles all that it imports
JOBS ?= 2
BIN := .venv/bin
SERVE := .venv/.serve
DEV := .venv/.dev
BROWSER := tests/gateway_page/node_modules/.package-lock.json
ORACLE := .venv/.oracle
TOOLS := .venv/.tools
CHECKED := src tests export client perf model_repository docker

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev demo serve train train-draw export check-tensorrt check-deploy test-gateway test-gpu eval eval-draw configs lint format types test test-fast oracle docs-plots perf-engine perf-storm perf-prefix perf-draw curve-draw perf perf-peers curve-ask replay soak perf-gateway probe-caches lock clean clean-all

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' Makefile

$(SERVE): requirements.lock tools/environment
	@tools/environment requirements.lock --no-deps
	@touch $@

$(DEV): $(SERVE) requirements-dev.lock
	@tools/environment requirements-dev.lock
	@touch $@

$(ORACLE): $(DEV) requirements-oracle.lock
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile --no-deps --upgrade \
		--target .venv/torchvision -r requirements-oracle.lock
	@touch $@

$(TOOLS): $(DEV) requirements-tools.lock tools/helm
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile --no-deps --upgrade \
		--target .venv/tools -r requirements-tools.lock
	@tools/helm
	@touch $@

setup: $(SERVE)  ## Make .venv with all that serving needs (no torch)
setup-dev: $(DEV)  ## Add torch, transformers and the test tools to .venv

demo: $(SERVE)  ## Start a server, ask about three pictures, draw one, print usage and stage times, stop
	@$(BIN)/proteus demo

serve: $(SERVE)  ## Serve deployments/demo.toml, or DEPLOYMENT=FILE, until Ctrl-C; page and OpenAI API on port 8090
	@$(BIN)/proteus serve --gateway-port 8090 $(if $(DEPLOYMENT),--deployment $(DEPLOYMENT))

train: $(DEV)  ## Train the demo checkpoint on drawn pictures; goes on where it was stopped
	@$(BIN)/python -m export.train

train-draw: $(DEV)  ## Train the drawing checkpoint on the drawn world; goes on where it was stopped
	@$(BIN)/python -m export.train_draw

eval: $(DEV)  ## Accuracy of the demo checkpoint by kind of question
	@$(BIN)/python -m export.train.evaluate checkpoints/demo

eval-draw: $(DEV)  ## What the drawing checkpoint gets right, told by rules from its pictures
	@$(BIN)/python -m export.train_draw.evaluate checkpoints/draw

export: $(DEV)  ## Checkpoint to ONNX: CHECKPOINT=FOLDER [OUT=FOLDER] [TARGET=tensorrt|torch]
	@test -n "$(CHECKPOINT)" || { echo "proteus: say which: make export CHECKPOINT=FOLDER [OUT=FOLDER]" >&2; exit 2; }
	@$(BIN)/python -m export $(CHECKPOINT) $(if $(OUT),--out $(OUT)) $(if $(TARGET),--target $(TARGET))

check-tensorrt: $(DEV)  ## Build every graph with its profiles by TensorRT for RTX, at demo and at LLaVA/SD size; no GPU needed
	@$(BIN)/python -m export.tensorrt_check

check-deploy: $(TOOLS)  ## Lint images and Compose files, render and check the Helm chart; no engine or cluster needed
	@$(BIN)/python -m pytest -q tests/docker

test-gateway: $(DEV) $(BROWSER)  ## The gateway by OpenAI's SDKs for Python and JavaScript, curl, a browser and a long fuzz; needs node 20
	@$(BIN)/python -m pytest tests/gateway tests/server -k "gateway"
	@PROTEUS_FUZZ_EXAMPLES=200 $(BIN)/python -m pytest tests/gateway/test_fuzz.py
	@$(BIN)/python tests/gateway_page/run

$(BROWSER): tests/gateway_page/package-lock.json
	@npm ci --prefix tests/gateway_page --ignore-scripts --no-audit --no-fund

test-gpu: $(DEV)  ## Tests that need an NVIDIA GPU, with TensorRT and TensorRT-LLM where they are installed
	@$(BIN)/python -m pytest -m gpu

configs: $(SERVE)  ## Write every config.pbtxt from deployments/demo.toml
	@$(BIN)/python -m proteus.configs deployments/demo.toml

lint: $(DEV)  ## Check style and format
	@$(BIN)/ruff check $(CHECKED) && $(BIN)/ruff format --check $(CHECKED)

format: $(DEV)  ## Write style fixes and format
	@$(BIN)/ruff check --fix $(CHECKED); $(BIN)/ruff format $(CHECKED)

types: $(DEV)  ## Check types
	@$(BIN)/mypy

test: lint types $(ORACLE) $(TOOLS)  ## Lint, types and all tests, with a real server; those without one JOBS=2 at a time
	@$(BIN)/python -m pytest tests --ignore=tests/server -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=15
	@$(BIN)/python -m pytest tests/server --durations=15

test-fast: $(DEV)  ## Tests without server and oracle
	@$(BIN)/python -m pytest -m "not server and not oracle and not slow"

oracle: $(ORACLE)  ## Plans of every family against transformers' processors, 20,000 sizes each; goes on where it was stopped
	@$(BIN)/python -m tests.oracle.run --out perf/results/oracle.json

docs-plots: $(DEV)  ## Write docs/costs.md with its plots, and the table of docs/families.md
	@$(BIN)/python -m perf.costs
	@$(BIN)/python -m perf.families
	@$(BIN)/python -m perf.trace

perf-engine: $(DEV)  ## Decode speed against the bare loop and four other engines, and the table of docs/performance.md
	@$(BIN)/python -m perf.engine
	@$(BIN)/python -m perf.performance

perf-storm: $(DEV)  ## First token of text in a storm of pictures, by policy, and through the door of a server
	@$(BIN)/python -m perf.storm
	@$(BIN)/python -m perf.storm_door

perf-prefix: $(SERVE)  ## First token of prompts that are new, asked before, and asked before by another cache scope
	@$(BIN)/python -m perf.prefix

perf-draw: $(DEV)  ## Pictures per second against a serial diffusers pipeline and a bare ONNX loop
	@$(BIN)/python -m perf.draw

curve-draw: $(DEV)  ## Quality of drawn pictures against their cost, by steps and guidance: plot and table
	@$(BIN)/python -m perf.curve_draw

perf-gateway: $(DEV)  ## What the gateway adds to a request, idle streams, a restart under load: table and plot
	@$(BIN)/python -m perf.gateway

perf: $(DEV)  ## perf_analyzer against every model, with real pictures: table and plot
	@$(BIN)/python -m perf.profile

perf-peers: $(DEV)  ## The encoder path against a bare loop; the whole against transformers serve, vLLM and OpenVINO GenAI
	@$(BIN)/python -m perf.side
	@$(BIN)/python -m perf.side.page

curve-ask: $(DEV)  ## Right answers against cost, by size, tier and type of question: plot and table
	@$(BIN)/python -m perf.curve_ask

replay: $(DEV)  ## Replay traffic made of PROFILE=FILE (perf/profiles/mix.toml) and report it as a page
	@$(BIN)/python -m perf.replay all $(or $(PROFILE),perf/profiles/mix.toml)

soak: $(DEV)  ## 10,000 mixed requests with cancels, bad inputs and a killed stub: memory, losses, ledgers
	@$(BIN)/python -m perf.soak

probe-caches: $(DEV)  ## 10,000 ways to see another tenant's entry in a cache, and whether time tells it
	@$(BIN)/python -m perf.cache_probe

lock:  ## Resolve pyproject.toml afresh and write both lock files
	@tools/lock

clean:  ## Remove caches and logs
	@rm -rf .pytest_cache .mypy_cache .ruff_cache build dist src/*.egg-info var/*.log
	@find src tests export client perf model_repository -name __pycache__ -prune -exec rm -rf {} +

clean-all: clean  ## Remove the environment and all of var/ as well, training state included
	@rm -rf .venv var
