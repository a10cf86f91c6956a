"""How far the runs of a study are, from what they left."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from fedproc_mpi.errors import UserError
from fedproc_mpi.report.tables import NONE, Table
from fedproc_mpi.store.lock import is_written
from fedproc_mpi.store.metrics import read_metrics, read_summary
from fedproc_mpi.store.rundir import is_finished
from fedproc_mpi.studies.cost import in_words, remaining_seconds
from fedproc_mpi.studies.plan import PlannedRun
from fedproc_mpi.terminal import say

LOGS = "logs"  # the folder in the study's directory for what the runs print
DONE, RUNNING, FAILED, STOPPED, WAITING = "done", "running", "failed", "stopped", "waiting"


@dataclass(frozen=True)
class State:
    """Of one run. rounds: those that are done. seconds: of each of these. accuracy: the final one."""

    run: PlannedRun
    what: str
    rounds: int = 0
    seconds: Sequence[float] = ()
    accuracy: float | None = None


def state_of(run: PlannedRun, out: Path) -> State:
    """How far a run is."""
    directory, code = out / run.name, exit_code(run, out)
    lines = read_metrics(directory) if directory.is_dir() else []
    seconds = [float(line["round_seconds"]) for line in lines]
    if is_finished(directory):
        accuracy = None
        with suppress(UserError):
            accuracy = read_summary(directory).get("final_accuracy")
        return State(run, DONE, len(lines), seconds, accuracy)
    if directory.is_dir() and is_written(directory):
        return State(run, RUNNING, len(lines), seconds)
    if code not in (None, 0, 75):
        return State(run, FAILED, len(lines), seconds)
    return State(run, STOPPED if lines else WAITING, len(lines), seconds)


def exit_code(run: PlannedRun, out: Path) -> int | None:
    """What a run that was started here returned the last time; None where it was not."""
    try:
        return int((out / LOGS / f"{run.name}.exit").read_text())
    except (OSError, ValueError):
        return None


def table(states: Sequence[State]) -> Table:
    """A row per run."""
    rows = []
    for state in states:
        accuracy = NONE if state.accuracy is None else f"{100 * state.accuracy:.2f}"
        total = sum(state.seconds)
        rows.append(
            [
                state.run.name,
                state.what,
                f"{state.rounds}/{state.run.config.rounds}",
                accuracy,
                in_words(total) if state.seconds else NONE,
            ]
        )
    return Table(["run", "state", "rounds", "final accuracy, %", "time"], rows, "llrrr")


def in_short(states: Sequence[State], at_once: int = 1) -> str:
    """`3 done, 1 running, 2 waiting; still about 2 h`. at_once: how many runs go on at a time."""
    counts = Counter(state.what for state in states)
    parts = [f"{counts[what]} {what}" for what in (DONE, RUNNING, STOPPED, FAILED, WAITING) if counts[what]]
    rounds: dict[str, list[float]] = {}
    missing: Counter[str] = Counter()
    for state in states:
        kind = state.run.config.algorithm
        rounds.setdefault(kind, []).extend(state.seconds)
        if state.what not in (DONE, FAILED):
            missing[kind] += state.run.config.rounds - state.rounds
    told = ", ".join(parts)
    if not missing:
        return told
    seconds = remaining_seconds(rounds, missing)
    return f"{told}; still about {in_words(None if seconds is None else seconds / at_once)}"


class Shown:
    """What a local study shows while it runs: a live table on a terminal, else a line per finished run."""

    def __init__(self, runs: Sequence[PlannedRun], out: Path) -> None:
        self._out, self._states = out, {run.name: state_of(run, out) for run in runs}
        self._live: Live | None = None

    def __enter__(self) -> "Shown":
        console = Console(stderr=True)
        if console.is_terminal:
            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, run: PlannedRun) -> None:
        """The present run goes on."""
        if self._live is None:
            return
        self._states[run.name] = state_of(run, self._out)
        states = list(self._states.values())
        near = max(0, list(self._states).index(run.name) - 5)
        text = f"{table(states[near : near + 15]).text()}\n\n{in_short(states)}"
        self._live.update(Text(text), refresh=True)

    def tell(self, run: PlannedRun, code: int) -> None:
        """A run has ended."""
        state = self._states[run.name] = state_of(run, self._out)
        accuracy = "" if state.accuracy is None else f", final accuracy {100 * state.accuracy:.2f} %"
        how = state.what if code in (0, 75) else f"{FAILED}, exit code {code}"
        rest = in_short(list(self._states.values()))
        say(f"study: {run.name}: {how}{accuracy} ({in_words(sum(state.seconds))}); {rest}")
