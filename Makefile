# `make demo` and `make test` need no preparation on a new machine: they create .venv first.

PYTHON ?=
# One more than there are cores, at most 5: a test that waits for a process leaves its core idle.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -le 4 ] && echo $$((n + 1)) || echo 5)
FUZZ_SECONDS ?= 600
PYTHONS ?= python3.11 python3.12
TF ?= 2.21

RUN := .venv/bin/python
# Empty: Python keeps compiled modules, where the user's setting is that each process compiles all.
export PYTHONDONTWRITEBYTECODE :=
# In the order of tests/conftest.py: files that take long first.
PYTEST = $(RUN) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# What needs neither other systems nor an hour.
EVERYWHERE = not peers and not release and not slurm
CXX_FILES = $(shell find custom_ops tests/cc benchmarks -name '*.cc' -o -name '*.h' -o -name '*.cu')

.DEFAULT_GOAL := help
.PHONY: help setup ops packages cuda-compiler demo check test test-all test-processors test-release test-peers test-ray test-slurm \
  test-tf wheels test-wheels lint lint-release audit format bench bench-gpu sanitize-gpu gpu-smoke bench-peers \
  bench-peers-load fuzz soak peers tpu-check clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' Makefile

setup:  ## create .venv from requirements.lock, build the ops (the targets below do this too)
	@PYTHON='$(PYTHON)' .ci/setup

ops:  ## compile the ops again, for the TensorFlow in .venv
	@VIT_BUILD_OPS=0 PYTHON='$(PYTHON)' .ci/setup
	@$(RUN) -m custom_ops.build_ops

demo: setup  ## pre-train, fine-tune, export and serve a small model; writes runs/demo/report.html
	@$(RUN) -m pipelines.demo

# BASE names a commit or branch that replaces the merge base with main.
check: lint  ## lint, architecture, and the tests of the modules that changed
	@tests=$$($(RUN) -m tests.changed $(BASE)) && \
	  $(PYTEST) --heavy changed -m "not process and $(EVERYWHERE)" tests/test_architecture.py $$tests

# Programs that the tests need outside .venv. Root installs them.
packages:
	@.ci/packages bazel clang++ libclang_rt chromium

# The CUDA compiler that the tests use where none is installed, 300 MB.
cuda-compiler: setup
	@command -v nvcc > /dev/null || [ -x "$$CUDA_HOME/bin/nvcc" ] || $(MAKE) .venv-cuda/installed

.venv-cuda/installed: .ci/cuda-compiler.txt
	@rm -rf .venv-cuda && $(RUN) -m venv .venv-cuda
	@.venv-cuda/bin/python -m pip install --quiet --no-deps -r $< && touch $@

test: packages setup  ## the tests, with the heavy groups that a change since main switches on
	@$(PYTEST) --heavy changed -m "$(EVERYWHERE)" --durations 10

test-all: packages setup cuda-compiler  ## all tests but test-release: what must pass before a change lands
	@$(PYTEST) --heavy none -m "$(EVERYWHERE)" --durations 10
	@if [ "$$(date +%s)" -lt "$${VIT_HEAVY_UNTIL:-9999999999}" ]; \
	  then $(MAKE) --no-print-directory test-processors; else echo "no time for test-processors"; fi
	@$(PYTEST) --heavy only -m "$(EVERYWHERE)" --durations 10
	@switched=$$($(RUN) -m tests.heavy slurm) && \
	  if [ "$$switched" = on ]; then $(MAKE) --no-print-directory test-slurm; fi

# First what a processor with AVX2 alone runs outside commands, then the ops without its instructions.
VALUES = $(PYTEST) --heavy models -m "not process and $(EVERYWHERE)" tests/custom_ops
# Of the models those about results, not those about what a model accepts and how Keras stores it.
RESULTS = tests/vit_tf/layers $(filter-out %_inputs.py %_image_model.py %_keras_model.py %_recompute.py,\
  $(wildcard tests/vit_tf/models/test_*.py))
test-processors: setup  ## the tests of ops, layers and models as they run on lesser processors
	@TF_ENABLE_ONEDNN_OPTS=0 VIT_ISA=avx2 $(VALUES) $(RESULTS)
	@VIT_ISA=baseline $(VALUES)

test-release: packages setup cuda-compiler  ## before a release: more kills, workers, families, GPUs; slow
	@$(PYTEST) --heavy all -m release --durations 10

# Not beside other tests: these wait for moments of jobs.
test-slurm: setup  ## the script of docs/cluster.md on a SLURM cluster of this machine; needs root
	@[ "$$(id -u)" != 0 ] || [ -x /usr/sbin/slurmctld ] || .ci/packages slurm-wlm munge iproute2
	@$(RUN) -m pytest --durations 5 tests/slurm

test-peers: setup  ## compare with transformers, timm, PEFT (`make peers`), and a trained DINOv2 with ONNX Runtime
	@$(RUN) -m pytest tests/peers

# Ray is no part of requirements.lock: 70 MB that nothing else needs.
test-ray: setup .venv-ray/installed  ## batch jobs on a Ray cluster, with kills; installs it in .venv-ray
	@PYTHONPATH="$(CURDIR)/.venv-ray" $(RUN) -m pytest tests/ray tests/pipelines/distribution/test_engine.py --durations 10

.venv-ray/installed: .ci/ray.txt
	@rm -rf .venv-ray && $(RUN) -m pip install --quiet --no-deps --target .venv-ray -r $< && touch $@

# Most heavy tests of these folders are of kernels and compilers, without TensorFlow.
test-tf: RUN = .venv-tf$(TF)/bin/python
test-tf: packages  ## the tests of the ops and of vit_tf under TensorFlow 2.21, in .venv-tf2.21; TF
	@PYTHON='$(PYTHON)' .ci/setup $(TF)
	@VIT_OPS_LIBRARY="$(CURDIR)/build/tensorflow-$(TF)/_vit_ops.so" \
	  $(PYTEST) --heavy checkpoints,models -m "$(EVERYWHERE)" --durations 10 \
	  tests/custom_ops tests/vit_tf

wheels: setup  ## build the source distribution, and a wheel for each of PYTHONS, in dist/
	@PYTHON='$(PYTHON)' .ci/setup 2.21
	@$(RUN) -m tests.release.wheels --pythons $(PYTHONS) \
	  --tensorflows .venv/bin/python .venv-tf2.21/bin/python

test-wheels: setup  ## install the files in dist/ into empty environments, and use them: 15 minutes
	@$(RUN) -m tests.release.install

lint: setup  ## check style, formatting, imports and types
	@$(RUN) -m ruff check .
	@.venv/bin/lint-imports --no-cache --no-logo
	@$(RUN) -m ruff format --check .
	@.venv/bin/clang-format --dry-run --Werror $(CXX_FILES)
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(RUN) -m pyright

# The schemas are those of the installed package: this needs no network but to install.
CHECK_SCHEMA = .venv-release/bin/check-jsonschema --builtin-schema
lint-release: .venv-release/installed  ## check the Dockerfile, workflows, issue forms and CITATION.cff
	@.venv-release/bin/hadolint Dockerfile
	@$(CHECK_SCHEMA) vendor.github-workflows .github/workflows/*.yml
	@$(CHECK_SCHEMA) vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	@$(CHECK_SCHEMA) vendor.github-issue-forms \
	  $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	@$(CHECK_SCHEMA) vendor.citation-file-format CITATION.cff

# Strict: a package that the database does not know is an error, and not passed over.
audit: .venv-release/installed  ## look up known vulnerabilities of requirements.lock on the web
	@.venv-release/bin/pip-audit --strict --progress-spinner off --no-deps --disable-pip \
	  --requirement requirements.lock \
	  $$(awk '/^[A-Z]/ {print "--ignore-vuln", $$1}' .ci/vulnerabilities.txt)

.venv-release/installed: .ci/release-tools.txt
	@rm -rf .venv-release && $(or $(PYTHON),python3) -m venv .venv-release
	@.venv-release/bin/python -m pip install --quiet --no-deps -r $< && touch $@

format: setup  ## fix what ruff and clang-format can fix
	@$(RUN) -m ruff check --fix .
	@$(RUN) -m ruff format .
	@.venv/bin/clang-format -i $(CXX_FILES)

bench: setup  ## run every benchmark but the long one
	@set -e; for file in $(filter-out %/bench_soak.py,$(wildcard benchmarks/bench_*.py)); do \
	  echo "$$file"; $(RUN) -m "benchmarks.$$(basename "$$file" .py)"; done

# Without .venv: a machine with a GPU may have PyTorch and no TensorFlow.
bench-gpu:  ## on a GPU: build, check and time its kernels; needs nvcc, ninja, PyTorch, pybind11, pytest; ARGS
	@$(or $(PYTHON),python3) -m benchmarks.gpu_run $(ARGS)

# After `make bench-gpu ARGS="--only check"`, which builds the module; TOOL is one of its four tools.
TOOL ?= memcheck
sanitize-gpu:  ## on a GPU: compute-sanitizer over every kernel on small shapes; TOOL
	@nvidia-smi -L && module=$$(ls build/gpu/_vit_cuda*.so) && \
	  VIT_CUDA_MODULE=$$module compute-sanitizer --tool $(TOOL) --error-exitcode 9 \
	  $(or $(PYTHON),python3) -m pytest -c tests/gpu/alone.ini -q tests/gpu/test_small_shapes.py

gpu-smoke: setup  ## on a GPU with TensorFlow: train, export, serve and compare with the CPU
	@$(RUN) -c 'import sys, tensorflow as tf; \
	  sys.exit(None if tf.config.list_physical_devices("GPU") else "error: TensorFlow finds no GPU")'
	@$(RUN) -m pytest -m gpu tests/pipelines/test_training_on_gpu.py

bench-peers: setup .venv-peers  ## CPU inference beside OpenVINO, ONNX Runtime, PyTorch; ARGS="--help" lists options
	@$(RUN) -m benchmarks.peers $(ARGS)

bench-peers-load: setup .venv-peers  ## the same under load: 8 clients of the SavedModel, then of OpenVINO; ARGS
	@$(RUN) -m benchmarks.peers.load $(ARGS)

fuzz: packages setup  ## fuzz the kernels for FUZZ_SECONDS (600); build/fuzz keeps failing inputs
	@$(RUN) -m tests.custom_ops.kernel_programs $(FUZZ_SECONDS)

soak: setup  ## 20 minutes of training, to check that memory and open files do not grow
	@$(RUN) -m benchmarks.bench_soak

peers:  ## create .venv-peers with other systems, for `make bench`, `bench-peers` and `test-peers`
	@python3 -m venv .venv-peers && .venv-peers/bin/python -m pip install \
	  torch numpy transformers==5.24.0 timm==1.0.31 peft==0.21.2 safetensors \
	  openvino onnxruntime onnx onnxscript keras-hub 'tensorflow>=2.20,<2.21'

# Only if it is missing. `make peers` updates it.
.venv-peers:
	@$(MAKE) peers

# Pinned: the program uses private parts of JAX, which brings the compiler for TPUs.
tpu-check: setup  ## compile the training step ahead of time for TPUs; creates .venv-tpu, 1.3 GB
	@rm -f .venv-tpu/installed
	@python3 -m venv .venv-tpu && .venv-tpu/bin/python -m pip install --quiet \
	  'jax[tpu]==0.10.2' libtpu==0.0.42.1 && touch .venv-tpu/installed
	@TF_CPP_MIN_LOG_LEVEL=3 $(RUN) -m tests.tpu.check

# ~/.cache/vit_tf, with the object files of the C++ tests, is shared by all checkouts.
clean:  ## remove caches, build products and all environments but .venv and .venv-peers; runs/ stays
	rm -rf .venv-cuda .venv-ray .venv-release .venv-tf* .venv-tpu build dist *.egg-info .pytest_cache .ruff_cache custom_ops/_vit_*.so custom_ops/_vit_*.txt \
	  custom_ops/tensorflow-*
	rm -f bazel-*
	find custom_ops vit_tf pipelines benchmarks tests -type d -name __pycache__ -prune -exec rm -rf {} +
