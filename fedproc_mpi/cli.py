"""The command line: flags and presets → a Config. The flags are the settings of Config and the algorithm."""

from collections.abc import Sequence
from typing import Any

from fedproc_mpi import algorithms
from fedproc_mpi.config import Config, merge_presets
from fedproc_mpi.errors import UserError
from fedproc_mpi.flags import Parser, nearest, settings_of

HELP = """FedProc and its baselines as one MPI job: mpirun -n 11 python -m fedproc_mpi

The result depends on config, seed and shards alone, bitwise: not on the number of ranks.

Algorithms (--algorithm NAME --help shows its own flags):
"""


def parse(argv: Sequence[str]) -> Config:
    """The config of a command line: presets first, flags win.

    Raises UserError for an unknown flag or key (naming the nearest), or a wrong value; SystemExit(0)
    after --help.
    """
    early = Parser("fedproc", add_help=False)  # what decides which other flags there are
    early.add_argument("--algorithm")
    _add_preset(early)
    chosen, _ = early.parse_known_args(argv)
    flat = merge_presets(chosen.preset, chosen.algorithm, algorithms.names())
    name = flat["algorithm"]
    kind = algorithms.find(name)
    _refuse_unknown_keys(flat, kind)
    lines = [
        f"  {n:10} {(algorithms.find(n).__doc__ or '').strip().splitlines()[0]}" for n in algorithms.names()
    ]
    parser = Parser(name, prog="python -m fedproc_mpi", usage="%(prog)s [FLAG VALUE]...")
    parser.description = HELP + "\n".join(lines)
    _add_preset(parser)
    parser.add_flags(Config, "flags of every algorithm", flat)
    parser.add_flags(kind, f"flags of {name}", flat)
    config = Config.create(**parser.read(argv))
    return algorithms.complete(config)


def _add_preset(parser: Parser) -> None:
    text = "values for several flags at once; repeatable: the later one wins, flags win over all"
    parser.add_argument("--preset", action="append", default=[], metavar="NAME|FILE", help=text)


def _refuse_unknown_keys(flat: dict[str, Any], algorithm: type) -> None:
    """Every key of the presets must be a setting."""
    known = {**settings_of(Config), **settings_of(algorithm)}
    for key, value in flat.items():
        if isinstance(value, dict):
            raise UserError(f"preset: [{key}] is no algorithm; {nearest(key, algorithms.names())}")
        if key not in known:
            raise UserError(f"preset: {key} is no key of {flat['algorithm']}; {nearest(key, known)}")
