"""`python -m fedproc_mpi`: one job from the command line, or one of the commands. See --help."""

import importlib
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fedproc_mpi.comm.launch import STOP_SIGNALS, connect, leave_when_told
from fedproc_mpi.command import INTERRUPTED
from fedproc_mpi.errors import FedprocError, UserError, from_system, reason
from fedproc_mpi.plugins import use_data_prep
from fedproc_mpi.terminal import complain, open_closed_streams, say

if TYPE_CHECKING:
    from fedproc_mpi.comm import Comm
    from fedproc_mpi.config import Config
    from fedproc_mpi.federated import Result

COMMANDS = {  # `fedproc-mpi NAME …` is `python -m fedproc_mpi.NAME …`
    "compare": "compare",
    "evaluate": "evaluate",
    "doctor": "doctor.__main__",
    "export": "export",
    "predict": "predict",
    "report": "report.__main__",
    "scaling": "scaling",
    "study": "study",
}
TOO_EARLY = "interrupted before a round began; start it again"


def main(argv: Sequence[str] | None = None) -> int:
    """Run; the exit code is 0, 2 (user's input), 3 (training failed), 75 (stopped, to be resumed)."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in COMMANDS:
        return int(importlib.import_module(f"fedproc_mpi.{COMMANDS[words[0]]}").main(words[1:]))
    open_closed_streams()
    leave_when_told()
    try:
        Path.cwd()  # without it torch, which `connect` imports where there is no launcher, ends the process
        comm = connect()  # before torch where there is one: a wrong launch is told at once
    except FedprocError as refused:
        complain(f"fedproc_mpi: {refused}")
        return refused.exit_code
    except FileNotFoundError:
        complain("fedproc_mpi: the working directory is gone; start from one that is there")
        return UserError.exit_code
    except KeyboardInterrupt:
        complain(f"fedproc_mpi: {TOO_EARLY}")
        return INTERRUPTED
    try:
        return _run(words, comm)
    except (FedprocError, OSError) as caught:
        error = caught if isinstance(caught, FedprocError) else from_system(caught)
        if comm.rank == 0 or not error.agreed:
            where = "" if error.agreed or comm.rank == 0 else f" (rank {comm.rank})"
            complain(f"fedproc_mpi: {error}{where}")
        if not error.agreed and comm.size > 1:
            comm.abort(error.exit_code)
        if comm.size > 1:  # at the first rank's exit the launcher may end the others, who leave as well
            _ignore(STOP_SIGNALS)
        return error.exit_code
    except KeyboardInterrupt as interrupt:  # the second Ctrl-C, or one before the rounds
        _ignore([signal.SIGINT])
        if comm.rank == 0:
            complain(f"fedproc_mpi: {str(interrupt) or TOO_EARLY}")
        if comm.size > 1:
            comm.abort(INTERRUPTED)
        return INTERRUPTED
    except BaseException as crash:  # sys.exit in a user's code too: one rank must not leave alone
        if comm.size == 1 and not isinstance(crash, Exception):
            raise
        complain(f"fedproc_mpi: rank {comm.rank} failed:\n{traceback.format_exc()}")
        if comm.size > 1:
            comm.abort(1)
        return 1


def _run(argv: list[str], comm: "Comm") -> int:
    """Rank 0 reads the command line, all run, rank 0 shows the summary."""
    config = _parse_together(argv, comm)
    if config is None:
        return 0
    from fedproc_mpi.federated import run

    result = run(config, comm)
    _ignore(STOP_SIGNALS[1:])  # nothing is left to stop
    if result is not None:
        _show(result)
    return 0


def _ignore(signals: Sequence[int]) -> None:
    for number in signals:
        signal.signal(number, signal.SIG_IGN)


def _parse_together(argv: list[str], comm: "Comm") -> "Config | None":
    """The config that rank 0 read, on every rank; None after --help."""
    config = None
    started = comm.exchange(argv)
    if others := [rank for rank, flags in enumerate(started) if flags != argv]:
        raise UserError(f"rank {others[0]} was started with other flags than rank {comm.rank}", agreed=True)
    with comm.agreed():
        if comm.rank == 0:
            from fedproc_mpi.cli import parse

            with suppress(SystemExit):  # --help
                config = parse(argv)
                started_as = ("auto", "mpi", "torch") if comm.name == "mpi" else ("auto", "serial", "torch")
                if config.transport not in started_as:
                    raise UserError(f"--transport {config.transport}, but this was started as {comm.name}")
                _find_shards(config)
    return comm.share(config)


def _find_shards(config: "Config") -> None:
    """Make the default shards file where it is missing; of another one say how to make it (UserError)."""
    use_data_prep()
    from data_prep.cli import require, shard_digits
    from fedproc_mpi.config import DIGITS_SHARDS

    if config.shards == DIGITS_SHARDS and not Path(DIGITS_SHARDS).exists():
        shard_digits(Path(DIGITS_SHARDS))
    require(Path(config.shards_copy or config.shards))


def _show(result: "Result") -> None:
    """The summary in words, and the accuracy curve."""
    from fedproc_mpi.report.curves import plot_accuracy

    summary = result.summary
    try:
        picture = str(plot_accuracy([result.run_dir], result.run_dir / "accuracy.png"))
    except Exception as error:  # the run itself is done, and saved
        picture = f"none: {reason(error)}"
    number, chosen_on = summary.get("best_round"), summary.get("best_chosen_on", "test")
    chosen = f"round {number + 1}, chosen on the {chosen_on} set" if number is not None else "of its kind"
    best = summary["best_accuracy"]
    best_text = "unknown" if best is None else f"{100 * best:.2f} %"
    split = ", ".join(f"{k} {v:.1f}" for k, v in summary["seconds"].items() if v >= 0.05)
    say(
        f"\nfinal accuracy  {100 * summary['final_accuracy']:.2f} %"
        f"\nbest accuracy   {best_text} ({chosen})"
        f"\nseconds         {summary['total_seconds']:.1f} ({split})"
        f"\nmodel_sha256    {summary['model_sha256']}"
        f"\nrun directory   {result.run_dir}"
        f"\npicture         {picture}"
    )


if __name__ == "__main__":
    sys.exit(main())
