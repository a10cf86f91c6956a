"""`python -m fedproc_mpi.doctor`: the order of the checks, and the printing. Exit 1 when something is wrong.

A finding is printed as it comes. What may hang or crash is named before, so that the last line tells what
it was: a rank that waits too long is ended by `faulthandler`, and its launcher then ends the others.
"""

import faulthandler
import io
import os
import platform
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from typing import TextIO

from fedproc_mpi.comm import launch
from fedproc_mpi.comm.library import library_text, parse_mpi
from fedproc_mpi.config import Config
from fedproc_mpi.doctor import findings as judge
from fedproc_mpi.doctor import look
from fedproc_mpi.doctor.findings import OK, WARNING, WRONG, Finding
from fedproc_mpi.errors import FedprocError, UserError
from fedproc_mpi.flags import Parser
from fedproc_mpi.terminal import complain, open_closed_streams, say

ALONE, TOGETHER = 90, 240  # seconds for a step of one process, and for one in which all ranks must meet
QUIET_SECONDS = 15  # other tasks wait this long, so that the one that speaks is done before the job ends
HELP = """What this machine's MPI, launcher, cores, GPUs and folder give; under mpirun or srun too. A line
'...' names what is tried next: where it is the last, this hung or crashed. Exit 1 when something is wrong."""


class Report:
    """Prints findings and steps, where this rank is the one that speaks."""

    def __init__(self) -> None:
        self.speaks, self.doing = launch.speaks(), ""
        self._found: list[Finding] = []

    @contextmanager
    def step(self, name: str, seconds: float = TOGETHER) -> Iterator[None]:
        """Something that may hang or crash: named before, and ended after `seconds` with exit code 1."""
        self.doing = name
        self._say(f"{'...':8} {name}", sys.stderr)
        faulthandler.dump_traceback_later(seconds, exit=True, file=2)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()

    def tell(self, *found: Finding) -> None:
        """Findings, at once."""
        self._found += found
        for finding in found:
            self._say(finding.text())

    def check(self, name: str, ask: Callable[[], list[Finding]]) -> None:
        """A step of the speaking rank alone; that it fails is a finding."""
        if not self.speaks:
            return
        try:
            with self.step(name, ALONE):
                self.tell(*ask())
        except Exception as error:
            self.fail(f"this check failed: {type(error).__name__}: {judge.brief(str(error))}")

    def fail(self, said: str) -> None:
        """The step under way went wrong in a way that nobody foresaw."""
        if not self.speaks:
            where = f"rank {launch.launched_rank()} on {socket.gethostname()}"
            complain(f"fedproc_mpi.doctor: {where}: {self.doing}: {said}")
        self.tell(Finding(WRONG, self.doing, said, "see whether the lines above explain it; else tell us"))

    def end(self) -> int:
        """The last line, and the exit code."""
        self._say(judge.summary(self._found))
        faulthandler.dump_traceback_later(TOGETHER, exit=True, file=2)  # MPI's own end may hang
        return int(any(f.level == WRONG for f in self._found))

    def _say(self, text: str, to: TextIO | None = None) -> None:
        if self.speaks:
            say(text, to)


def main(argv: Sequence[str] | None = None) -> int:
    """Print a report; 0, 1 when something is wrong, 2 for a wrong flag."""
    open_closed_streams()
    faulthandler.enable()
    report = Report()
    transport, config = _parse(argv, report.speaks)
    text = _alone(report)
    try:
        if _launched_right(report, bool(text)):
            with report.step("torch"):  # many imports at once, on few cores, from a slow disk
                import torch  # noqa: F401 - a broken one is told here, by its own rank
            _together(report, transport, config, text)
    except FedprocError as error:
        report.tell(judge.refusal(report.doing, error))
        if not error.agreed:
            launch.abort(1)  # the others wait for this rank
    except Exception as error:
        report.fail(f"{type(error).__name__}: {judge.brief(str(error))}")
        launch.abort(1)
    return report.end()


def _alone(report: Report) -> str:
    """What one process can find out before MPI starts, after which it must not fork; MPI's version."""
    report.check("Python", lambda: [Finding(OK, "Python", f"{platform.python_version()}, {sys.executable}")])
    text = ""
    try:
        with report.step("MPI library"):
            text = library_text()
        said = [str(parse_mpi(text) or judge.brief(text, 1)), *look.loaded_libraries()]
        report.tell(Finding(OK, "MPI library", ", ".join(said)))
    except UserError as error:
        report.tell(Finding(WRONG, "MPI library", str(error), judge.INSTALL))
    library, launched = parse_mpi(text), max(launch.launched_tasks().values(), default=0)
    if launched:
        report.check("launcher", lambda: [judge.launcher_finding(os.environ, launched, library)])
    else:
        report.check("mpirun", lambda: look.mpirun(library))
    report.check("HDF5", lambda: [look.hdf5(os.getcwd())])
    report.check("Slurm", lambda: judge.slurm_findings(os.environ, len(launch.own_cores())))
    if look.nvidia_devices() and text:
        report.check("CUDA-aware", look.cuda_aware)
    return text


def _launched_right(report: Report, has_mpi: bool) -> bool:
    """Start MPI where a launcher started tasks. False where this task has no more to say."""
    tasks = launch.launched_tasks()
    if not tasks:
        return True
    with report.step("MPI start"):
        size = launch.mpi_size() if has_mpi else None
    mistake = launch.mpirun_inside_srun() or launch.many_jobs(tasks, size)
    if mistake is not None:
        report.tell(judge.refusal("launch", mistake))
        if not report.speaks:
            time.sleep(QUIET_SECONDS)
        return False
    return has_mpi


def _together(report: Report, transport: str, config: Config, text: str) -> None:
    """What all ranks find out: cores, versions, GPUs, transport, speed. Collective."""
    from fedproc_mpi.placement.devices import place
    from fedproc_mpi.placement.transport import connect_transport

    with report.step("meeting the other ranks"):
        comm = launch.connect()
        report.speaks = comm.rank == 0
        ranks = comm.exchange(look.this_rank(comm.rank, text))
    report.tell(Finding(OK, "torch", ranks[0].versions["torch"]))
    crowded = launch.oversubscription_asked()
    report.tell(*judge.host_findings(ranks, comm.client_ranks, config.threads, crowded))
    report.tell(*judge.difference_findings(ranks))
    with report.step("GPU"):
        placement = place(config, comm)
        placements = comm.exchange(placement)
    visible = [rank.gpus for rank in ranks]
    report.tell(*judge.gpu_findings(placements, visible, comm.client_ranks, look.nvidia_devices()))
    chosen, finding = judge.transport_finding(placements, comm.client_ranks, transport)
    report.tell(finding)
    if not chosen:
        return
    with report.step("transport"):
        connected = connect_transport(comm, transport, False, placement, placements)
    if connected is comm and chosen != "mpi":
        report.tell(Finding(WARNING, "transport", "auto goes on over mpi", "see the line above"))
    with report.step("speed"):
        report.tell(*look.measure(connected, placement.device))
        if connected is not comm:
            connected.close()


def _parse(argv: Sequence[str] | None, speaks: bool) -> tuple[str, Config]:
    """--transport, and a config with --threads. One rank alone tells what is wrong with a flag."""
    parser = Parser("the doctor", prog="python -m fedproc_mpi.doctor", description=HELP)
    parser.add_argument("--transport", default="auto", choices=("auto", "mpi", "torch"), help="as the run's")
    parser.add_argument("--threads", type=int, default=1, help="as the run's")
    try:
        with nullcontext() if speaks else redirect_stdout(io.StringIO()):  # --help
            given = parser.parse_args(argv)
        return given.transport, Config(threads=given.threads)
    except UserError as error:
        launch.refuse(error)


if __name__ == "__main__":
    sys.exit(main())
