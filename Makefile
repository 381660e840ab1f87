# Everything from a machine with Python 3.11 or later and make. The first run of a target sets up its environment;
# stamp files there remember what was installed, so that a second run starts at once. `make help` prints this:
#
## make demo              runs `penstock demo`                                                          seconds
## make check             between two edits: lint, and the quickest tests of each part                  1 minute
## make test              lint, and the tests that need no more than .venv                              5 minutes
## make deep              the same with long searches, such as every interrupt: what .ci/run runs       7 minutes
## make lint              ruff and mypy                                                                 seconds
## make bench             benchmarks beside other loaders, on a quiet machine: BENCH="--only ints,rows"
## make group NAME=ray    one of the groups below; NAME="ray remote" runs two
## make pins              moves the pinned versions in pyproject.toml to the newest                     10 minutes
## make clean             removes every environment, and what was built
##
## Groups of tests, with the size of what a group installs:
##   wide                 every test with every start method, and the model's widest world              20 minutes
##   quiet                tests of real time, on a machine that does nothing else                       1 minute
##   matrix               other versions of Python and of the libraries: ARGS="--python 3.12"           1 hour
##   coverage             coverage by branches; beside the tracer, a test of timing may fail            3 times `test`
##   planted              plants bugs, and checks that tests find each of them: BUGS=memory             10 minutes
##   soak                 kills workers, runs random histories: PENSTOCK_SOAK=600 (seconds)             3 minutes
##   fuzz                 attacks every parser with mutated bytes: TARGETS="tar lmdb" MINUTES=5         20 minutes
##   frameworks           accelerate, Lightning, Hugging Face                          420 MB           2 minutes
##   images               images for torchvision and timm                              420 MB           1 minute
##   examples             the GPT that is killed and continues elsewhere, and the loader for torchtitan  2 minutes
##   browser              the report in chromium, a trace in Perfetto                                   1 minute
##   resuming             what other loaders do when they resume                       2 GB             10 minutes
##   strangers            whole programs as users write them: ARGS="-k jax"            3 GB             5 minutes
##   jax                  penstock.jax with flax, optax and orbax, on several devices  1 GB             5 minutes
##   ray                  workers on Ray                                               300 MB           6 minutes
##   remote               remote files from real servers                                                2 minutes
##   wild                 programs of 25 other libraries: WILD_ONLY=timm               3 GB             1 hour
##   interop              files of MXNet, webdataset, Megatron and others
##   elsewhere            what macOS and Windows lack is hidden from penstock                           5 minutes
##   lowest               the oldest libraries that pyproject.toml allows              600 MB           10 minutes
##   dist                 builds the wheel; installs and uses it with each extra: ARGS="image"  3 GB    10 minutes
##   free                 laws, model, histories and races under threads, on a Python without the GIL    10 minutes
##   docs                 builds the site into build/site, and checks every link of it                  1 minute
##
## Groups of benchmarks:
##   bench-free           threads beside processes and SPDL, on a Python without the GIL                5 minutes
##   bench-jax            penstock.jax, beside Grain's path to the device                               5 minutes
##   bench-ray            workers on Ray, beside Ray Data                                               10 minutes
##   bench-formats        Parquet and tar shards, beside five other libraries          2 GB             10 minutes
##   bench-images         a program of torchvision, before and after loader=           420 MB           5 minutes
##   pictures             draws the pictures of the README and the docs, from a real run
.DELETE_ON_ERROR:
SHELL := bash
.SHELLFLAGS := -o pipefail -c
GROUPS := wide quiet matrix coverage planted soak fuzz frameworks images examples browser resuming strangers jax ray remote \
  wild interop free elsewhere lowest dist bench-free bench-jax bench-ray bench-formats bench-images docs pictures
.PHONY: help demo test deep test-engine test-parts test-faces lint check bench group unknown-group pins clean $(GROUPS)

PYTHON ?= python3
# The one of the PATH, if it runs: pyenv's command fails unless this version is global. Else one of pyenv's, by its path.
PYTHON310 ?= $(or $(shell python3.10 -c 'print("python3.10")' 2> /dev/null),$(lastword $(sort $(wildcard \
  $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions/3.10.*/bin/python3.10))),python3.10)
VENV   := .venv
BIN    := $(VENV)/bin
MXNET  := .venv-mxnet
WILD   := .venv-wild
RAY    := .venv-ray
JAX    := .venv-jax
STRANGERS := .venv-strangers
FUZZ   := .venv-fuzz
FORMATS := .venv-formats
FREE   := .venv-free
IMAGES := .venv-images
OTHERS := .others
DIST   := .venv-dist
DOCS   := .venv-docs
RESUMING := .venv-resuming
# pip of an environment. Before 25.1 it knows no dependency groups, and Python 3.11 comes with an older one.
INSTALL = $(1)/bin/python -m pip --disable-pip-version-check --quiet install
FRESH   = $(PYTHON) -m venv $(1) && $(call INSTALL,$(1)) "pip>=25.1"

# Without compiled modules, each of a thousand fresh interpreters would compile penstock again.
unexport PYTHONDONTWRITEBYTECODE

help:
	@sed -n 's/^## \{0,1\}//p' Makefile

demo: $(VENV)/.installed
	$(BIN)/penstock demo

# Side by side, and in more processes than there are cores: most tests wait for processes. Apart, because a process
# that has imported less forks in half the time: the faces are the tests whose modules import torch, and the engine's
# tests, which fork most, need few modules: those that import libraries for images and tables are among the parts.
ENGINE := $(sort $(shell grep -rLE '^(import|from) (cv2|PIL|pyarrow)' --include 'test_*.py' \
  $(addprefix tests/,conformance faults histories model strangers)))
FACES := tests/parity $(shell grep -rlE '^(import|from) (torch|penstock\.torch)|^([a-z]+ = )?pytest\.importorskip."(penstock\.)?torch"' \
  --include 'test_*.py' tests/unit tests/laws tests/stats tests/remote)
PYTEST := $(BIN)/python -m pytest --dist worksteal --numprocesses

test: $(VENV)/.developed
	@$(MAKE) --no-print-directory --jobs 4 lint test-engine test-parts test-faces

# With the tests marked `deep`, and more examples of each law.
deep:
	@PENSTOCK_DEEP=1 $(MAKE) --no-print-directory test

test-engine: $(VENV)/.developed
	$(PYTEST) 3 $(ENGINE) | sed -u 's/^/engine  /'

test-parts: $(VENV)/.developed
	$(PYTEST) 3 $(addprefix --ignore ,$(ENGINE) $(FACES)) | sed -u 's/^/parts   /'

test-faces: $(VENV)/.developed
	$(PYTEST) 2 $(FACES) | sed -u 's/^/faces   /'

# Between two edits, in less than a minute: lint, the pure parts and the model, and a little of everything else.
check: lint
	$(PYTEST) 2 tests/architecture tests/model tests/laws/test_scheduler_laws.py tests/laws/test_assigned_laws.py \
	  tests/unit/test_plan_*.py tests/unit/test_scheduler.py tests/unit/test_layout.py tests/unit/test_tree.py \
	  tests/conformance/test_batches.py tests/conformance/test_errors.py tests/faults/test_lost_workers.py

# Every test with every start method, and the model's widest world: some twenty minutes.
wide: $(VENV)/.developed
	PENSTOCK_WIDE=1 $(PYTEST) 2

# Tests that measure real time, such as the verdicts on real loaders: one after the other, on a machine that does nothing
# else: a minute. `make test` judges recorded figures instead; PENSTOCK_RECORD=1 records them anew.
quiet: $(VENV)/.developed
	PENSTOCK_QUIET=1 $(BIN)/python -m pytest -m quiet tests

# Every Python from 3.11 to 3.13 that is installed (also by pyenv), with the newest and with the oldest libraries: an hour.
# `.ci/run` runs a part of it on 3.13 with the newest. ARGS="--python 3.12 --libraries oldest" runs one environment.
matrix:
	$(PYTHON) -m tests.matrix $(ARGS)

# By branches, in all processes. Takes three times as long as `test`; a test of timing may fail beside the tracer.
coverage: $(VENV)/.developed
	rm -rf build/coverage
	-PENSTOCK_DEEP=1 $(BIN)/coverage run -m pytest --numprocesses 2 --dist worksteal --timeout 600 $(addprefix --ignore ,$(FACES))
	-PENSTOCK_DEEP=1 $(BIN)/coverage run -m pytest --numprocesses 2 --dist worksteal --timeout 600 $(FACES)
	$(BIN)/coverage combine --quiet 2> build/coverage/killed.txt # a worker that was killed wrote only half of its file
	$(BIN)/coverage report | tee build/coverage.txt

lint: $(VENV)/.developed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy --strict src

# One group, or several. Each is also a target of its own.
group: $(if $(filter-out $(GROUPS),$(NAME)),unknown-group,$(or $(NAME),unknown-group))

unknown-group:
	@echo "make group NAME=...: there is no group '$(NAME)'. The groups are: $(GROUPS). \`make help\` describes them." >&2
	@exit 2

# Runs of accelerate, Lightning, and Hugging Face's Trainer and datasets, and the examples with these.
frameworks: $(VENV)/.frameworks
	$(BIN)/python -m pytest tests/frameworks

# penstock.image.loader() in programs of torchvision and timm, and the example with it.
images: $(IMAGES)/.installed
	$(IMAGES)/bin/python -m pytest tests/images

# examples/train_gpt.py: a run under torchrun that is killed, and continues on 1 and on 3 ranks.
examples: $(VENV)/.developed
	$(BIN)/python -m pytest tests/examples

# The report in a real browser, and a trace in Perfetto. Installs Debian's chromium if it is missing, as root.
# Screenshots are in build/browser. The site is looked at too.
browser: $(VENV)/.browser docs
	$(BIN)/python -m pytest tests/browser

# The pictures of the README and the docs: charts from the newest files of bench/results, and the report of a real run.
pictures: $(VENV)/.browser
	$(BIN)/python -m bench.charts
	$(BIN)/python -m bench.pictures

# What each loader does when it resumes, in processes of its own; prints the table of docs/resume-compared.md, and checks it.
resuming: $(RESUMING)/.installed
	$(RESUMING)/bin/python -m pytest -s -o timeout=1200 tests/resuming

# The site, in build/site: build/site/index.html opens without a server. A page that docs/index.md does not list, a dead
# link, or a dead reference in a docstring fails it.
docs: $(DOCS)/.installed
	$(DOCS)/bin/python -m website

# Whole programs as people write them (tests/strangers), with torch, JAX, OpenCV, pandas, scikit-learn and numba warmed up
# before the loader, by python, torchrun, spawn, pytest and in a notebook. `make test` runs the quick ones.
# `ARGS="-k jax"` runs those of one kind.
strangers: $(STRANGERS)/.installed
	PENSTOCK_STRANGERS=1 $(STRANGERS)/bin/python -m pytest tests/strangers $(ARGS)

# penstock.jax on 1 and 4 devices of this machine, and in 2 and 4 processes of jax.distributed, with flax, optax and orbax.
jax: $(JAX)/.installed
	$(JAX)/bin/python -m pytest -o faulthandler_timeout=0 --numprocesses 2 --dist worksteal tests/on_jax $(ARGS)

# Workers on Ray: two nodes on this machine, whose actors, raylets and network are broken in turn. `make test` runs the
# same laws and most faults on a stand-in, which needs no Ray.
ray: $(RAY)/.installed
	$(RAY)/bin/python -m pytest tests/on_ray

# Remote files from real servers, S3's protocol by moto, Azure's by Azurite and ranges by nginx, and from a stand-in for
# Google's, through a proxy that breaks answers; PENSTOCK_SOAK=60 breaks them for a minute more. Installs
# Debian's nginx if it is missing, as root, and Azurite by npm; without npm the tests of Azure are skipped. `make test`
# runs most of this on Python's own server.
remote: $(VENV)/.remote
	$(BIN)/python -m pytest tests/remote tests/on_stores

# Programs of 25 other libraries, on torch's engine and on penstock's, compared and timed: 22 minutes of CPU, which took
# an hour on two busy cores. Before the first run, 7 minutes to install.
# `WILD_ONLY=timm` runs those of one library.
wild: $(WILD)/.installed
	$(WILD)/bin/python -m pytest -o faulthandler_timeout=0 tests/wild -k "$(WILD_ONLY)"

# Kills workers for a minute, trains beside hostile neighbours for a minute (as root, with another user), and then runs random
# histories for a minute, on both faces.
# A longer run, with progress: python -m tests.histories --operations 100000 --seed 1
PENSTOCK_SOAK ?= 60
soak: $(VENV)/.developed
	PENSTOCK_DEEP=1 PENSTOCK_SOAK=$(PENSTOCK_SOAK) $(BIN)/python -m pytest -s tests/faults/test_soak.py tests/faults/test_neighbour.py \
	  tests/histories

# Attacks each parser of untrusted bytes for some minutes, guided by coverage (tests/fuzz). Findings are saved in
# tests/fuzz/found. `TARGETS="tar lmdb"` attacks some of them. Without atheris: python -m tests.fuzz
MINUTES ?= 1
fuzz: $(FUZZ)/.installed
	$(FUZZ)/bin/python -m tests.fuzz $(TARGETS) --minutes $(MINUTES) --atheris

# Plants bugs one by one in a copy of this tree (tests/planted/after.py), and checks that the tests find each of them.
# `BUGS=memory` plants those of one area.
planted: $(VENV)/.developed
	$(BIN)/python -m tests.planted.run $(BUGS)

# Files written by one are read by the other. MXNet's last release needs Python 3.10 at most, and numpy below 1.24.
interop: $(VENV)/.developed $(MXNET)/.made $(OTHERS)/.made
	PENSTOCK_MXNET_PYTHON=$(MXNET)/bin/python PYTHONPATH=$(CURDIR)/$(OTHERS) $(BIN)/python -m pytest tests/interop

# On a CPython without the GIL: FREE_PYTHON=/path/to/python3.13t, python3.13t of the PATH, or the one that tests/free/python.sh
# builds from Debian's source, once, in ten minutes. Without that source the group is skipped. Modules whose imports need
# libraries that have no wheels for it (torch, OpenCV) are left out.
ON_FREE = $(shell grep -rLE '^(import|from) (cv2|h5py|lmdb|obstore|torch|written|penstock\.(image|torch))' --include 'test_*.py' \
  $(addprefix tests/,conformance faults free histories laws model))
free: $(FREE)/.installed
	@test -x $(FREE)/bin/python || exit 0; set -x; \
	  $(FREE)/bin/python -m pytest --dist worksteal --numprocesses 2 $(ON_FREE) -k "$(or $(TESTS),not fork and not spawn and not StandIn)" $(ARGS)

bench-free: $(FREE)/.installed
	@test -x $(FREE)/bin/python || exit 0; set -x; $(FREE)/bin/python -m bench.free $(BENCH)

# Tests of every part, with what macOS, and then Windows, lack hidden from penstock (tests/elsewhere). `make deep` runs some.
elsewhere: $(VENV)/.developed
	PENSTOCK_DEEP=1 PENSTOCK_ELSEWHERE=1 $(BIN)/python -m pytest -s --timeout 1200 tests/elsewhere

# The lower bounds of pyproject.toml on the oldest Python, except torch's: older builds bring gigabytes of CUDA.
lowest:
	$(PYTHON) -m tests.matrix --python 3.11 --libraries oldest $(ARGS)

# In dist/: the sdist and the wheel, which are checked, installed into empty environments, and used from an empty folder.
dist: $(DIST)/.installed
	$(DIST)/bin/python -m tests.wheel $(ARGS)

bench: $(VENV)/.peers
	$(BIN)/python -m bench.run $(BENCH)
	$(BIN)/python -m bench.scaling
	$(BIN)/python -m bench.resume
	$(BIN)/python -m bench.steady
	$(BIN)/python -m bench.memory
	$(BIN)/python -m bench.prefetch
	$(BIN)/python -m bench.measuring
	$(BIN)/python -m bench.auto
	$(BIN)/python -m bench.formats
	$(BIN)/python -m bench.shuffling
	$(BIN)/python -m bench.indexes
	$(BIN)/python -m bench.remote
	$(BIN)/python -m bench.cache
	$(BIN)/python -m bench.neighbours
	$(BIN)/python -m bench.distance
	$(BIN)/python -m bench.mixture
	$(BIN)/python -m bench.packing
	$(BIN)/python -m bench.budgets
	$(BIN)/python -m bench.language

# penstock.jax beside Grain's path to the device. The machine must be quiet.
bench-jax: $(JAX)/.installed
	$(JAX)/bin/python -m bench.devices

# Workers on Ray beside processes and Ray Data, on two nodes of this machine; and the driver of a large cluster, by
# simulation. The machine must be quiet.
bench-ray: $(RAY)/.peers
	$(RAY)/bin/python -m bench.fleet
	$(RAY)/bin/python -m bench.crowd
	$(RAY)/bin/python -m bench.ray $(BENCH)

# Parquet and tar shards beside Hugging Face, LitData, MosaicML streaming, webdataset and Ray Data. The machine should be
# quiet.
bench-formats: $(FORMATS)/.installed
	$(FORMATS)/bin/python -m bench.tables $(BENCH)
	$(FORMATS)/bin/python -m bench.shards $(BENCH)

# A training program of torchvision, with Pillow and with penstock.image.loader(). The machine should be quiet.
bench-images: $(IMAGES)/.installed
	$(IMAGES)/bin/python -m bench.image_loader $(BENCH)
	$(IMAGES)/bin/python -m bench.image_loader --pixels

# pip only resolves: nothing is installed. Afterwards run `make test`, and the groups whose pins have moved.
pins: $(VENV)/.developed
	$(BIN)/python -m tests.pins

clean:
	rm -rf .venv .venv-* $(OTHERS) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "penstock needs Python 3.11 or later, and $(PYTHON) is %d.%d: make PYTHON=python3.12" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	@touch $@

# Editable, so that the sources are what runs. torch is not asked for: the demo shows it where it is there.
$(VENV)/.installed: $(VENV)/.made pyproject.toml
	$(call INSTALL,$(VENV)) --editable .
	@touch $@

# In one go with penstock itself, whose dependencies would otherwise be installed twice: the newest, then the pinned.
$(VENV)/.developed: $(VENV)/.made pyproject.toml
	$(call INSTALL,$(VENV)) "pip>=25.1"
	$(call INSTALL,$(VENV)) --group dev --editable .
	@touch $(VENV)/.installed $@

$(VENV)/.frameworks: $(VENV)/.developed
	$(call INSTALL,$(VENV)) --group frameworks
	@touch $@

$(VENV)/.browser: $(VENV)/.developed
	$(call INSTALL,$(VENV)) --group browser
	@{ command -v chromium && command -v chromedriver; } > /dev/null || \
	  { apt-get update --quiet=2 && apt-get install --quiet=2 --yes chromium chromium-driver; }
	@touch $@

$(VENV)/.remote: $(VENV)/.developed
	$(call INSTALL,$(VENV)) --group remote
	@{ command -v nginx || test -x /usr/sbin/nginx; } > /dev/null || \
	  { apt-get update --quiet=2 && apt-get install --quiet=2 --yes nginx-light; }
	@if command -v npm > /dev/null; \
	  then npm install --global --prefix $(VENV) --no-audit --no-fund --loglevel=error azurite@3.35.0; \
	  else echo "skipped: Azurite needs npm"; fi
	@touch $@

# One by one: a peer without a wheel for this machine must not keep the others out.
PEERS := import tomllib; groups = tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]; \
  print(*(entry for entry in groups["bench"] if isinstance(entry, str)), sep="\n")
$(VENV)/.peers: $(VENV)/.developed
	@$(BIN)/python -c '$(PEERS)' | while read -r peer; do \
	  echo "install $$peer"; \
	  $(call INSTALL,$(VENV)) "$$peer" || echo "skipped: $$peer cannot be installed here"; \
	done
	@touch $@

# Every package is named with its version, so nothing is resolved: a resolver would bring another torch.
$(WILD)/.installed: pyproject.toml
	$(call FRESH,$(WILD))
	$(call INSTALL,$(WILD)) --no-deps --group wild --editable .
	@touch $@

$(STRANGERS)/.installed: pyproject.toml
	$(call FRESH,$(STRANGERS))
	$(call INSTALL,$(STRANGERS)) --group strangers --editable .
	@touch $@

$(FUZZ)/.installed: pyproject.toml
	$(call FRESH,$(FUZZ))
	$(call INSTALL,$(FUZZ)) --group fuzz --editable .
	@touch $@

$(RESUMING)/.installed: pyproject.toml
	$(call FRESH,$(RESUMING))
	$(call INSTALL,$(RESUMING)) --group resuming --editable .
	$(call INSTALL,$(RESUMING)) --no-deps --group mosaicml
	@touch $@

$(DOCS)/.installed: pyproject.toml
	$(call FRESH,$(DOCS))
	$(call INSTALL,$(DOCS)) --group docs
	@touch $@

$(RAY)/.installed: pyproject.toml
	$(call FRESH,$(RAY))
	$(call INSTALL,$(RAY)) --group ray --editable .
	@touch $@

$(JAX)/.installed: pyproject.toml
	$(call FRESH,$(JAX))
	$(call INSTALL,$(JAX)) --group jax --editable .
	@touch $@

$(RAY)/.peers: $(RAY)/.installed
	$(call INSTALL,$(RAY)) --group bench-ray
	@touch $@

$(FORMATS)/.installed: pyproject.toml
	$(call FRESH,$(FORMATS))
	$(call INSTALL,$(FORMATS)) --group bench-formats --editable .
	$(call INSTALL,$(FORMATS)) --no-deps --group mosaicml
	@touch $@

$(FREE)/.installed: pyproject.toml tests/free/python.sh
	@if python=$$(tests/free/python.sh); then set -ex; \
	  "$$python" -m venv $(FREE); \
	  $(call INSTALL,$(FREE)) "pip>=25.1"; \
	  $(call INSTALL,$(FREE)) --group free --editable .; \
	  touch $@; \
	else echo "skipped: make $(MAKECMDGOALS) needs a Python without the GIL"; fi

$(IMAGES)/.installed: pyproject.toml
	$(call FRESH,$(IMAGES))
	$(call INSTALL,$(IMAGES)) --group images --editable .
	@touch $@

$(DIST)/.installed: pyproject.toml
	$(call FRESH,$(DIST))
	$(call INSTALL,$(DIST)) --group dist
	@touch $@

$(OTHERS)/.made: $(VENV)/.developed
	$(call INSTALL,$(VENV)) --no-deps --upgrade --target $(OTHERS) --group interop
	@touch $@

$(MXNET)/.made: pyproject.toml
	$(PYTHON310) -m venv $(MXNET)
	$(call INSTALL,$(MXNET)) "pip>=25.1"
	$(call INSTALL,$(MXNET)) --group mxnet
	@touch $@
