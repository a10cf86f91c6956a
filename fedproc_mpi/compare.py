"""`python -m fedproc_mpi.compare RUN… [--out DIR]`: finished runs side by side. See --help."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedproc_mpi.comm.launch import require_alone
from fedproc_mpi.command import run_command
from fedproc_mpi.flags import Parser, setting, validate
from fedproc_mpi.report.comparison import compare
from fedproc_mpi.terminal import say

HELP = """Finished runs side by side: mean and standard deviation over seeds, whether the best is
better than the others by runs of the same seed and data, and accuracy by site. Runs that differ by
their seeds alone make a row of the tables."""


@dataclass(frozen=True)
class Options:
    """The flags."""

    out: str = setting("", "write tables (Markdown, CSV) and pictures into this folder")

    def __post_init__(self) -> None:
        validate(self)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    return run_command("fedproc_mpi.compare", _compare, argv)


def _compare(argv: list[str]) -> None:
    require_alone("compare")
    parser = Parser("compare", prog="python -m fedproc_mpi.compare", description=HELP)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run directories")
    given, options = parser.read_as(Options, argv)
    comparison = compare(given.runs)
    if not options.out:
        say("\n\n".join(section.text() for section in comparison.sections()))
        return
    for path in comparison.save(Path(options.out)):
        say(str(path))
    for sentence in comparison.left_out:
        say(sentence)


if __name__ == "__main__":
    sys.exit(main())
