"""What a run shows on the terminal: what runs where, then a line per round."""

import atexit
import sys
from collections.abc import Callable, Mapping
from typing import Any

from fedproc_mpi.comm import Comm
from fedproc_mpi.config import Config
from fedproc_mpi.flags import flag
from fedproc_mpi.learn.models import resolve
from fedproc_mpi.placement.devices import remarks
from fedproc_mpi.rank import Rank
from fedproc_mpi.store.run import RunStore
from fedproc_mpi.tensorboard import Board
from fedproc_mpi.terminal import say

Show = Callable[[Mapping[str, Any]], None]


def round_text(line: Mapping[str, Any], rounds: int) -> str:
    """A round's line for people, who count from 1."""
    accuracy, validated = line.get("accuracy"), line.get("val_accuracy")
    shown = "" if accuracy is None else f"  accuracy {100 * accuracy:5.2f} %"
    shown = shown if validated is None else f"  validation {100 * validated:5.2f} %"
    seconds = f"{line['round_seconds']:.2f} s"
    return f"round {line['round'] + 1}/{rounds}{shown}  loss {line['loss']:.4f}  {seconds}"


def setting_up(config: Config, comm: Comm) -> None:
    """Say what begins, before shards are read and models are built. On rank 0."""
    if comm.rank == 0:
        ranks = f"{comm.size} rank{'s' * (comm.size > 1)} over {comm.name}"
        say(f"fedproc_mpi: {config.algorithm} on {config.shards}, {ranks}: verifying the shards …")


def shower(rank: Rank, store: RunStore) -> Show:
    """Say what runs where, a line per rank; then a function that shows a round. Silent but on rank 0.

    On a terminal a progress bar, elsewhere plain lines.
    """
    config, first_round = rank.config, store.first_round
    if rank.comm.rank != 0:
        return lambda line: None
    shape = rank.shards.header.image_shape
    models = [f"{resolve(n, shape)} ({t.model.num_params:,} parameters)" for n, t in rank.trainers.items()]
    lines = [
        f"{config.algorithm}, {rank.comm.size} rank(s) over {rank.comm.name}, {len(rank.clients)} clients, "
        f"model {', '.join(models)}",
        *(placement.line() for placement in rank.placements),
        *remarks(rank.placements, rank.comm.client_ranks),
    ]
    idle = [flag(name) for name in ("server_gpu", "cuda_aware") if getattr(config, name)]
    if idle and all(placement.gpu is None for placement in rank.placements):
        lines.append(f"{' and '.join(idle)}: no effect, since no rank has a GPU")
    going_on = f", going on with round {first_round + 1} of {config.rounds}" if first_round else ""
    # Open MPI's mpirun drops what ranks say after Ctrl-C, so it is said now.
    lines.append(f"run directory {store.run_dir}{going_on}; if it is stopped, --resume goes on")
    say("\n".join(f"fedproc_mpi: {line}" for line in lines))
    on_terminal = _bar(config.rounds, first_round) if sys.stderr.isatty() else _line(config.rounds)
    if not config.tensorboard:
        return on_terminal
    board = Board(store.run_dir, rank.shards, store.lines)

    def show(line: Mapping[str, Any]) -> None:
        on_terminal(line)
        board.add(line)

    return show


def _line(rounds: int) -> Show:
    return lambda line: say(round_text(line, rounds))


def _bar(rounds: int, first_round: int) -> Show:
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
