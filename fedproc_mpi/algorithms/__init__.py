"""Algorithms, one file each: dropping `name.py` in here adds it to `--algorithm`.

A file holds one frozen dataclass derived from `Algorithm` (or from another algorithm). Its fields are
the algorithm's hyperparameters and become flags; the first line of its docstring is its line in --help.
"""

import dataclasses
import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from fedproc_mpi.algorithms.base import Algorithm
from fedproc_mpi.config import ADAMW_LR, Config
from fedproc_mpi.errors import UserError
from fedproc_mpi.flags import flag, nearest, settings_of, validate
from fedproc_mpi.plugins import load_file


def names() -> list[str]:
    """The algorithms of this folder."""
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in found if name not in ("base", "prototypes"))


def find(name: str) -> type[Algorithm]:
    """The class of an algorithm, by name or by the path of a user's file. UserError where there is none."""
    if name.endswith(".py"):
        module = load_file(name, "--algorithm")
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


def complete(config: Config) -> Config:
    """The config with the algorithm's options, and its learning rate where none is given.

    Raises UserError as `build` does, and for an optimizer that it is not defined for.
    """
    algorithm = build(config.algorithm, config.options)
    if config.optimizer not in algorithm.optimizers:
        known = " or ".join(algorithm.optimizers)
        raise UserError(f"--optimizer {config.optimizer}: {config.algorithm} is defined for {known}")
    lr = config.lr or (ADAMW_LR if config.optimizer == "adamw" else algorithm.default_lr)
    return dataclasses.replace(config, lr=lr, options=algorithm.options())


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
