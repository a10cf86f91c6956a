"""`inspect` and `verify`: what a shards file holds, and whether it is whole."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from data_prep.ranges import Ranges
from fedproc_mpi.errors import UserError
from fedproc_mpi.partition import class_counts
from fedproc_mpi.shards import Shards
from fedproc_mpi.terminal import say

MOST_CLIENTS, MOST_CLASSES = 30, 10  # up to which there is a table by client and class


def inspect(path: Path, plot: Path | None) -> None:
    """Print the table; write the picture where `plot` is given."""
    with Shards(path) as shards:
        header, sizes = shards.header, shards.sizes
        counts_mK = class_counts(shards)
        held = np.sort((counts_mK > 0).sum(1))
        height, width, channels = header.image_shape
        tests = [len(shards.test_set.rows(i)) for i in range(shards.num_clients)]
        lines = {
            "data set": f"{header.dataset}, {shards.num_classes} classes",
            "images": f"{height}×{width} px, {channels} channel(s)"
            + ("" if height == width else ", NOT SQUARE"),
            "partition": ", ".join(
                [
                    header.partition,
                    *([] if header.beta is None else [f"beta {header.beta}"]),
                    f"seed {header.seed}",
                ]
            ),
            "clients": str(len(sizes)),
            "samples": f"{sum(sizes)} train, {len(shards.test_set)} test{_validation(shards)}",
            "samples per client": _spread(sizes),
            "classes per client": _spread(held),
            "test rows per client": _spread(tests),
            "empty pairs": f"{int((counts_mK == 0).sum())} of {counts_mK.size} (client, class)",
            "pixels": _pixels(shards),
            "normalised with": f"mean {_floats(header.mean)}, std {_floats(header.std)}",
            "made by": f"{header.made_by} --seed {header.seed}",
            "fingerprint": shards.fingerprint,
        }
        for name, value in lines.items():
            say(f"{name:18} {value}")
        if len(sizes) <= MOST_CLIENTS and shards.num_classes <= MOST_CLASSES:
            for row in _by_client(shards, counts_mK):
                say(row)
        if plot is not None:
            from data_prep.plot import draw

            draw(shards, counts_mK, plot)
            say(f"{'picture':18} {plot}")


def _by_client(shards: Shards, counts_mK: npt.NDArray[np.int64]) -> list[str]:
    """A table in lines: each client's training images by class, and its other images."""
    val, test = shards.val_set, shards.test_set
    head = ["client", *shards.header.class_names, "train", *(["validation"] if val else []), "test"]
    rows = [head]
    for i, counts in enumerate(counts_mK):
        held = [len(val.rows(i))] if val else []
        name = shards.header.client_names[i] if shards.header.client_names else str(i)
        rows.append([name, *map(str, (*counts, counts.sum(), *held, len(test.rows(i))))])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([f"{r[0]:<{widths[0]}}", *map(str.rjust, r[1:], widths[1:])]) for r in rows]


def verify(path: Path) -> None:
    """Check every client and the test set; UserError that names what is wrong."""
    wrong = []
    with Shards(path) as shards:
        m = shards.num_clients
        checks: list[Callable[[], object]] = [partial(shards.client, i) for i in range(m)]
        for check in [*checks, *(held_out.verify for held_out in shards.held_out())]:
            try:
                check()
            except UserError as error:
                wrong.append(str(error).removeprefix(f"{path}: "))
        if wrong:
            more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
            raise UserError(f"{path}: {'; '.join(wrong[:5])}{more}")
        samples = f"{sum(shards.sizes)} + {len(shards.test_set)} samples"
        say(f"data_prep: {path}: whole: {shards.num_clients} clients, {samples}, {shards.fingerprint}")


def _pixels(shards: Shards) -> str:
    """The range of all pixels, with what is suspicious in it."""
    seen = Ranges(shards.num_clients)
    for i in range(shards.num_clients):
        seen.client(i, shards.client(i)[0])
    for start in range(0, len(shards.test_set), 1024):
        seen.test(shards.test_set.read(start, start + 1024)[0])
    wrong = seen.suspicious(shards.header.client_names)
    return f"{seen.low}…{seen.high}{f'; SUSPICIOUS: {wrong}' if wrong else ''}"


def _validation(shards: Shards) -> str:
    return "" if shards.val_set is None else f", {len(shards.val_set)} validation"


def _spread(values: "npt.ArrayLike") -> str:
    array = np.asarray(values)
    return f"min {array.min()}, median {int(np.median(array))}, max {array.max()}"


def _floats(values: "npt.ArrayLike") -> str:
    return " ".join(f"{v:.3f}" for v in np.asarray(values))
