"""A matrix as a picture: grey or colour tells the value, and so does the number in each cell."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedproc_mpi.figure import new_figure, plain, save_figure, shortened

WRITTEN = 24  # columns, up to which cells hold their numbers
NAMED = 60  # rows or columns, up to which they are named
TITLE = 70  # characters
LONGEST = 32  # characters of a name


def draw_heatmap(
    values_RC: npt.NDArray[np.float64],
    texts: Sequence[Sequence[str]],
    rows: Sequence[str],
    columns: Sequence[str],
    labels: tuple[str, str, str],
    title: str,
    out: Path,
) -> Path:
    """Write a PNG; returns its path.

    values_RC: shares in 0…1, NaN for an empty cell. texts: of the cells. labels: of y axis, x axis and scale.
    """
    height, width = values_RC.shape
    cell = 0.62 if width <= WRITTEN else 9 / width
    size = (
        max(4.5, cell * width + 3.2),
        max(3.2, (0.42 if width <= WRITTEN else 9 / max(height, 12)) * height + 2.2),
    )
    figure = new_figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor("0.85")  # seen where a cell has no value
    image = axes.imshow(values_RC, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    if height <= NAMED:
        axes.set_yticks(range(height), shortened(rows, LONGEST))
    if width <= NAMED:
        axes.set_xticks(range(width), shortened(columns, LONGEST), rotation=45, ha="right")
    if width <= WRITTEN and height <= NAMED:
        for r in range(height):
            for c in range(width):
                dark = values_RC[r, c] > 0.55  # NaN is not
                axes.text(c, r, texts[r][c], ha="center", va="center", fontsize=8, color="w" if dark else "k")
    axes.set_ylabel(labels[0])
    axes.set_xlabel(labels[1])
    figure.suptitle(plain(title[:TITLE]), fontsize=10)
    figure.colorbar(image, label=labels[2])
    return save_figure(figure, out)
