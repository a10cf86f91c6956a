#!/usr/bin/env bash
# Makes the shards of all presets, on a login node, in the environment that the jobs use:
#   jobs/prepare.sh --download              what is there already is left alone
#   jobs/prepare.sh cifar10_m10 --root DIR  some presets; flags: --root DIR, --download
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
. jobs/common.sh
activate
mkdir -p jobs/logs # Slurm opens a job's log before the job runs
exec python jobs/prepare.py "$@"
