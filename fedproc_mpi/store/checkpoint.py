"""The checkpoint: all that a run needs to go on, in one file, with the one before it kept.

It holds the round to go on with, the server's state at its start, the version of each client's own file
(`clients`), and the lines of all rounds so far, from which metrics.jsonl is made again.
"""

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedproc_mpi.errors import UserError, reason
from fedproc_mpi.store.files import BEST, CHECKPOINT, PREVIOUS, read_tensors, save_tensors, sync_names
from fedproc_mpi.terminal import say


def save(
    run_dir: Path,
    next_round: int,
    state: Mapping[str, Tensor],
    versions: Sequence[int],
    lines: Sequence[dict[str, Any]],
) -> None:
    """Make this the newest checkpoint, and the newest one the previous. UserError where that fails."""
    value = {
        "next_round": next_round,
        "state": {name: tensor.cpu().clone() for name, tensor in state.items()},
        "client_versions": list(versions),
        "lines": list(lines),
    }
    staged = run_dir / f".{CHECKPOINT}.staged"
    save_tensors(value, staged)
    try:
        # Between the two renames `load` finds the previous one, which is the state of the round before.
        with suppress(FileNotFoundError):
            os.replace(run_dir / CHECKPOINT, run_dir / PREVIOUS)
        os.replace(staged, run_dir / CHECKPOINT)
        sync_names(run_dir)
    except OSError as error:
        raise UserError(f"cannot save {run_dir / CHECKPOINT}: {reason(error)}") from error


def save_best(run_dir: Path, rounds: int, state: Mapping[str, Tensor], versions: Sequence[int]) -> None:
    """best.pt: the model after so many rounds, as a checkpoint without lines. UserError where that fails."""
    tensors = {name: tensor.cpu().clone() for name, tensor in state.items()}
    value = {"next_round": rounds, "state": tensors, "client_versions": list(versions)}
    save_tensors(value, run_dir / BEST)


def load(run_dir: Path, check: Callable[[Sequence[int]], None]) -> dict[str, Any] | None:
    """The newest good checkpoint of a run, None where there is none.

    Its keys are those of `save`, and "earlier_versions": a list of the versions that the checkpoint before
    names, if that can be read. check(versions) raises where a client's file of these versions is no good.
    A damaged newest checkpoint, or one that names a damaged file, gives its place to the previous one.
    Raises UserError when there are checkpoints but none is good, or when one cannot be read just now.
    """
    damaged: list[str] = []
    for name in (CHECKPOINT, PREVIOUS):
        if not (run_dir / name).exists():
            continue
        try:
            saved = read_tensors(run_dir / name)
            check(saved["client_versions"])
            saved["lines"], saved["state"]
        except Exception as error:  # a damaged file can fail in any way inside torch.load
            raise_unless_damaged(run_dir / name, error)
            damaged.append(f"{name}: {error if isinstance(error, UserError) else type(error).__name__}")
            continue
        if damaged:
            say(f"fedproc_mpi: {run_dir}: {damaged[0]}; going on from the checkpoint before")
            os.replace(run_dir / name, run_dir / CHECKPOINT)
        saved["earlier_versions"] = []
        with suppress(Exception):  # missing, or damaged in any way: it names nothing that could be used
            saved["earlier_versions"] = [versions_of(run_dir / PREVIOUS)]
        return dict(saved)
    if damaged:
        raise UserError(f"{run_dir}: no checkpoint is whole ({'; '.join(damaged)}); start a new run")
    return None


def versions_of(path: Path) -> list[int]:
    """The clients' versions that a checkpoint names; of its tensors nothing is read."""
    return list(torch.load(path, map_location="cpu", weights_only=True, mmap=True)["client_versions"])


def raise_unless_damaged(path: Path, error: Exception) -> None:
    """Raise UserError where a file cannot be read just now; what `error` says of it is no damage then.

    An I/O error is not corruption: falling back would delete newer, intact files.
    """
    cause = error.__cause__ or error
    # EINVAL: a damaged archive sends the reader to a place before the file's start.
    if isinstance(cause, OSError) and cause.errno not in (errno.ENOENT, errno.EINVAL):
        what = error if isinstance(error, UserError) else f"{path} cannot be read"
        raise UserError(
            f"{what}: {reason(cause)}; try again, or move that file away to go on from the checkpoint before"
        ) from error
