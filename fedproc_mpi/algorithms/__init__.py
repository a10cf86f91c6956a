"""Algorithms, one file each: dropping `name.py` in here adds it to `--algorithm`.

A file holds one frozen dataclass derived from `Algorithm` (or from another algorithm). Its fields are
the algorithm's hyperparameters and become flags; the first line of its docstring is its line in --help.
"""

import dataclasses
import importlib
import importlib.util
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

from fedproc_mpi.algorithms.base import Algorithm
from fedproc_mpi.config import flag, nearest
from fedproc_mpi.errors import UserError


def names() -> list[str]:
    """The algorithms of this folder."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in found if name not in ("base", "prototypes"))


def find(name: str) -> type[Algorithm]:
    """The class of an algorithm, by name or by the path of a user's file. UserError where there is none."""
    if name.endswith(".py"):
        path = Path(name)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if not path.is_file() or spec is None or spec.loader is None:
            raise UserError(f"--algorithm {name}: no such file")
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            raise UserError(f"--algorithm {name}: {type(error).__name__}: {error}") from error
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


def build(name: str, options: Mapping[str, Any]) -> Algorithm:
    """An algorithm with these options. UserError for an unknown option or a value of a wrong kind."""
    kind = find(name)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    hints = get_type_hints(kind)
    for key, value in options.items():
        if key not in fields:
            raise UserError(f"{flag(key)} is no option of {name}; {nearest(flag(key), map(flag, fields))}")
        choices = get_args(hints[key])
        if choices and value not in choices:
            raise UserError(f"{flag(key)} must be one of {', '.join(map(str, choices))}, not {value!r}")
        number = hints[key] in (int, float)
        if number and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise UserError(f"{flag(key)} must be a number, not {value!r}")
    return kind(**options)
