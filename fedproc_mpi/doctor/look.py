"""Looks at this machine and tries things out: small jobs of mpirun, a file, the ranks' own transport."""

import glob
import os
import platform
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen, TimeoutExpired
from typing import TYPE_CHECKING, Any

from fedproc_mpi.comm.launch import own_cores
from fedproc_mpi.doctor import findings as judge
from fedproc_mpi.doctor.findings import OK, WARNING, WRONG, Finding, Mpirun, Rank
from fedproc_mpi.errors import reason

if TYPE_CHECKING:
    from fedproc_mpi.comm import Comm
    from fedproc_mpi.comm.library import Mpi

SECONDS, GRACE = 20.0, 3.0  # for each small job, and for one that is asked to end
VALUES, REPEATS = 5_000_000, 5  # a broadcast of 20 MB of float32, a reduce of 40 MB of float64
LIBMPI = re.compile(r"/lib(mpi|mpich|mpi_(cray|gnu_\d+|intel|nvidia))\.(so|dylib)[^/]*$")
# With an argument rank 1 dies as by the kernel's hand; the other has to notice, and to go on without it.
TRIAL = """
import os, signal, sys
from mpi4py import MPI
comm = MPI.COMM_WORLD
os.write(1, f"trial rank {comm.rank} of {comm.size}\\n".encode())  # in one piece
if sys.argv[1:]:
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
    # A session of its own can be killed whole.
    options: dict[str, Any] = {"text": True, "errors": "replace", "start_new_session": True}
    process = Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, **options)
    try:
        output, _ = process.communicate(timeout=seconds)
        return process.returncode, output
    except TimeoutExpired:
        for number in (signal.SIGTERM, signal.SIGKILL):  # mpirun ends its ranks when it is asked to
            with suppress(ProcessLookupError, TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(timeout=GRACE)
        return None, f"no answer within {seconds:.0f} s"


def find_mpirun(path: str | None) -> Mpirun | None:
    """An mpirun and what it says of its version; None where there is none."""
    if path is None or not os.access(path, os.X_OK):
        return None
    try:
        return Mpirun(path, run([path, "--version"])[1])
    except OSError as error:
        return Mpirun(path, str(error))


def mpirun(library: "Mpi | None") -> list[Finding]:
    """The mpirun on PATH and the one beside this Python, and what it does. Not under a launcher.

    It comes before this process starts MPI, after which it must not fork.
    """
    on_path = find_mpirun(shutil.which("mpirun"))
    beside = find_mpirun(str(Path(sys.executable).with_name("mpirun")))
    if on_path and beside and os.path.realpath(on_path.path) == os.path.realpath(beside.path):
        beside = on_path
    found = [judge.mpirun_finding(on_path, beside, library)]
    used = on_path or beside
    if used is None or used.mpi is None or library is None or used.mpi.clashes(library):
        return found
    job, program = [used.path, "-n", "2"], [sys.executable, "-c", TRIAL]
    found.append(judge.trial_finding(*run(job + program)))
    if found[-1].level != OK:
        return found
    more = len(own_cores()) + 1
    found.append(judge.slots_finding(more, *run([used.path, "-n", str(more), "true"])))
    survive = {"Open MPI": ["--with-ft", "ulfm"], "MPICH": []}.get(used.mpi.vendor)
    if survive is not None:
        found.append(judge.ulfm_finding(run([*job, *survive, *program, "die"])[1]))
    return found


def loaded_libraries() -> list[str]:
    """Paths of the MPI libraries in this process's memory; none where the system does not tell."""
    with suppress(OSError), open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "/lib" in line}
        return sorted({os.path.realpath(p) for p in paths if LIBMPI.search(p)})
    return []


def nvidia_devices() -> int:
    """GPUs by their device files, which are there even where torch sees none."""
    return len(glob.glob("/dev/nvidia[0-9]*"))


def cuda_aware() -> list[Finding]:
    """Whether MPI can be handed GPU memory, tried in a process of its own."""
    from fedproc_mpi.comm.cuda_probe import failure

    why_not = failure("cuda:0")
    said = f"no ({why_not}); tensors pass through host memory, as by default"
    yes = "yes: MPI reads and writes GPU memory, --cuda-aware works"
    return [Finding(OK, "CUDA-aware", said if why_not else yes)]


def this_rank(rank: int, library: str) -> Rank:
    """The facts of this process. library: MPI's version in its own words. Raises what torch's import does."""
    import torch

    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else torch.version.hip or "the CPU"
    versions = {
        "Python": platform.python_version(),
        "torch": f"{torch.__version__}, built for {built}",
        "MPI library": library,
    }
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    host, machine_cores = socket.gethostname(), os.cpu_count() or 1
    return Rank(rank, host, own_cores(), machine_cores, versions, loaded_libraries(), gpus)


def hdf5(folder: str) -> Finding:
    """Write and read a file in the folder as data_prep and a run do, and remove it."""
    import h5py

    from fedproc_mpi.shards import reserve

    try:
        with tempfile.NamedTemporaryFile(prefix=".fedproc_doctor_", suffix=".h5", dir=folder) as file:
            reserve(file, 2**20)
            with h5py.File(file.name, "w", locking=False) as written:
                written["x"] = [1, 2, 3]
            with h5py.File(file.name, "r", locking=False) as back:
                if back["x"][:].tolist() != [1, 2, 3]:
                    return Finding(WRONG, "HDF5", f"{folder}: other values than were written", "use another")
    except OSError as error:
        remedy = "run where you may write, or name such places: --run-dir, --shards, data_prep --out"
        return Finding(WARNING, "HDF5", f"{folder} cannot be written ({reason(error)})", remedy)
    return Finding(OK, "HDF5", f"{folder}: written and read")


def measure(comm: "Comm", device: Any) -> list[Finding]:
    """Broadcasts and reduces of a fixed size, timed, values checked; findings on rank 0. Collective.

    A time is that of the slowest rank, from a moment when all are there. The first one warms up.
    """
    import torch

    torch.set_num_threads(1)
    over, found = str(getattr(comm, "backend", comm.name)), []
    for name, dtype, act, factor, after in (
        ("broadcast", torch.float32, comm.broadcast, int(comm.rank == 0), 1),
        ("reduce", torch.float64, comm.reduce, comm.rank + 1, comm.size * (comm.size + 1) // 2),
    ):
        ramp = torch.arange(VALUES, dtype=dtype, device=device)  # exact in float32 up to 2^24
        seconds, right = [], True
        for _ in range(1 + REPEATS):
            buffer = ramp * factor
            comm.share(None)
            start = time.perf_counter()
            act(buffer)
            if buffer.device.type == "cuda":
                torch.cuda.synchronize(buffer.device)
            seconds.append(time.perf_counter() - start)
            if name == "broadcast" or comm.rank == 0:  # a reduce leaves its sums on rank 0 alone
                right &= torch.equal(buffer, ramp * after)
        reports = comm.collect([seconds[1:], right])
        if reports is not None:
            slowest = [max(times) for times in zip(*(times for times, _ in reports), strict=True)]
            nbytes = VALUES * ramp.element_size()
            found.append(judge.speed_finding(name, nbytes, slowest, all(good for _, good in reports), over))
    return found
