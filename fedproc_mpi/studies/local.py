"""A study's runs one after another on this machine, each as a job of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from fedproc_mpi.comm.launch import STOP_SIGNALS
from fedproc_mpi.comm.mpirun import ALLOWED, launch_words
from fedproc_mpi.errors import Stopped
from fedproc_mpi.studies.plan import PlannedRun
from fedproc_mpi.studies.progress import LOGS


class Runner:
    """Starts jobs and hands on the signals that ask to stop. Used as a `with` block.

    A stop ends the present job after its round; `start` then raises Stopped.
    """

    def __init__(self, ranks: int) -> None:
        self._launch = launch_words(ranks)
        self._job: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def __enter__(self) -> "Runner":
        self._before = {n: signal.signal(n, self._stop) for n in (*STOP_SIGNALS, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def start(self, words: Sequence[str], log: Path, wait: Callable[[], None]) -> int:
        """Run `python -m fedproc_mpi WORDS` to its end; returns its exit code.

        log: gets what it prints, behind what is there. wait: called every second. Raises Stopped where the
        job, or the next one, must not go on.
        """
        if self._stopping:
            raise Stopped("stopped; the same command goes on")
        environment = {**ALLOWED, **os.environ}
        with log.open("ab") as file:
            self._job = subprocess.Popen(
                [*self._launch, sys.executable, "-m", "fedproc_mpi", *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches the job as SIGUSR1 alone, which Open MPI hands on
            )
            while True:
                try:
                    code = self._job.wait(1)
                    break
                except subprocess.TimeoutExpired:
                    wait()
        self._job = None
        if self._stopping and code != 0:
            raise Stopped("stopped; the same command goes on")
        return code

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True
        if self._job is not None:
            self._job.send_signal(signal.SIGUSR1)


def run_here(run: PlannedRun, out: Path, runner: Runner, wait: Callable[[], None]) -> int:
    """One run of a study, from its checkpoint where there is one; returns and keeps its exit code."""
    logs = out / LOGS
    logs.mkdir(parents=True, exist_ok=True)
    kept = logs / f"{run.name}.exit"
    kept.unlink(missing_ok=True)
    code = runner.start([*run.words, "--resume"], logs / f"{run.name}.log", wait)
    kept.write_text(f"{code}\n")
    return code
