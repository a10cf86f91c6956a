"""What a run shows on the terminal: what runs where, then a line per round."""

import atexit
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedproc_mpi.comm import Comm
from fedproc_mpi.config import Config
from fedproc_mpi.placement.devices import Placement, remarks
from fedproc_mpi.terminal import say

Show = Callable[[Mapping[str, Any]], None]


def round_text(line: Mapping[str, Any], rounds: int) -> str:
    """A round's line for people, who count from 1."""
    accuracy = line.get("accuracy")
    shown = "" if accuracy is None else f"  accuracy {100 * accuracy:5.2f} %"
    seconds = f"{line['round_seconds']:.2f} s"
    return f"round {line['round'] + 1}/{rounds}{shown}  loss {line['loss']:.4f}  {seconds}"


def shower(config: Config, comm: Comm, placements: Sequence[Placement], first_round: int) -> Show:
    """Say what runs where, a line per rank; then a function that shows a round. Silent but on rank 0.

    On a terminal a progress bar, elsewhere plain lines.
    """
    if comm.rank != 0:
        return lambda line: None
    lines = [f"{config.algorithm}, {comm.size} rank(s) over {comm.name}"]
    lines += [placement.line() for placement in placements]
    lines += remarks(placements, comm.client_ranks)
    say("\n".join(f"fedproc_mpi: {line}" for line in lines))
    if not sys.stderr.isatty():
        return lambda line: say(round_text(line, config.rounds))
    from rich.progress import Progress, TimeRemainingColumn

    progress = Progress(*Progress.get_default_columns()[:3], TimeRemainingColumn(), transient=True)
    task = progress.add_task(
        f"round {first_round}/{config.rounds}", total=config.rounds, completed=first_round
    )
    progress.start()
    atexit.register(progress.stop)  # however the run ends, the terminal gets its cursor back

    def show(line: Mapping[str, Any]) -> None:
        progress.update(task, completed=line["round"] + 1, description=round_text(line, config.rounds))
        if line["round"] + 1 == config.rounds:
            progress.stop()

    return show
