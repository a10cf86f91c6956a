"""A user's own Python file as a module: an algorithm, a model."""

import functools
import sys
import types
from pathlib import Path

from fedproc_mpi.errors import UserError


def load_file(path: str, where: str) -> types.ModuleType:
    """The module of a file; it is executed once, and again when it has changed.

    where: the flag, for messages. Raises UserError where the file is missing or fails.
    """
    try:
        return _execute(path, Path(path).read_bytes(), where)
    except OSError as error:
        raise UserError(f"{where} {path}: no such file") from error


@functools.cache
def _execute(path: str, source: bytes, where: str) -> types.ModuleType:
    module = types.ModuleType(f"{__name__}.own.{Path(path).stem}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses look up annotations there
    try:
        exec(compile(source, path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise UserError(f"{where} {path}: {type(error).__name__}: {error}") from error
    return module
