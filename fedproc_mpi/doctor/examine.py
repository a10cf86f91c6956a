"""The examination itself, in a process that may hang or crash: `__main__` watches it.

It is started by the doctor alone. Its findings, and what it is about to do, go through a pipe, a JSON line
each.
"""

import glob
import json
import os
import platform
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedproc_mpi.comm.launch import launched_rank, launched_tasks, mpirun_inside_srun
from fedproc_mpi.doctor import findings as judge
from fedproc_mpi.doctor.findings import OK, WARNING, WRONG, Finding, Mpi, Rank
from fedproc_mpi.errors import UserError

if TYPE_CHECKING:
    from fedproc_mpi.comm import Comm
    from fedproc_mpi.placement.devices import Placement

ALONE_SECONDS, TOGETHER_SECONDS = 90, 240  # for a step of one process, and for one in which all must meet
QUIET = 3  # exit code of a task that leaves the word to the launcher's first
VALUES = 25_000_000  # a broadcast of 100 MB of float32 and a reduce of 200 MB of float64
MEASURE_SECONDS, REPEATS = 2.5, 50  # for each of the two, at most
SMALL = 8  # the first pass takes this part of the buffer; a slow machine stays with it
PATTERN = 4093  # values repeat after so many: exact in float32, and no divisor of a chunk


def is_first() -> bool:
    """Whether this task is the one that speaks, as far as the launcher's variables tell."""
    return launched_rank() == "0" and (
        os.environ.get("SLURM_PROCID") == "0" or not mpirun_inside_srun(os.environ)
    )


class Teller:
    """To the watching process. speaks: whether findings are told, or this rank is one of the quiet ones."""

    def __init__(self, fd: int, speaks: bool) -> None:
        self._pipe = os.fdopen(fd, "w")
        self.speaks = speaks

    def doing(self, step: str, seconds: int = ALONE_SECONDS) -> None:
        """What comes next. Without an answer in time the system ends this process, stuck in C or not."""
        signal.alarm(seconds)
        self._write({"doing": step, "seconds": seconds})

    def tell(self, *found: Finding) -> None:
        """Findings, to be shown at once."""
        for finding in found if self.speaks else ():
            self._write({"finding": asdict(finding)})

    def check(self, name: str, ask: Callable[[], list[Finding]]) -> None:
        """One step of this process alone; that it fails is a finding."""
        if not self.speaks:
            return
        self.doing(name)
        try:
            self.tell(*ask())
        except Exception as error:
            said = f"this check failed: {type(error).__name__}: {judge.brief(str(error))}"
            self.tell(Finding(WRONG, name, said, "see whether the lines above explain it; else tell us"))

    def _write(self, message: dict[str, Any]) -> None:
        self._pipe.write(json.dumps(message) + "\n")
        self._pipe.flush()


def examine(tell: Teller, transport: str, threads: int) -> None:
    """All checks, the harmless ones first: where one ends the process, the lines before it are told."""
    tell.check("Python", lambda: [Finding(OK, "Python", f"{platform.python_version()}, {sys.executable}")])
    tell.doing("MPI library")
    MPI, error = import_mpi()
    text = MPI.Get_library_version() if MPI else ""
    library = judge.parse_mpi(text)
    tell.tell(judge.library_finding(error, text, loaded_libraries()))
    launched = max(launched_tasks().values(), default=0)
    tell.check("mpirun", lambda: mpirun(launched, library))
    tell.check("HDF5", lambda: [hdf5(os.getcwd())])
    tell.check("Slurm", lambda: judge.slurm_findings(os.environ, len(own_cores())))
    tell.check("threads", lambda: [judge.threads_finding(os.environ, threads)])
    if nvidia_devices() and MPI:
        tell.check("CUDA-aware", cuda_aware)  # in a process of its own, so before MPI starts
    size = 1
    if launched and MPI:
        tell.doing("MPI start", TOGETHER_SECONDS)
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        size = MPI.COMM_WORLD.Get_size()
        if size > 1:
            tell.speaks = MPI.COMM_WORLD.Get_rank() == 0
    problems = judge.launch_findings(os.environ, launched_tasks(), size if MPI else None)
    tell.tell(*problems)
    if problems and size == 1 and not tell.speaks:
        sys.exit(QUIET)
    tell.doing("torch", TOGETHER_SECONDS)  # many imports at once, on few cores, from a slow disk
    gpus, torch_said, torch_error = look_at_torch()
    if torch_error:
        tell.tell(Finding(WRONG, "torch", torch_error, "pip install torch, in this environment"))
    else:
        tell.tell(Finding(OK, "torch", torch_said))
    tell.doing("meeting the other ranks", TOGETHER_SECONDS)
    versions = (("Python", platform.python_version()), ("torch", torch_said), ("MPI library", text.strip()))
    mine = Rank(
        rank=MPI.COMM_WORLD.Get_rank() if size > 1 else 0,
        host=socket.gethostname(),
        cores=own_cores(),
        machine_cores=os.cpu_count() or 1,
        versions=versions,
        libraries=loaded_libraries(),
        gpus=gpus,
        torch_error=torch_error,
    )
    ranks = gather(MPI, size, mine)
    clients = range(1, size) if size > 1 else range(1)
    tell.tell(*judge.host_findings(ranks, clients, threads, oversubscription_asked()))
    tell.tell(*judge.difference_findings(ranks))
    if not any(r.torch_error for r in ranks):
        transports(tell, MPI, size, [r.gpus for r in ranks], transport, threads)
    tell.doing("MPI end", TOGETHER_SECONDS)


def import_mpi() -> tuple[Any, str]:
    """mpi4py's MPI without initialising it, or None and why."""
    try:
        import mpi4py

        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
        from mpi4py import MPI
    except Exception as error:
        return None, str(error) or type(error).__name__
    return MPI, ""


def loaded_libraries() -> tuple[str, ...]:
    """Paths of the MPI libraries in this process's memory; none where the system does not tell."""
    with suppress(OSError), open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps if "/lib" in line}
        return tuple(sorted({os.path.realpath(p) for p in paths if judge.LIBMPI.search(p)}))
    return ()


def mpirun(launched: int, library: Mpi | None) -> list[Finding]:
    """mpirun by trying it, or who launched this job."""
    from fedproc_mpi.doctor.trials import mpirun_findings

    if not launched:
        return mpirun_findings(library)
    by = judge.launcher_finding(os.environ, launched, library)
    return [by, Finding(OK, "ULFM", "tried when the doctor is started without mpirun or srun")]


def hdf5(folder: str) -> Finding:
    """Write and read a file in the folder as data_prep and a run do, and remove it."""
    try:
        fd, path = tempfile.mkstemp(prefix=".fedproc_doctor_", suffix=".h5", dir=folder)
    except OSError as error:
        return judge.hdf5_finding(folder, _short(error), "", "", "", "")
    said = {"lock": "", "write": "", "read": ""}
    try:
        said["lock"] = _try_lock(fd)
        os.close(fd)
        try:
            import h5py
        except Exception as error:
            return Finding(WRONG, "HDF5", f"h5py cannot be imported: {error}", "pip install 'h5py>=3.10'")
        for step, mode, options in (("write", "w", {}), ("read", "r", {"locking": False})):
            try:
                with h5py.File(path, mode, **options) as file:
                    if mode == "w":
                        file["x"] = [1, 2, 3]
                    elif file["x"][:].tolist() != [1, 2, 3]:
                        said[step] = "other values than were written"
            except OSError as error:
                said[step] = _short(error)
    finally:
        with suppress(OSError):
            os.unlink(path)
    setting = os.environ.get("HDF5_USE_FILE_LOCKING", "")
    return judge.hdf5_finding(folder, "", said["lock"], said["write"], said["read"], setting)


def _try_lock(fd: int) -> str:
    try:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)
    except (ImportError, OSError) as error:
        return _short(error)
    return ""


def _short(error: Exception) -> str:
    number = getattr(error, "errno", None)
    why = os.strerror(number) if number else str(error)
    return f"{why}, errno {number}" if number else judge.brief(why, 1)


def look_at_torch() -> tuple[int, str, str]:
    """The GPUs that torch sees, its version, and why it could not be imported."""
    try:
        import torch

        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else torch.version.hip or "the CPU"
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return gpus, f"{torch.__version__}, built for {built}", ""
    except Exception as error:
        return 0, "", f"cannot be imported: {type(error).__name__}: {judge.brief(str(error), 1)}"


def nvidia_devices() -> int:
    """GPUs by their device files, which are there even where torch sees none."""
    return len(glob.glob("/dev/nvidia[0-9]*"))


def cuda_aware() -> list[Finding]:
    """Hand GPU memory to MPI in a process of its own."""
    from fedproc_mpi.comm.cuda_probe import failure

    return [judge.cuda_aware_finding(failure("cuda:0"))]


def own_cores() -> tuple[int, ...]:
    """The cores on which this process may run."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def oversubscription_asked() -> bool:
    """Whether the launcher was asked for more ranks than cores.

    Open MPI's mpirun does not hand its own settings on, so its command line and environment are read, on
    the host where it runs; elsewhere it counts as not asked.
    """
    if "OMPI_COMM_WORLD_SIZE" not in os.environ:
        return os.environ.get("SLURM_OVERCOMMIT") == "1"
    words = []
    pid = os.getpid()
    for _ in range(5):  # this process, the watching one, perhaps a wrapper script, mpirun
        with suppress(OSError), open(f"/proc/{pid}/cmdline") as command:
            words.append(command.read().replace("\0", " "))
        with suppress(OSError), open(f"/proc/{pid}/environ") as environment:
            found = environment.read().split("\0")
            words += [e for e in found if e.startswith(("OMPI_MCA_", "PRTE_MCA_"))]
        try:
            with open(f"/proc/{pid}/stat") as stat:
                pid = int(stat.read().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return judge.asks_to_oversubscribe(words)


def gather(MPI: Any, size: int, mine: Rank) -> list[Rank]:
    """Every rank's facts on every rank. Ranks that wait for slow imports sleep meanwhile."""
    if size == 1:
        return [mine]
    meeting = MPI.COMM_WORLD.Ibarrier()
    while not meeting.Test():
        time.sleep(0.005)
    return list(MPI.COMM_WORLD.allgather(mine))


def transports(tell: Teller, MPI: Any, size: int, visible: list[int], transport: str, threads: int) -> None:
    """GPUs, transport and speed, by the package's own means. Collective; torch is there on all ranks."""
    from fedproc_mpi.comm.serial import SerialComm
    from fedproc_mpi.config import Config
    from fedproc_mpi.placement.devices import Placement, place

    comm: Comm = SerialComm()
    if size > 1:
        from fedproc_mpi.comm.mpi import MpiComm

        comm = MpiComm(MPI.COMM_WORLD)
    tell.doing("GPU", TOGETHER_SECONDS)
    try:
        placement = place(Config.create(threads=threads), comm)
    except UserError as error:
        said, _, remedy = str(error).partition("; ")
        tell.tell(Finding(WRONG, "GPU", said, remedy))
        return
    told = comm.share(comm.collect(asdict(placement)))
    placements = [Placement(**facts) for facts in told]
    tell.tell(*judge.gpu_findings(placements, visible, comm.client_ranks, nvidia_devices()))
    verdict = judge.transport_finding(placements, comm.client_ranks, transport)
    tell.tell(verdict)
    if size == 1:
        tell.tell(Finding(OK, "speed", "alone: nothing to measure"))
    if size == 1 or verdict.level == WRONG:
        return
    tell.doing("transport", TOGETHER_SECONDS)
    connected = _connect(tell, comm, transport, placement, placements)
    if connected is None:
        return
    comm = connected
    tell.doing("speed", TOGETHER_SECONDS)
    tell.tell(*measure(comm, placement.device))
    tell.doing("transport's end", TOGETHER_SECONDS)
    comm.close()


def _connect(
    tell: Teller, comm: "Comm", transport: str, mine: "Placement", placements: "list[Placement]"
) -> "Comm | None":
    """The comm that a run would take, or None where it would end. Collective."""
    from fedproc_mpi.placement.transport import choose, connect_transport

    # What auto takes is asked for by name: auto itself would go on without a finding.
    asked = "torch" if choose(transport, placements, comm.client_ranks) != "mpi" else "mpi"
    try:
        return connect_transport(comm, asked, False, mine, placements)
    except UserError as error:
        if not error.agreed:  # the others wait in the backend: `main` ends them
            raise
        said, _, remedy = str(error).partition("; ")
    if transport == "torch":
        tell.tell(Finding(WRONG, "transport", said, remedy))
        return None
    tell.tell(Finding(WARNING, "transport", f"{said}: auto goes on over mpi", "mend that, or leave it so"))
    return comm


def measure(comm: "Comm", device: Any) -> list[Finding]:
    """Broadcasts and reduces of a large buffer, timed, values checked; findings on rank 0. Collective.

    One buffer of 200 MB a rank. A time is that of the slowest rank, from a moment when all are there.
    """
    import torch

    error, doubles = None, torch.empty(0)
    try:
        torch.set_num_threads(1)
        doubles = torch.zeros(VALUES, dtype=torch.float64, device=device)
    except RuntimeError as caught:
        error = UserError(f"no room for 200 MB on {device}: {judge.brief(str(caught), 1)}")
    try:
        comm.agree(error)
    except UserError as caught:
        return [Finding(WRONG, "speed", str(caught), "ask for more memory, or fewer ranks a host")]
    floats = doubles.view(torch.float32)[:VALUES]
    found = []
    for name, whole, act, mine, after in (
        ("broadcast", floats, comm.broadcast, int(comm.rank == 0), 1),
        ("reduce", doubles, comm.reduce, comm.rank + 1, comm.size * (comm.size + 1) // 2),
    ):
        # A small one first: it warms up, and tells how much of how large a buffer there is time for.
        buffer = whole[: VALUES // SMALL]
        first, right = _pass(comm, buffer, act, mine, after)
        plan = [1, 1]
        if first * SMALL <= MEASURE_SECONDS:
            plan = [SMALL, min(REPEATS, int(MEASURE_SECONDS / max(first * SMALL, 1e-9)))]
        elif first <= MEASURE_SECONDS:
            plan = [1, int(MEASURE_SECONDS / first)]
        parts, repeats = comm.share(plan)
        buffer = whole[: VALUES // SMALL * parts]
        seconds = []
        for i in range(repeats):
            last = i == repeats - 1
            taken, good = _pass(comm, buffer, act, *((mine, after) if last else (None, None)))
            seconds.append(taken)
            right &= good
        nbytes = buffer.numel() * buffer.element_size()
        found.append(judge.speed_finding(name, nbytes, seconds, right, _over(comm)))
    return found


def _pass(
    comm: "Comm", buffer: Any, act: Callable[[Any], None], mine: int | None, after: int | None
) -> tuple[float, bool]:
    """One collective: the slowest rank's seconds, and whether values are right where they count; on rank 0.

    mine: the ramp's factor before, after: where it counts afterwards; None: neither filled nor looked at.
    """
    import torch

    if mine is not None:
        _fill(buffer, mine)
    comm.share(None)
    start = time.perf_counter()
    act(buffer)
    if buffer.device.type == "cuda":
        torch.cuda.synchronize(buffer.device)
    taken = time.perf_counter() - start
    counts = after is not None and (comm.rank == 0 or act == comm.broadcast)
    reports = comm.collect([taken, _holds(buffer, after) if counts and after is not None else True])
    if reports is None:
        return taken, True
    return max(t for t, _ in reports), all(good for _, good in reports)


def _over(comm: "Comm") -> str:
    return str(getattr(comm, "backend", comm.name))


def _blocks(buffer: Any) -> Any:
    """The buffer in rows of PATTERN values, so that a row is a ramp; the rest is left out."""
    return buffer[: buffer.numel() // PATTERN * PATTERN].view(-1, PATTERN)


def _fill(buffer: Any, factor: int) -> None:
    import torch

    buffer.zero_()
    _blocks(buffer).copy_(torch.arange(PATTERN, dtype=buffer.dtype, device=buffer.device) * factor)


def _holds(buffer: Any, factor: int) -> bool:
    import torch

    ramp = torch.arange(PATTERN, dtype=buffer.dtype, device=buffer.device) * factor
    return all(bool((part == ramp).all()) for part in _blocks(buffer).split(1024))


def main() -> int:
    """Arguments: the pipe, transport, threads. Exit 0 when the examination went through."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # may be inherited as ignored or blocked
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    fd, transport, threads = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    tell = Teller(fd, speaks=is_first())
    try:
        if mpirun_inside_srun(os.environ) and os.environ.get("SLURM_PROCID") != "0":
            return QUIET  # one mpirun's ranks do for all
        examine(tell, transport, threads)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        tell._write({"failed": f"{type(error).__name__}: {judge.brief(str(error))}"})
        MPI = getattr(sys.modules.get("mpi4py"), "MPI", None)
        if MPI and MPI.Is_initialized() and MPI.COMM_WORLD.Get_size() > 1:
            MPI.COMM_WORLD.Abort(1)  # the others wait for this rank
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
