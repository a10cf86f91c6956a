"""`python -m fedproc_mpi.predict RUN IMAGE…`: what a run's model says of image files. See --help."""

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedproc_mpi.comm.launch import require_alone
from fedproc_mpi.command import require_new, run_command
from fedproc_mpi.errors import UserError
from fedproc_mpi.flags import Parser, setting, validate
from fedproc_mpi.pictures import BITS, decode_files, find_files
from fedproc_mpi.predictor import Prediction, Predictor, load_model
from fedproc_mpi.store.files import write_output
from fedproc_mpi.store.model import find_client, read_config
from fedproc_mpi.terminal import say

HELP = """The class of image files by a run's model, with its probability, and the class of the nearest
prototype where the run has prototypes. The images are turned, resized and cropped as data_prep does it."""
CHUNK = 1024  # images in memory at once


@dataclass(frozen=True)
class Options:
    """The flags."""

    client: str = setting("", "whose model, by name or number, where clients have models of their own")
    best: bool = setting(False, "the model of the best round by validation (best.pt)")
    out: str = setting("", "write a CSV file here, with the probability of every class")
    bits: int | None = setting(None, BITS, low=8, high=16)
    skip_broken: bool = setting(False, "leave out files that cannot be read, with a count")

    def __post_init__(self) -> None:
        validate(self)
        if self.out:
            require_new(Path(self.out), [".csv"])


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    return run_command("fedproc_mpi.predict", _predict, argv)


def _predict(argv: list[str]) -> None:
    require_alone("predict")
    parser = Parser("predict", prog="python -m fedproc_mpi.predict", description=HELP)
    parser.add_argument("run", type=Path, metavar="RUN", help="the run directory")
    parser.add_argument(
        "images", type=Path, nargs="+", metavar="IMAGE", help="image files, or folders of them"
    )
    given, options = parser.read_as(Options, argv)
    _, record = read_config(given.run)
    model = load_model(given.run, find_client(record["data"], options.client), options.best)
    rows = list(_rows(model, record, given.images, options))
    if options.out:
        write_output(_csv(model, rows), Path(options.out))
        say(f"{len(rows)} images: {options.out}")
        return
    width = max(len(str(path)) for path, *_ in rows)
    for path, prediction, i in rows:
        nearest = prediction.prototype_classes
        by_prototype = f"  nearest prototype: {nearest[i]}" if nearest else ""
        highest = 100 * float(prediction.probabilities[i].max())
        say(f"{path!s:{width}}  {prediction.classes[i]}  {highest:.1f} %{by_prototype}")


def _rows(
    model: Predictor, record: dict[str, Any], named: Sequence[Path], options: Options
) -> Iterator[tuple[Path, Prediction, int]]:
    """Each image with the prediction of its chunk and its place there."""
    files, found = find_files(named), False
    for start in range(0, len(files), CHUNK):
        chunk = files[start : start + CHUNK]
        x_NHWC, good = decode_files(chunk, record, options.bits, options.skip_broken)
        for first in range(0, len(good), model.block):
            rows = range(first, min(first + model.block, len(good)))
            prediction = model.predict(x_NHWC[rows.start : rows.stop])
            for i in rows:
                found = True
                yield chunk[good[i]], prediction, i - first
    if not found:
        raise UserError("none of the images can be read")


def _csv(model: Predictor, rows: Sequence[tuple[Path, Prediction, int]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    by_prototype = ["prototype_class"] if rows[0][1].prototype_classes else []
    writer.writerow(["image", "class", *by_prototype, *(f"p({name})" for name in model.classes)])
    for path, prediction, i in rows:
        nearest = [prediction.prototype_classes[i]] if prediction.prototype_classes else []
        writer.writerow(
            [path, prediction.classes[i], *nearest, *(f"{p:.6f}" for p in prediction.probabilities[i])]
        )
    return text.getvalue()


if __name__ == "__main__":
    sys.exit(main())
