"""`python -m fedproc_mpi.report RUN… --out DIR`: what many runs say: tables, pictures, a page. See --help."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedproc_mpi.comm.launch import require_alone
from fedproc_mpi.command import run_command
from fedproc_mpi.errors import UserError
from fedproc_mpi.flags import REQUIRED, Parser, setting, validate
from fedproc_mpi.report import overview
from fedproc_mpi.report.comparison import compare
from fedproc_mpi.report.features import Method, section
from fedproc_mpi.report.page import page
from fedproc_mpi.report.tables import Section
from fedproc_mpi.store.files import CONFIG, write_output
from fedproc_mpi.terminal import say

HELP = """What many runs say: accuracy beside published figures, paired comparisons, accuracy over rounds,
epochs, bytes and seconds, cost to a target accuracy, clients, prototypes, time by phase. Directories are
searched for runs; unfinished and damaged ones are named and left out."""


@dataclass(frozen=True)
class Options:
    """The flags."""

    out: Path = setting(REQUIRED, "the folder for report.html, report.md, CSV files and pictures")
    title: str = setting("Report", "its title")
    target: float = setting(
        0.0, "accuracy, %, whose cost is told; 0: the highest multiple of 5 that all reach", low=0, high=100
    )
    features: str = setting("", "a run directory, with checkpoint and shards, whose features are drawn")
    feature_clients: tuple[str, ...] = setting(("0", "1"), "of --features: two clients, by name or number")
    feature_method: Method = setting("pca", "of --features: principal components, or t-SNE")

    def __post_init__(self) -> None:
        validate(self)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    return run_command("fedproc_mpi.report", _report, argv)


def _report(argv: list[str]) -> None:
    require_alone("report")
    parser = Parser("report", prog="python -m fedproc_mpi.report", description=HELP)
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="run directories, or folders of them"
    )
    given, options = parser.read_as(Options, argv)
    comparison = compare(find_runs(given.runs))
    options.out.mkdir(parents=True, exist_ok=True)
    last: list[Section] = []
    if options.features:  # first, since it can fail
        run_dir = Path(options.features)
        last = [section(run_dir, options.feature_clients, options.feature_method, options.out)]
    sections = [*overview.sections(comparison, options.out, options.target / 100), *last]
    text = "\n\n".join([f"# {options.title}", *(one.markdown() for one in sections)])
    write_output(text + "\n", options.out / "report.md")
    write_output(page(options.title, sections, options.out), options.out / "report.html")
    say(f"{options.out / 'report.html'}: {sum(len(g.runs) for g in comparison.groups)} runs")
    for sentence in comparison.left_out:
        say(sentence)


def find_runs(named: Sequence[Path]) -> list[Path]:
    """The run directories that were named, and those below the folders that were. UserError without any."""
    found: dict[Path, None] = {}
    for path in named:
        if not path.is_dir():
            raise UserError(f"{path}: no such folder")
        inside = [path] if (path / CONFIG).is_file() else sorted(p.parent for p in path.rglob(CONFIG))
        if not inside:
            raise UserError(f"{path}: no run in this folder (a run has a {CONFIG})")
        found.update(dict.fromkeys(inside))
    return list(found)


if __name__ == "__main__":
    sys.exit(main())
