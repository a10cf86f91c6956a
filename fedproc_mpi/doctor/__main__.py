"""`python -m fedproc_mpi.doctor`: start the examination, watch it, print. Exit 1 when something is wrong.

The examination is a process of its own, since a broken MPI may end or hang the process that starts it. This
one imports neither MPI nor torch; under a launcher its child is the rank.
"""

import argparse
import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Any

from fedproc_mpi.comm.launch import launched_rank
from fedproc_mpi.doctor.examine import QUIET, is_first, nvidia_devices
from fedproc_mpi.doctor.findings import INSTALL, WRONG, Finding, brief, summary

GRACE = 15.0  # seconds for the first task to speak, before another ends: mpirun then ends them all
PROBE_SECONDS = 60.0
REMEDIES = {
    "MPI library": INSTALL,
    "HDF5": "use another folder; does its file server answer?",
    "MPI start": "start with this library's mpirun, or srun --mpi=pmix (Open MPI), --mpi=pmi2 (MPICH)",
    "meeting the other ranks": "a rank ended or hangs, or hosts do not reach each other: see stderr",
    "torch": "install torch again, for this machine's processor",
    "speed": "try --transport mpi, or another network layer of MPI (--mca btl tcp,self with Open MPI)",
}
HELP = """What this machine's MPI, GPUs and launcher give. Also under mpirun or srun; then the findings are of
all ranks, and a broadcast and a reduce are measured. Exit 0, or 1 when something is wrong."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print a report; 0, 1 when something is wrong, 2 for a wrong flag."""
    _open_standard_files()
    first = is_first()
    unheard = io.StringIO()
    try:
        with contextlib.ExitStack() as stack:
            if not first:
                stack.enter_context(contextlib.redirect_stderr(unheard))
                stack.enter_context(contextlib.redirect_stdout(unheard))
            options = _parser().parse_args(argv)
    except SystemExit as leaving:
        if not first and leaving.code:
            time.sleep(1)
        raise
    found, problem, code = _watch([options.transport, str(options.threads)])
    if found:
        _show(summary(found))
    elif problem:
        said = f"rank {launched_rank()} on {socket.gethostname()}: {problem.name}: {problem.said}"
        print(f"fedproc_mpi.doctor: {said}", file=sys.stderr, flush=True)
    elif code == QUIET:
        time.sleep(GRACE + PROBE_SECONDS * bool(nvidia_devices()))  # the first tries the GPU before it speaks
    return int(code == QUIET or problem is not None or any(f.level == WRONG for f in found))


def _watch(arguments: Sequence[str]) -> tuple[list[Finding], Finding | None, int]:
    """Findings, shown as they come; what ended the examination early; its exit code."""
    found: list[Finding] = []
    step, seconds, failed = "start", 0, ""
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    with _scratch() as said, os.fdopen(reading, errors="replace") as lines:
        child = subprocess.Popen(
            [sys.executable, "-m", "fedproc_mpi.doctor.examine", str(writing), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            close_fds=False,  # MPICH's launcher talks to a rank through a file that it inherits
        )
        os.close(writing)
        for line in lines:
            message = _read(line)
            step, seconds = message.get("doing", step), message.get("seconds", seconds)
            failed = message.get("failed", failed)
            if "finding" in message:
                found.append(Finding(**message["finding"]))
                _show(found[-1].text())
        code = child.wait()
        said.seek(0)
        words = brief(said.read(10_000).decode(errors="replace"))
    problem = None
    if code not in (0, QUIET):
        problem = early_end(step, seconds, code, failed, words)
        if found:  # this rank is the one that speaks
            found.append(problem)
            _show(problem.text())
    return found, problem, code


def early_end(step: str, seconds: int, code: int, failed: str, words: str) -> Finding:
    """The finding that the examination ended during `step`. failed: its own word; words: what was printed."""
    if failed:
        said = failed
    elif code == -signal.SIGALRM:
        said = f"no answer within {seconds} s"
    elif code < 0:
        said = f"the process was ended by {signal.Signals(-code).name} ({words})"
    else:
        said = f"the process ended itself with {code} ({words})"
    return Finding(
        WRONG,
        step,
        said,
        f"{REMEDIES.get(step, 'start it again; if it stays, tell us')}; what follows was not looked at",
    )


def _read(line: str) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except ValueError:  # cut off where the child died
        return {}
    return message if isinstance(message, dict) else {}


def _scratch() -> IO[bytes]:
    """A file for what libraries print, or nothing where no folder takes one."""
    try:
        return tempfile.TemporaryFile()
    except OSError:
        return open(os.devnull, "w+b")


def _show(text: str) -> None:
    """Print at once; a reader that went away does not end the report, whose exit code still counts."""
    try:
        print(text, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _open_standard_files() -> None:
    """Where stdin, stdout or stderr are closed, the next pipe would take their number."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m fedproc_mpi.doctor", description=HELP, allow_abbrev=False)
    parser.add_argument(
        "--transport", choices=("auto", "mpi", "torch"), default="auto", help="as the run will have it (auto)"
    )
    parser.add_argument("--threads", type=_positive, default=1, help="as the run will have it (1)")
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError("a whole number from 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
