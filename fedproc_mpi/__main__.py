"""`python -m fedproc_mpi`: one job from the command line. See --help."""

import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fedproc_mpi.comm.launch import connect, leave_when_told
from fedproc_mpi.errors import FedprocError, UserError
from fedproc_mpi.terminal import complain, say

if TYPE_CHECKING:
    from fedproc_mpi.comm import Comm
    from fedproc_mpi.config import Config
    from fedproc_mpi.federated import Result


def main(argv: Sequence[str] | None = None) -> int:
    """Run; the exit code is 0, 2 (user's input), 3 (training failed), 75 (stopped, to be resumed)."""
    leave_when_told()
    try:
        comm = connect()  # before torch: a wrong launch is told at once
    except FedprocError as error:
        complain(f"fedproc_mpi: {error}")
        return error.exit_code
    try:
        return _run(list(sys.argv[1:] if argv is None else argv), comm)
    except FedprocError as error:
        if comm.rank == 0 or not error.agreed:
            where = "" if error.agreed or comm.rank == 0 else f" (rank {comm.rank})"
            complain(f"fedproc_mpi: {error}{where}")
        if not error.agreed and comm.size > 1:
            comm.abort(error.exit_code)
        if comm.size > 1:  # at the first rank's exit the launcher may end the others, who leave as well
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        return error.exit_code
    except BaseException as error:  # sys.exit in a user's code and Ctrl-C too: one rank must not leave alone
        if comm.size == 1 and not isinstance(error, Exception):
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
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # nothing is left to stop
    if result is not None:
        _show(result)
    return 0


def _parse_together(argv: list[str], comm: "Comm") -> "Config | None":
    """The config that rank 0 read, on every rank; None after --help."""
    config = None
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
    except OSError as error:  # the run itself is done, and saved
        picture = f"none: {error.strerror}"
    split = ", ".join(f"{k} {v:.1f}" for k, v in summary["seconds"].items() if v >= 0.05)
    say(
        f"\nfinal accuracy  {100 * summary['final_accuracy']:.2f} %"
        f"\nbest accuracy   {100 * summary['best_accuracy']:.2f} %"
        f"\nseconds         {summary['total_seconds']:.1f} ({split})"
        f"\nmodel_sha256    {summary['model_sha256']}"
        f"\nrun directory   {result.run_dir}"
        f"\npicture         {picture}"
    )


if __name__ == "__main__":
    sys.exit(main())
