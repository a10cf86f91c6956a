"""Flags: the fields of `Config` and of the chosen algorithm, made into a command line by tyro."""

import argparse
import contextlib
import dataclasses
import io
from collections.abc import Sequence
from typing import Annotated, Any, get_type_hints

import tyro

from fedproc_mpi import algorithms
from fedproc_mpi.config import Config, flag, merge_presets, nearest
from fedproc_mpi.errors import UserError

DESCRIPTION = """FedProc and its baselines as one MPI job: mpirun -n 11 python -m fedproc_mpi

The result depends on config, seed and shards alone, bitwise: not on the number of ranks."""


def parse(argv: Sequence[str]) -> Config:
    """The config of a command line: presets first, flags win.

    Raises UserError for an unknown flag or key (naming the nearest), or a wrong value; SystemExit(0)
    after --help.
    """
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--preset", action="append", default=[])
    early.add_argument("--algorithm")
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            known, rest = early.parse_known_args(list(argv))
    except SystemExit:
        raise UserError("--preset and --algorithm each need a value") from None
    flat = merge_presets(known.preset, known.algorithm, algorithms.names())
    kind = algorithms.find(flat["algorithm"])
    options = {f.name: f for f in dataclasses.fields(kind)}
    fields = {f.name: f for f in dataclasses.fields(Config) if f.name != "options"} | options
    for key, value in flat.items():
        if isinstance(value, dict):
            raise UserError(f"preset: [{key}] is no algorithm; {nearest(key, algorithms.names())}")
        if key not in fields:
            raise UserError(f"preset: {key} is no key of {flat['algorithm']}; {nearest(key, fields)}")
    _check(flat)
    _refuse_unknown_flags(rest, fields, flat["algorithm"])
    merged = _flags(kind, fields, flat)
    return _check(vars(_run_tyro(merged, rest)))


def _check(flat: dict[str, Any]) -> Config:
    """The config of flat keys, the algorithm's options checked as well."""
    config = Config.create(**flat)
    return config.with_options(algorithms.build(config.algorithm, config.options).options())


def _flags(kind: type, fields: dict[str, Any], values: dict[str, Any]) -> type:
    hints = {**get_type_hints(Config), **get_type_hints(kind)}
    flags = []
    for name, f in fields.items():
        default = values.get(name, f.default)
        if hints[name] is float and isinstance(default, int) and not isinstance(default, bool):
            default = float(default)
        help_text = f.metadata["help"].replace("%", "%%")
        flags.append((name, Annotated[hints[name], tyro.conf.arg(help=help_text)], default))
    listed = [f"  {name:10} {_line_of(name)}" for name in algorithms.names()]
    merged = dataclasses.make_dataclass("Flags", flags, frozen=True)
    merged.__doc__ = "\n".join(
        [
            DESCRIPTION,
            "",
            "--preset NAME|FILE (repeatable: later wins, flags win over all) sets several at once.",
            "",
            "Algorithms (--algorithm NAME --help shows its own flags):",
            *listed,
        ]
    )
    return merged


def _line_of(name: str) -> str:
    return (algorithms.find(name).__doc__ or "").strip().splitlines()[0]


def _refuse_unknown_flags(argv: Sequence[str], fields: dict[str, Any], algorithm: str) -> None:
    known = {flag(name) for name in fields} | {"--preset", "--help"}
    known |= {"--no-" + name.replace("_", "-") for name, f in fields.items() if isinstance(f.default, bool)}
    for word in argv:
        name = word.split("=")[0].replace("_", "-")
        if word.startswith("--") and name not in known:
            raise UserError(f"{name} is no flag of {algorithm}; {nearest(name, known)}")


def _run_tyro(merged: type, argv: Sequence[str]) -> Any:
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(merged, args=list(argv), prog="python -m fedproc_mpi")
    except SystemExit as leaving:
        if not leaving.code:
            raise
        words = [line.strip("│╭╮╰╯─ ") for line in said.getvalue().splitlines()]
        told = [line for line in words if line][1:]  # the first is the box's title
        end = next((i for i, line in enumerate(told) if line.startswith(("Argument help", "For full"))), None)
        raise UserError(" ".join(told[:end]) or "the command line cannot be read; see --help") from None
