"""The picture of a partition: client × class bubbles, sample images as they are, pixel values."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedproc_mpi.errors import UserError
from fedproc_mpi.figure import new_figure, save_figure, shortened
from fedproc_mpi.partition import draw_partition
from fedproc_mpi.shards import Shards

GRID_ROWS, GRID_COLUMNS = 8, 10


def draw(shards: Shards, counts_mK: npt.NDArray[np.int64], path: Path) -> None:
    """Write the picture; UserError where the file cannot be written."""
    figure = new_figure(figsize=(17, 8), layout="constrained")
    left, right = figure.subfigures(1, 2)
    draw_partition(left.subplots(), shards, counts_mK)
    samples, values = right.subplots(2, 1, height_ratios=(5, 1))
    _samples(samples, shards)
    _values(values, shards)
    header = shards.header
    beta = "" if header.beta is None else f" beta {header.beta},"
    figure.suptitle(
        f"{header.dataset}: {header.partition},{beta} seed {header.seed}, "
        f"{shards.num_clients} clients, {shards.num_classes} classes, images {header.image_shape} (H, W, C)"
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--plot {path}: cannot write it: {error}") from error
    save_figure(figure, path, dpi=100)


def _samples(axes: Any, shards: Shards) -> None:
    """Rows are clients, spread over all; pixels as stored: no scaling of values, square pixels."""
    height, width, channels = shards.header.image_shape
    rows = min(GRID_ROWS, shards.num_clients)
    chosen = np.linspace(0, shards.num_clients - 1, rows).astype(int)
    side = max(height, width)
    above, beside = max(2, round(0.3 * side)), max(2, round(0.5 * side))  # room for the labels
    sheet = np.full((rows * (height + above), GRID_COLUMNS * (width + beside), channels), 255, np.uint8)
    known = shards.header.client_names
    names = shortened([known[k] if known else str(k) for k in chosen], 20)
    class_names = shortened(shards.header.class_names, 14)
    for row, client in enumerate(chosen):
        x_NHWC, y_N = shards.client(int(client))
        top = row * (height + above) + above
        axes.text(-0.4 * side, top + height / 2, names[row], ha="right", va="center", fontsize=8)
        for column, i in enumerate(np.linspace(0, len(y_N) - 1, min(GRID_COLUMNS, len(y_N))).astype(int)):
            left = column * (width + beside)
            sheet[top : top + height, left : left + width] = x_NHWC[i]
            name = class_names[int(y_N[i])]
            axes.text(left + width / 2, top - 0.06 * side, name, ha="center", va="bottom", fontsize=7)
    image = sheet[..., 0] if channels == 1 else sheet
    axes.imshow(image, cmap="gray", vmin=0, vmax=255, aspect="equal", interpolation="nearest")
    axes.set_axis_off()
    axes.set_title("samples as stored, one client per row", fontsize=10)


def _values(axes: Any, shards: Shards) -> None:
    """Pixel values of up to 2,000 training images from all over the file: a good set fills 0…255."""
    chosen = np.unique(np.linspace(0, shards.num_clients - 1, 20).astype(int))
    x_NHWC = np.concatenate([shards.client(int(i))[0][:100] for i in chosen])
    colours = ["gray"] if x_NHWC.shape[3] == 1 else ["red", "green", "blue"]
    for channel, colour in enumerate(colours):
        histogram = np.bincount(x_NHWC[..., channel].ravel(), minlength=256) / x_NHWC[..., channel].size
        axes.plot(histogram, color=colour, linewidth=1)
    axes.set_yscale("log")
    axes.set_ylabel("share, log")
    axes.tick_params(axis="y", which="both", labelleft=False)
    axes.set_xlim(-2, 257)
    pairs = zip(shards.header.mean, shards.header.std, strict=True)
    means = ", ".join(f"{255 * mean:.0f} ± {255 * std:.0f}" for mean, std in pairs)
    axes.set_title(f"share of pixel values 0…255; normalised with {means}", fontsize=10)
