"""`python -m data_prep SOURCE … --out FILE`, `python -m data_prep inspect|verify FILE`. See --help."""

import contextlib
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from data_prep.options import COMMANDS, Digits, Inspect, Sharding, Verify, command_type
from fedproc_mpi.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 2 for the user's mistakes, told in one line."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if not arguments or arguments[0] in ("-h", "--help"):
            _help()
            return 0 if arguments else 2
        command = _parse(command_type(arguments[0]), arguments)
        if isinstance(command, Sharding):
            _shard(arguments[0], command)
        elif isinstance(command, Inspect):
            from data_prep.show import inspect

            inspect(command.file, command.plot)
        elif isinstance(command, Verify):
            from data_prep.show import verify

            verify(command.file)
    except UserError as error:
        print(f"data_prep: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:  # what no source foresaw: unreadable files, a full disk
        where = f"{error.filename}: " if error.filename else ""
        print(f"data_prep: {where}{error.strerror or error}", file=sys.stderr)
        return UserError.exit_code
    except SystemExit as leaving:  # SOURCE --help
        return int(leaving.code or 0)
    return 0


def shard_digits(out: Path) -> None:
    """What the first run of fedproc_mpi does: the embedded digits for 10 clients, beta 0.5, seed 0."""
    _shard("digits", Digits(out=out))


def _shard(name: str, command: Sharding) -> None:
    """A source and its partition into a shards file."""
    if command.out.exists():
        raise UserError(f"{command.out} exists; choose another --out, or remove it")
    from data_prep.write import write

    source = command.load()
    kind, beta, parts = command.split(source)
    made_by = command.made_by(name, bool(source.site_names))
    write(source, parts, command.out, command.seed, kind, beta, made_by)
    train, test = sum(map(len, parts)), len(source.test.labels)
    print(f"data_prep: {command.out}: {len(parts)} clients, {train} samples, {test} test samples")


def _help() -> None:
    print(f"{__doc__}\n")
    for name, kind in COMMANDS.items():
        print(f"  {name:13} {(kind.__doc__ or '').splitlines()[0]}")
    print("\n`python -m data_prep SOURCE --help` shows a source's flags.")


def _parse(kind: type, arguments: list[str]) -> Any:
    """tyro's reading of the flags; its errors in one line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(kind, args=arguments[1:], prog=f"python -m data_prep {arguments[0]}")
    except SystemExit as leaving:
        if not leaving.code:
            raise
        words = [line.strip("│╭╮╰╯─ ") for line in said.getvalue().splitlines()]
        noise = ("Parsing error", "Value error", "For full help", "Missing from", "python -m")
        told = [w for w in words if w and not w.startswith(noise)]
        if "Argument helptext:" in told:
            del told[told.index("Argument helptext:") :]
        raise UserError(" ".join(told) or f"the flags cannot be read; see {arguments[0]} --help") from None


if __name__ == "__main__":
    sys.exit(main())
