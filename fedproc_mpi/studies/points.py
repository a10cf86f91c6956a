"""The points of a scaling study: which run on how many ranks, and what each one measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from fedproc_mpi.cli import parse
from fedproc_mpi.store.metrics import read_metrics, read_summary
from fedproc_mpi.store.rundir import is_finished
from fedproc_mpi.studies.plan import PlannedRun

WARM_UP = 1  # rounds that do not count: memory is touched and connections are made


@dataclass(frozen=True)
class Size:
    """What the points share. clients: of one client rank where weak, of all else. samples: of a client."""

    clients: int
    samples: int
    rounds: int
    local_epochs: int
    words: Sequence[str] = ()


@dataclass(frozen=True)
class Point:
    """One run. axis: strong, weak, or clients. client_ranks: those that train, beside the server."""

    axis: str
    client_ranks: int
    clients: int
    cohort: int
    run: PlannedRun
    data: Sequence[str]

    @property
    def ranks(self) -> int:
        """Processes."""
        return self.client_ranks + 1


@dataclass(frozen=True)
class Measured:
    """Of a finished point: medians over the rounds that count, in seconds; the rest from its summary."""

    point: Point
    round_seconds: float
    seconds: Mapping[str, float]
    imbalance: float
    broadcast_bytes: int
    reduce_bytes: int
    peak_memory_mb: float
    rounds: int


def plan(axis: str, client_ranks: Sequence[int], size: Size, out: Path) -> list[Point]:
    """strong: the same work on 1, 2, 4 … client ranks. weak: the same work for each client rank. clients: m
    and the cohort at the largest number of client ranks. UserError for wrong flags."""
    most = max(client_ranks)
    if axis == "strong":
        wanted = [(c, size.clients, size.clients) for c in client_ranks]
    elif axis == "weak":
        wanted = [(c, size.clients * c, size.clients * c) for c in client_ranks]
    else:
        m = size.clients
        wanted = [(most, 4 * m, m), (most, 16 * m, m), (most, 64 * m, m)]  # m grows, the cohort does not
        wanted += [(most, 16 * m, 4 * m), (most, 16 * m, 16 * m)]  # the cohort grows
    return [_point(axis, c, clients, cohort, size, out) for c, clients, cohort in dict.fromkeys(wanted)]


def _point(axis: str, client_ranks: int, clients: int, cohort: int, size: Size, out: Path) -> Point:
    shards = out / "shards" / f"synthetic_m{clients}_n{size.samples}.h5"
    name = f"{axis}-r{client_ranks}-m{clients}-c{cohort}"
    words = [
        *("--shards", str(shards), "--rounds", str(size.rounds), "--local-epochs", str(size.local_epochs)),
        *("--sample-rate", repr(cohort / clients), "--lr", "0.001", *size.words),
        *("--run-dir", str(out / name)),
    ]
    data = ["synthetic", "--clients", str(clients), "--samples", str(size.samples), "--out", str(shards)]
    return Point(axis, client_ranks, clients, cohort, PlannedRun(name, words, parse(words)), data)


def measured(point: Point, out: Path) -> Measured | None:
    """What a point gave; None where its run is not finished."""
    directory = out / point.run.name
    if not is_finished(directory):
        return None
    summary: Mapping[str, Any] = read_summary(directory)
    lines = read_metrics(directory)[WARM_UP:]
    phases = dict.fromkeys(phase for line in lines for phase in line["seconds"])
    seconds = {phase: median(float(line["seconds"].get(phase, 0.0)) for line in lines) for phase in phases}
    return Measured(
        point,
        median(float(line["round_seconds"]) for line in lines),
        seconds,
        median(float(line.get("imbalance", 1.0)) for line in lines),
        int(summary["broadcast_bytes"]),
        int(summary["reduce_bytes"]),
        max(map(float, summary["peak_memory_mb"])),
        len(lines),
    )
