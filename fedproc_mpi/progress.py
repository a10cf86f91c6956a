"""What a run shows on the terminal: what runs where, then a line per round."""

import atexit
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedproc_mpi.comm import Comm
from fedproc_mpi.config import Config
from fedproc_mpi.placement.devices import Placement, remarks

Show = Callable[[Mapping[str, Any]], None]


def show_start(config: Config, comm: Comm, placements: Sequence[Placement]) -> None:
    """One line per rank, and what to know of it."""
    lines = [f"{config.algorithm}, {comm.size} rank(s) over {comm.name}"]
    lines += [placement.line() for placement in placements]
    lines += remarks(placements, comm.client_ranks)
    print("\n".join(f"fedproc_mpi: {line}" for line in lines), flush=True)


def round_text(line: Mapping[str, Any], rounds: int) -> str:
    """A round's line for people, who count from 1."""
    accuracy = line.get("accuracy")
    shown = "" if accuracy is None else f"  accuracy {100 * accuracy:5.2f} %"
    seconds = f"{line['round_seconds']:.2f} s"
    return f"round {line['round'] + 1}/{rounds}{shown}  loss {line['loss']:.4f}  {seconds}"


def round_shower(rounds: int, first_round: int, rank: int) -> Show:
    """A function that shows a round: a progress bar on a terminal, plain lines elsewhere; on rank 0."""
    if rank != 0:
        return lambda line: None
    if not sys.stderr.isatty():
        return lambda line: print(round_text(line, rounds), flush=True)
    from rich.progress import Progress, TimeRemainingColumn

    progress = Progress(*Progress.get_default_columns()[:3], TimeRemainingColumn(), transient=True)
    task = progress.add_task(f"round {first_round}/{rounds}", total=rounds, completed=first_round)
    progress.start()
    atexit.register(progress.stop)  # however the run ends, the terminal gets its cursor back

    def show(line: Mapping[str, Any]) -> None:
        progress.update(task, completed=line["round"] + 1, description=round_text(line, rounds))
        if line["round"] + 1 == rounds:
            progress.stop()

    return show
