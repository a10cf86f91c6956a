"""`python -m data_prep SOURCE … --out FILE`, `python -m data_prep inspect|verify FILE`. See --help."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data_prep.sources import SOURCES
from data_prep.sources.layout import counted
from data_prep.sources.sharding import Sharding
from fedproc_mpi.command import run_command
from fedproc_mpi.errors import UserError
from fedproc_mpi.flags import Parser
from fedproc_mpi.terminal import say

READERS = {
    "inspect": "Show a shards file: clients, classes, sizes; with --plot a picture.",
    "verify": "Check every checksum, label and offset of a shards file.",
}
PLAIN = "digits|cifar10|cifar100|mnist|fashionmnist|tinyimagenet"  # sources that need no further flags


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 2 for the user's mistakes, told in one line."""
    return run_command("data_prep", _command, argv)


def read_sharding(name: str, argv: Sequence[str]) -> Sharding:
    """A source's flags. Raises UserError for wrong ones, SystemExit after --help."""
    kind = SOURCES[name]
    parser = _parser(name, _line(kind))
    parser.add_flags(kind, "flags")
    return kind(**parser.read(argv))


def shard(name: str, sharding: Sharding) -> None:
    """A source and its partition into a shards file."""
    if sharding.out.exists():
        raise UserError(f"{sharding.out} exists; choose another --out, or remove it")
    from data_prep.write import write

    source = sharding.load()
    kind, beta, names, everything = sharding.split(source)
    parts, val_parts = sharding.hold_out(source, everything)
    made_by = sharding.made_by(name, bool(source.site_names))
    write(source, parts, val_parts, sharding.out, sharding.seed, kind, beta, names, made_by)
    train, test = sum(map(len, parts)), len(source.test.labels)
    val = f", {sum(map(len, val_parts))} for validation" if val_parts else ""
    passed = f"; passed over: {counted(source.passed_over)}" if source.passed_over else ""
    say(f"data_prep: {sharding.out}: {len(parts)} clients, {train} samples{val}, {test} test samples{passed}")


def require(path: Path) -> None:
    """Raises UserError where a shards file is missing, with the command that makes it."""
    if not path.is_file():
        words = words_to_make(path)
        how = (
            f"make it with `{shlex.join(words)}`"
            if words
            else f"`python -m data_prep folders --root IMAGES --out {shlex.quote(str(path))}` makes one of "
            "image folders, `python -m data_prep --help` tells of other sources"
        )
        raise UserError(f"{path}: no such shards file; {how}")


def words_to_make(path: Path) -> list[str]:
    """The command for a file named SOURCE_mCLIENTS[_bBETA][_sSEED].h5, as the presets' are; else []."""
    name = re.fullmatch(rf"({PLAIN})_m([1-9]\d*)(?:_b([\d.]*\d))?(?:_s(\d+))?\.h5", path.name)
    if name is None:
        return []
    source, clients, beta, seed = name.groups()
    drawn = ["--clients", clients, "--beta", beta or "0.5", "--seed", seed or "0"]
    return ["python", "-m", "data_prep", source, *drawn, "--out", str(path)]


def shard_digits(out: Path) -> None:
    """What the first run of fedproc_mpi does: the embedded digits for 10 clients, beta 0.5, seed 0."""
    shard("digits", SOURCES["digits"](out=out))


def _command(words: list[str]) -> None:
    if not words or words[0] in ("-h", "--help"):
        commands = [*((name, _line(kind)) for name, kind in SOURCES.items()), *READERS.items()]
        lines = [f"  {name:13} {text}" for name, text in commands]
        say(
            "\n".join(
                [f"{__doc__}\n", *lines, "\n`python -m data_prep SOURCE --help` shows a source's flags."]
            )
        )
        raise SystemExit(0 if words else UserError.exit_code)
    _run(words[0], words[1:])


def _run(name: str, argv: Sequence[str]) -> None:
    if name in SOURCES:
        shard(name, read_sharding(name, argv))
        return
    if name not in READERS:
        raise UserError(f"{name}: no such source or command; known: {', '.join([*SOURCES, *READERS])}")
    parser = _parser(name, READERS[name])
    parser.add_argument("file", type=Path, help="the shards file")
    if name == "inspect":
        text = "write a picture (client × class bubbles, sample images, pixel values) to this .png"
        parser.add_argument("--plot", type=Path, metavar="PATH", help=text)
    found = parser.parse_args(argv)
    require(found.file)
    from data_prep import show

    if name == "inspect":
        show.inspect(found.file, found.plot)
    else:
        show.verify(found.file)


def _parser(name: str, text: str) -> Parser:
    return Parser(name, prog=f"python -m data_prep {name}", description=text)


def _line(kind: type[Any]) -> str:
    return (kind.__doc__ or "").splitlines()[0]
