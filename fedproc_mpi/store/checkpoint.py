"""Atomic save and resume. A rename is the only commit; the previous checkpoint is kept until the next."""

import errno
import os
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fedproc_mpi.errors import UserError, reason
from fedproc_mpi.learn.flat import State

NAME, PREVIOUS, STAGED = "checkpoint.pt", "checkpoint.prev.pt", ".checkpoint.staged.pt"


def save_atomically(value: Any, path: Path) -> None:
    """torch.save to a temporary name, fsync, rename: `path` is the old file or the new one, never half.

    Raises UserError when the disk is full or the directory is not writable; the old file stays good.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        write_synced(value, temporary)
        os.replace(temporary, path)
        sync_names(path.parent)
    except (OSError, RuntimeError) as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise UserError(
            f"cannot save {path}: {reason(error)}; what was saved before is still good: make room and go on "
            "with --resume"
        ) from error


def write_synced(value: Any, path: Path, mode: str = "wb") -> None:
    """torch.save and fsync. OSError or RuntimeError where that fails; what is there then is no good.

    The file's name needs `sync_names` to outlive a power failure. mode: "xb" where no file of that
    name may be there.
    """
    with open(path, mode) as file:
        torch.save(value, file)
        file.flush()
        os.fsync(file.fileno())


def sync_names(directory: Path) -> None:
    """Have new names and renames of a directory outlive a power failure, where the file system can."""
    with suppress(OSError):
        fd = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def read_checked(path: Path) -> Any:
    """torch.load of what torch.save wrote, on the CPU; any exception where a bit of it has changed.

    The archive holds a CRC-32 of each tensor, at which torch.load does not look.
    """
    check_archive(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def check_archive(path: Path) -> None:
    """Any exception where a bit of what torch.save wrote has changed, or the file is not there."""
    with zipfile.ZipFile(path) as archive:
        if damaged := archive.testzip():
            raise ValueError(f"{damaged} has changed")


def stage(run_dir: Path, state: State, next_round: int, versions: Sequence[int] = ()) -> None:
    """Write the server's state at the start of round `next_round`, not yet as the checkpoint.

    versions: the round of each client's own state (`client_state`).
    """
    tensors = {name: tensor.cpu().clone() for name, tensor in state.tensors().items()}
    value = {"next_round": next_round, "state": tensors, "client_versions": list(versions)}
    save_atomically(value, run_dir / STAGED)


def commit(run_dir: Path) -> None:
    """Make the staged state the checkpoint."""
    try:
        if (run_dir / NAME).exists():
            os.replace(run_dir / NAME, run_dir / PREVIOUS)
        os.replace(run_dir / STAGED, run_dir / NAME)
    except OSError as error:
        raise UserError(f"cannot save {error.filename2 or run_dir / NAME}: {reason(error)}") from error
    sync_names(run_dir)


def load(run_dir: Path, state: State, check: Callable[[Sequence[int]], None]) -> tuple[int, list[list[int]]]:
    """Fill `state` from the newest good checkpoint: (the round to go on with, 0: there is none; versions).

    versions: of each client, as this checkpoint names them, and as the one before it does.
    check(versions) raises where a file that they name is no good. A damaged newest checkpoint, or one
    that names a damaged file, gives its place to the previous one, which the next commit then keeps.
    Raises UserError when there are checkpoints but none is good.
    """
    broken: list[str] = []
    for name in (NAME, PREVIOUS):
        if not (run_dir / name).exists():
            continue
        try:
            saved = read_checked(run_dir / name)
            check(saved["client_versions"])
            for key, tensor in state.tensors().items():
                tensor.copy_(saved["state"][key])
        except Exception as error:  # a damaged file can fail in any way inside torch.load
            _raise_unless_damaged(run_dir / name, error)
            broken.append(f"{name}: {error if isinstance(error, UserError) else type(error).__name__}")
            continue
        if broken:
            print(f"fedproc_mpi: {run_dir}: {broken[0]}; going on from the checkpoint before", flush=True)
            os.replace(run_dir / name, run_dir / NAME)
        before = []
        with suppress(Exception):  # missing, or damaged in any way: it names nothing that could be used
            before = [versions_of(run_dir / PREVIOUS)]
        return int(saved["next_round"]), [list(saved["client_versions"]), *before]
    if broken:
        raise UserError(f"{run_dir}: no checkpoint is whole ({'; '.join(broken)}); start a new run")
    return 0, []


def _raise_unless_damaged(path: Path, error: Exception) -> None:
    """A file that cannot be read just now is no reason to go back: what is newer would be deleted."""
    cause = error.__cause__ or error
    # EINVAL: a damaged archive sends the reader to a place before the file's start.
    if isinstance(cause, OSError) and cause.errno not in (errno.ENOENT, errno.EINVAL):
        what = error if isinstance(error, UserError) else f"{path} cannot be read"
        raise UserError(
            f"{what}: {reason(cause)}; try again, or move that file away to go on from the checkpoint before"
        ) from error


def versions_of(path: Path) -> list[int]:
    """The clients' versions that a checkpoint names; of its tensors nothing is read."""
    return list(torch.load(path, map_location="cpu", weights_only=True, mmap=True)["client_versions"])
