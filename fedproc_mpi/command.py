"""How a command starts and ends: streams that are there, one-line errors, the exit code."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fedproc_mpi.errors import FedprocError, UserError, from_system
from fedproc_mpi.terminal import complain, open_closed_streams

INTERRUPTED = 130  # as a shell tells of Ctrl-C


def require_new(out: Path, endings: Sequence[str]) -> None:
    """Raise UserError where `--out` is no new file with one of these endings in a folder that is there."""
    if out.suffix not in endings:
        raise UserError(f"--out {out}: must end in {' or '.join(endings)}")
    if out.exists() or out.is_symlink():
        raise UserError(f"{out} exists; choose another --out, or remove it")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: no folder {out.parent}; make it first")


def run_command(name: str, work: Callable[[list[str]], None], argv: Sequence[str] | None = None) -> int:
    """Do a command's work with its words, by default those it was started with; returns the exit code.

    A FedprocError, and what the system refuses, become one line on standard error that begins with `name`.
    """
    open_closed_streams()
    try:
        work(list(sys.argv[1:] if argv is None else argv))
    except FedprocError as error:
        complain(f"{name}: {error}")
        return error.exit_code
    except OSError as error:  # what nobody foresaw: unreadable files, a full disk
        complain(f"{name}: {from_system(error)}")
        return UserError.exit_code
    except SystemExit as left:  # --help
        return left.code if isinstance(left.code, int) else 0
    except KeyboardInterrupt:
        complain(f"{name}: interrupted")
        return INTERRUPTED
    return 0
