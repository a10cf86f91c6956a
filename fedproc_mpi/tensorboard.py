"""A run for TensorBoard: the rounds' figures as curves, and a picture of the partition. On rank 0.

`tensorboard --logdir runs` shows it. The files lie in the run directory, under tensorboard/.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedproc_mpi.errors import UserError
from fedproc_mpi.figure import new_figure
from fedproc_mpi.partition import class_counts, draw_partition
from fedproc_mpi.shards import Shards

MISSING = "--tensorboard needs a package that is not here: pip install 'tensorboard>=2.15'"


def require_tensorboard() -> None:
    """Raise UserError where the package is missing."""
    _writer()


class Board:
    """Writes the rounds' lines. lines: those of a run that goes on, in place of what was written before."""

    def __init__(self, run_dir: Path, shards: Shards, lines: Sequence[Mapping[str, Any]]) -> None:
        self._writer = _writer()(str(run_dir / "tensorboard"), purge_step=1)
        if not lines:
            self._writer.add_image("partition", _partition(shards), dataformats="HWC")
        for line in lines:
            self.add(line)

    def add(self, line: Mapping[str, Any]) -> None:
        """A round's line; rounds count from 1."""
        for name, value in _scalars(line):
            self._writer.add_scalar(name, value, line["round"] + 1)
        self._writer.flush()


def _writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError(MISSING) from error
    return SummaryWriter


def _scalars(line: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a line, those inside it by path: `client_accuracy/East`, `seconds/train`."""
    for key, value in line.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{key}/")
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and key != "round":
            yield above + key, float(value)


def _partition(shards: Shards) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """The picture as pixels (H, W, 4)."""
    figure = new_figure(figsize=(9, 7), layout="constrained")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    draw_partition(figure.subplots(), shards, class_counts(shards))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())
