"""Python files taken by their path: a user's own algorithm or model; the data_prep beside this package."""

import functools
import importlib.util
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


def use_data_prep() -> None:
    """Let `import data_prep` give the one beside this package: users have folders of that name themselves."""
    folder = Path(__file__).parents[1] / "data_prep"
    spec = importlib.util.spec_from_file_location(
        "data_prep", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is not None and spec.loader is not None and "data_prep" not in sys.modules:
        sys.modules["data_prep"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["data_prep"])
