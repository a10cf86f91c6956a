"""`inspect` and `verify`: what a shards file holds, and whether it is whole."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedproc_mpi.errors import UserError
from fedproc_mpi.shards import Images, Shards
from fedproc_mpi.terminal import say

NARROW = 64  # a client whose pixels span less has images that are all but black, white or grey


def inspect(path: Path, plot: Path | None) -> None:
    """Print the table; write the picture where `plot` is given."""
    with Shards(path) as shards:
        header, sizes = shards.header, shards.sizes
        counts_mK = class_counts(shards)
        held = np.sort((counts_mK > 0).sum(1))
        height, width, channels = header.image_shape
        tests = [len(shards.client_test_rows(i)) for i in range(shards.num_clients)]
        lines = {
            "data set": f"{header.dataset}, {shards.num_classes} classes",
            "images": f"{height}×{width} px, {channels} channel(s)"
            + ("" if height == width else ", NOT SQUARE"),
            "partition": f"{header.partition}, beta {header.beta}, seed {header.seed}",
            "clients": str(len(sizes)),
            "samples": f"{sum(sizes)} train, {shards.num_test} test",
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
        if plot is not None:
            from data_prep.plot import draw

            draw(shards, counts_mK, plot)
            say(f"{'picture':18} {plot}")


def verify(path: Path) -> None:
    """Check every client and the test set; UserError that names what is wrong."""
    wrong = []
    with Shards(path) as shards:
        m = shards.num_clients
        checks: list[Callable[[], object]] = [partial(shards.client, i) for i in range(m)]
        for check in [*checks, shards.verify_test]:
            try:
                check()
            except UserError as error:
                wrong.append(str(error).removeprefix(f"{path}: "))
        if wrong:
            more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
            raise UserError(f"{path}: {'; '.join(wrong[:5])}{more}")
        samples = f"{sum(shards.sizes)} + {shards.num_test} samples"
        say(f"data_prep: {path}: whole: {shards.num_clients} clients, {samples}, {shards.fingerprint}")


def class_counts(shards: Shards) -> npt.NDArray[np.int64]:
    """Samples of each class at each client, (m, K)."""
    labels = map(shards.client_labels, range(shards.num_clients))
    return np.array([np.bincount(y_N, minlength=shards.num_classes) for y_N in labels])


def _pixels(shards: Shards) -> str:
    """The range of all pixels, and the client that uses the least: 0…1 or a constant was scaled wrongly."""
    ranges = [_range(shards.client(i)[0]) for i in range(shards.num_clients)]
    test = [_range(shards.test(start, start + 1024)[0]) for start in range(0, shards.num_test, 1024)]
    low, high = min(low for low, _ in test), max(high for _, high in test)
    if high - low < NARROW:
        return f"{low}…{high}; SUSPICIOUS: that is the test set; images should use 0…255"
    narrow = [i for i, (low, high) in enumerate(ranges) if high - low < NARROW]
    worst = min(range(len(ranges)), key=lambda i: ranges[i][1] - ranges[i][0])
    said = f"{min(low for low, _ in ranges)}…{max(high for _, high in ranges)}"
    if not narrow:
        return said
    of = f"{len(narrow)} of {len(ranges)} clients, the worst" if len(narrow) > 1 else "that"
    low, high = ranges[worst]
    return f"{said}; SUSPICIOUS: {of} is {shards.client_label(worst)}: {low}…{high}; images should use 0…255"


def _range(x_NHWC: Images) -> tuple[int, int]:
    return int(x_NHWC.min()), int(x_NHWC.max())


def warn_of_pixels(path: Path) -> None:
    """Say where a client's or the test set's images are all but black, white or grey."""
    with Shards(path) as shards:
        _, colon, suspicious = _pixels(shards).partition("; SUSPICIOUS: ")
        if colon:
            say(f"data_prep: {path}: SUSPICIOUS pixels: {suspicious}")


def _spread(values: "npt.ArrayLike") -> str:
    array = np.asarray(values)
    return f"min {array.min()}, median {int(np.median(array))}, max {array.max()}"


def _floats(values: "npt.ArrayLike") -> str:
    return " ".join(f"{v:.3f}" for v in np.asarray(values))
