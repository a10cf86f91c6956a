"""Small jobs that tell what mpirun does, started before this process touches MPI (no fork after MPI_Init)."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fedproc_mpi.doctor.findings import Finding, Mpi, Mpirun, mpirun_finding, trial_finding, ulfm_finding

SECONDS = 20.0  # for each
SIZES = """
import os
from mpi4py import MPI
os.write(1, f"trial rank {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size}\\n".encode())  # in one piece
"""
# Rank 1 dies as by the kernel's hand; the other has to notice, and to make a communicator without it.
DEATH = """
import os, signal
from mpi4py import MPI
comm = MPI.COMM_WORLD
comm.Barrier()
if comm.rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    comm.Barrier()
except MPI.Exception:
    comm.Revoke()
    os.write(1, f"trial survivors {comm.Shrink().size}\\n".encode())
os._exit(0)
"""


def run(command: Sequence[str], seconds: float = SECONDS) -> tuple[int | None, str]:
    """Exit code and output (stderr with it); the code is None where it had to be killed after `seconds`.

    Raises OSError where it cannot be started.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # a group of its own, to be killed whole
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):  # mpirun ends its ranks when it is asked to
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=3)
        if process.stdout:
            process.stdout.close()


def look(path: str | None) -> Mpirun | None:
    """An mpirun and its version; None where there is none."""
    if path is None or not os.access(path, os.X_OK):
        return None
    try:
        code, output = run([path, "--version"])
    except OSError as error:
        return Mpirun(path, str(error))
    return Mpirun(path, output if code is not None else f"no answer within {SECONDS:.0f} s")


def mpirun_findings(library: Mpi | None) -> list[Finding]:
    """The mpirun on PATH and the one beside this Python, and what the former does. Not under a launcher."""
    on_path, beside = look(shutil.which("mpirun")), look(str(Path(sys.executable).with_name("mpirun")))
    if on_path and beside and os.path.realpath(on_path.path) == os.path.realpath(beside.path):
        beside = on_path
    found = [mpirun_finding(on_path, beside, library)]
    used = on_path or beside
    if used is None or used.mpi is None or library is None or used.mpi.clashes(library):
        return found
    job = [used.path, "-n", "2"]
    code, output = run([*job, sys.executable, "-c", SIZES])
    found.append(trial_finding(code, output, SECONDS))
    survive = {"Open MPI": ["--with-ft", "ulfm"], "MPICH": []}.get(used.mpi.vendor)
    if survive is not None and found[-1].level == "ok":
        _, output = run([*job, *survive, sys.executable, "-c", DEATH])
        found.append(ulfm_finding(output))
    return found
