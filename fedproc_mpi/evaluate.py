"""`python -m fedproc_mpi.evaluate RUN…`: how good a run's model is, by class and by site. See --help."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedproc_mpi.comm.launch import require_alone
from fedproc_mpi.command import run_command
from fedproc_mpi.flags import Parser, setting, validate
from fedproc_mpi.report.evaluation import Evaluation
from fedproc_mpi.report.predictions import predict_test
from fedproc_mpi.terminal import say

HELP = """How good a run's model is on its test set: over all, by class (precision, recall, F1, AUC,
confusion) and by site, each on its own test images; by the classifier and by the nearest prototype."""


@dataclass(frozen=True)
class Options:
    """The flags."""

    shards: str = setting("", "evaluate on the test set of this shards file; empty: the run's own")
    by: Literal["", "site", "class"] = setting("", "site or class: one of the two alone")
    best: bool = setting(False, "the model of the best round by validation (best.pt)")
    out: str = setting("", "write tables (Markdown, CSV) and pictures into this folder")

    def __post_init__(self) -> None:
        validate(self)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    return run_command("fedproc_mpi.evaluate", _evaluate, argv)


def _evaluate(argv: list[str]) -> None:
    require_alone("evaluate")
    parser = Parser("evaluate", prog="python -m fedproc_mpi.evaluate", description=HELP)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run directories")
    given, options = parser.read_as(Options, argv)
    for run_dir in given.runs:
        name = run_dir.resolve().name
        evaluation = Evaluation(name, predict_test(run_dir, options.shards, options.best))
        if not options.out:
            say("\n\n".join(section.text() for section in evaluation.sections(options.by)) + "\n")
            continue
        folder = Path(options.out) / name if len(given.runs) > 1 else Path(options.out)
        for path in evaluation.save(folder, options.by):
            say(str(path))


if __name__ == "__main__":
    sys.exit(main())
