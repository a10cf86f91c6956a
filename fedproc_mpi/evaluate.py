"""`python -m fedproc_mpi.evaluate RUN…`: how good a run's model is, by class and by site. See --help."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedproc_mpi.comm.launch import require_alone
from fedproc_mpi.command import run_command
from fedproc_mpi.errors import UserError
from fedproc_mpi.flags import Parser, setting, validate
from fedproc_mpi.pictures import BITS, read_labelled
from fedproc_mpi.report.evaluation import Evaluation
from fedproc_mpi.report.predictions import predict_pictures, predict_test
from fedproc_mpi.store.model import read_config
from fedproc_mpi.terminal import say

HELP = """How good a run's model is on its test set: over all, by class (precision, recall, F1, AUC,
confusion) and by site, each on its own test images; by the classifier and by the nearest prototype."""


@dataclass(frozen=True)
class Options:
    """The flags."""

    shards: str = setting("", "evaluate on the test set of this shards file; empty: the run's own")
    images: str = setting("", "evaluate on image files: a folder of SITE/CLASS/images or CLASS/images")
    bits: int | None = setting(None, f"of --images: {BITS}", low=8, high=16)
    skip_broken: bool = setting(False, "of --images: leave out files that cannot be read, with a count")
    by: Literal["", "site", "class"] = setting("", "site or class: one of the two alone")
    best: bool = setting(False, "the model of the best round by validation (best.pt)")
    out: str = setting("", "write tables (Markdown, CSV) and pictures into this folder")

    def __post_init__(self) -> None:
        validate(self)
        if self.shards and self.images:
            raise UserError("--shards and --images: one of the two")


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
        if options.images:
            _, record = read_config(run_dir)
            pictures = read_labelled(Path(options.images), record, options.bits, options.skip_broken)
            on_test = predict_pictures(run_dir, pictures, options.best)
        else:
            on_test = predict_test(run_dir, options.shards, options.best)
        evaluation = Evaluation(name, on_test)
        if not options.out:
            say("\n\n".join(section.text() for section in evaluation.sections(options.by)) + "\n")
            continue
        folder = Path(options.out) / name if len(given.runs) > 1 else Path(options.out)
        for path in evaluation.save(folder, options.by):
            say(str(path))


if __name__ == "__main__":
    sys.exit(main())
