"""Algorithms, one file each: dropping `name.py` in here adds it to `--algorithm`.

A file holds one frozen dataclass derived from `Algorithm` (or from another algorithm). Its fields are
the algorithm's hyperparameters and become flags; the first line of its docstring is its line in --help.
"""

import functools
import importlib
import pkgutil
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedproc_mpi.algorithms.base import Algorithm
from fedproc_mpi.errors import UserError
from fedproc_mpi.flags import flag, nearest, settings_of, validate


def names() -> list[str]:
    """The algorithms of this folder."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in found if name not in ("base", "prototypes"))


def find(name: str) -> type[Algorithm]:
    """The class of an algorithm, by name or by the path of a user's file. UserError where there is none."""
    if name.endswith(".py"):
        try:
            module = _execute(name, Path(name).read_bytes())
        except OSError as error:
            raise UserError(f"--algorithm {name}: no such file") from error
    elif name in names():
        module = importlib.import_module(f"{__name__}.{name}")
    else:
        raise UserError(f"--algorithm {name}: no such algorithm; {nearest(name, names())}")
    own = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Algorithm) and value.__module__ == module.__name__
    ]
    if len(own) != 1:
        raise UserError(f"--algorithm {name}: the file must hold one Algorithm class, it has {len(own)}")
    return own[0]


@functools.cache
def _execute(name: str, source: bytes) -> types.ModuleType:
    """A user's file as a module; it is executed once, and again when it has changed."""
    module = types.ModuleType(f"{__name__}.own.{Path(name).stem}")
    module.__file__ = name
    sys.modules[module.__name__] = module  # dataclasses look up annotations there
    try:
        exec(compile(source, name, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise UserError(f"--algorithm {name}: {type(error).__name__}: {error}") from error
    return module


def build(name: str, options: Mapping[str, Any]) -> Algorithm:
    """An algorithm with these options. UserError for an unknown option or a wrong value."""
    kind = find(name)
    known = settings_of(kind)
    for key in options:
        if key not in known:
            raise UserError(f"{flag(key)} is no option of {name}; {nearest(flag(key), map(flag, known))}")
    algorithm = kind(**options)
    validate(algorithm)
    return algorithm
