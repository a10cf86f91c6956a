"""A study's file → its runs: every combination of a grid of flags, each with a run directory of its own."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomllib

from fedproc_mpi import algorithms
from fedproc_mpi.cli import parse
from fedproc_mpi.config import FIELD_DEFAULTS, Config
from fedproc_mpi.errors import UserError
from fedproc_mpi.flags import flag, nearest

SHIPPED = Path(__file__).resolve().parent
KEYS = {"title", "presets", "flags", "grid", "variants", "cost", "smoke"}
VARIANT_KEYS = {"name", "presets", "flags"}
MOST_RUNS = 10_000
Flags = Mapping[str, Any]


@dataclass(frozen=True)
class PlannedRun:
    """One run: its name, which is its directory's too, its words for the command line, and its config."""

    name: str
    words: Sequence[str]
    config: Config


@dataclass(frozen=True)
class Study:
    """A study: its title, its runs, and what `[cost]` says: see `cost.estimate`."""

    title: str
    runs: Sequence[PlannedRun]
    cost: Mapping[str, Any] = field(default_factory=dict)


def shipped() -> list[str]:
    """The names of the studies that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def read_study(name: str, out: Path | None = None, smoke: bool = False) -> Study:
    """A shipped study by its name, or one from a TOML file; every run's flags are read as a run reads them.

    out: the directory of the runs; it becomes part of their words. smoke: the small size that the file
    names. Raises UserError for a wrong file, flag or value, naming the run.
    """
    text = _read(name)
    if unknown := sorted(set(text) - KEYS):
        raise UserError(f"{name}: {unknown[0]} is no key of a study; {nearest(unknown[0], KEYS)}")
    if smoke:
        if not isinstance(text.get("smoke"), dict):
            raise UserError(f"{name}: no [smoke], so that there is no small size")
        text = {**text, "cost": {}, **text["smoke"]}
    where = f"{name} --smoke" if smoke else name
    grid = _table(text, "grid", where)
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise UserError(f"{where}: [grid] {key} must be a list of values")
    variants = text.get("variants", [{}])
    if not isinstance(variants, list) or not all(isinstance(v, dict) for v in variants):
        raise UserError(f"{where}: variants are tables, [[variants]]")
    runs: dict[str, PlannedRun] = {}
    for variant in variants:
        if unknown := sorted(set(variant) - VARIANT_KEYS):
            known = nearest(unknown[0], VARIANT_KEYS)
            raise UserError(f"{where}: {unknown[0]} is no key of a variant; {known}")
        for values in itertools.product(*grid.values()):
            chosen = dict(zip(grid, values, strict=True))
            flags = {**_table(text, "flags", where), **_table(variant, "flags", where), **chosen}
            presets = [*text.get("presets", []), *variant.get("presets", [])]
            varying = {k: v for k, v in chosen.items() if len(grid[k]) > 1 or k == "algorithm"}
            run = _plan(str(variant.get("name", "")), varying, presets, flags, out, where)
            if run.name in runs:
                raise UserError(
                    f"{where}: two runs are called {run.name}; give the variants names that differ"
                )
            runs[run.name] = run
            if len(runs) > MOST_RUNS:
                raise UserError(f"{where}: more than {MOST_RUNS} runs")
    return Study(str(text.get("title", Path(name).stem)), list(runs.values()), _table(text, "cost", where))


def _read(name: str) -> dict[str, Any]:
    path = Path(name) if name.endswith(".toml") else SHIPPED / f"{name}.toml"
    if not path.is_file():
        known = nearest(name, shipped())
        raise UserError(f"{name}: no such study; {known} (or a FILE.toml)")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a TOML file: {error}") from error


def _table(text: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    found = text.get(key, {})
    if not isinstance(found, dict):
        raise UserError(f"{where}: {key} must be a table, [{key}]")
    return dict(found)


def _plan(
    variant: str, varying: Flags, presets: Sequence[str], flags: Flags, out: Path | None, where: str
) -> PlannedRun:
    """The run of these flags; tables among them are for the algorithm of that name."""
    algorithm = str(flags.get("algorithm", FIELD_DEFAULTS["algorithm"]))
    own = flags.get(Path(algorithm).stem, {})
    tables = {key for key, value in flags.items() if isinstance(value, dict)}
    if unknown := sorted(tables - set(algorithms.names()) - {Path(algorithm).stem}):
        raise UserError(f"{where}: [flags.{unknown[0]}]: {nearest(unknown[0], algorithms.names())}")
    plain = {key: value for key, value in flags.items() if key not in tables} | own
    name = _name(variant, varying)
    words = [word for preset in presets for word in ("--preset", str(preset))]
    words += [word for key, value in plain.items() for word in _words(key, value)]
    if out is not None:
        words += ["--run-dir", str(out / name)]
    try:
        return PlannedRun(name, words, parse(words))
    except UserError as error:
        raise UserError(f"{where}: {name}: {error}") from error


def _words(key: str, value: Any) -> list[str]:
    """A setting as it is typed."""
    if isinstance(value, bool):
        return [flag(key if value else f"no_{key}")]
    values = value if isinstance(value, list) else [value]
    return [f"{flag(key)}={values[0]}"] if len(values) == 1 else [flag(key), *map(str, values)]


def _name(variant: str, varying: Flags) -> str:
    """`fedavg-b0.5-seed2`: the values in which the runs differ; of a file its stem."""
    parts = [variant] if variant else []
    for key, value in varying.items():
        text = Path(value).stem if key in ("shards", "algorithm") else str(value)
        parts.append(text if key in ("shards", "algorithm") else f"{key}{text}")
    return re.sub(r"[^\w.=+-]+", "_", "-".join(parts) or "run")
