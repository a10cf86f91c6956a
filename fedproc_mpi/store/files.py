"""How a run's files are written and read: whole or not at all, and no changed bit goes unnoticed."""

import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import torch

from fedproc_mpi.errors import UserError, reason

CONFIG, METRICS, SUMMARY, MODEL = "config.json", "metrics.jsonl", "summary.json", "model.pt"
CHECKPOINT, PREVIOUS, BEST = "checkpoint.pt", "checkpoint.prev.pt", "best.pt"


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into, which becomes `path` at the end: temporary name, fsync, rename.

    Whenever the process is killed, `path` is the old file or the new one. The rename is made to outlive a
    power failure.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_names(path.parent)
    except (OSError, RuntimeError):
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file of a run to write into, as `_replacing` makes it.

    Raises UserError where the disk is full or the directory cannot be written.
    """
    try:
        with _replacing(path) as file:
            yield file
    except (OSError, RuntimeError) as error:  # torch wraps what the system says in a RuntimeError
        if not path.parent.is_dir():
            raise UserError(f"cannot save {path}: {path.parent} is gone, and what was saved there") from error
        raise UserError(
            f"cannot save {path}: {reason(error)}; mend that (make room), and --resume goes on from the last "
            "checkpoint, if there is one"
        ) from error


def write_output(content: str | bytes, path: Path) -> None:
    """A file that a command makes for its user, whole or not at all. UserError where it cannot be written."""
    try:
        with _replacing(path) as file:
            file.write(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise UserError(f"cannot write {path}: {reason(error)}") from error


def save_tensors(value: Any, path: Path) -> None:
    """torch.save into `path`. Raises UserError as `replacing` does."""
    with replacing(path) as file:
        torch.save(value, file)


def save_text(text: str, path: Path) -> None:
    """UTF-8 text into `path`. Raises UserError as `replacing` does."""
    with replacing(path) as file:
        file.write(text.encode())


def save_json(value: Mapping[str, Any], path: Path) -> None:
    """A JSON object into `path`, a key per line. Raises UserError as `replacing` does."""
    save_text(json.dumps(value, indent=1) + "\n", path)


def read_tensors(path: Path) -> Any:
    """torch.load of what `save_tensors` wrote, on the CPU; any exception where a bit of it has changed."""
    check_archive(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def check_archive(path: Path) -> None:
    """Any exception where a bit of what torch.save wrote has changed, or the file is not there.

    The archive holds a CRC-32 of each tensor, at which torch.load does not look.
    """
    with zipfile.ZipFile(path) as archive:
        if damaged := archive.testzip():
            raise ValueError(f"{damaged} has changed")


def sync_names(directory: Path) -> None:
    """Have new names and renames of a directory outlive a power failure, where the file system can."""
    with suppress(OSError):
        fd = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
