"""The same work for all: 100 clients of 100 pictures, 20 a round, one local epoch, batch 32, plain SGD.

Shapes: B batch, K classes, D width of z.
"""

import json
import sys
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLIENTS, SAMPLES, COHORT, BATCH, LR, CLASSES = 100, 100, 20, 32, 0.01, 10
SHAPE = (3, 32, 32)


class Net(nn.Module):
    """LeNet-5 for colour pictures of 32 × 32: 62,006 parameters. x_BCHW → logits_BK."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, CLASSES)

    def embed(self, x_BCHW: Tensor) -> Tensor:
        """z_BD."""
        x = F.max_pool2d(F.relu(self.conv1(x_BCHW)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        return F.relu(self.fc2(F.relu(self.fc1(x))))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        logits_BK: Tensor = self.fc3(self.embed(x_BCHW))
        return logits_BK


class Ours(Net):
    """The same as fedproc_mpi takes it: x_BCHW → (z_BD, logits_BK). The shape and the classes are fixed."""

    def __init__(self, image_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        assert num_classes == CLASSES, num_classes

    def forward(self, x_BCHW: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        z_BD = self.embed(x_BCHW)
        return z_BD, self.fc3(z_BD)


def clients() -> list[tuple[Tensor, Tensor]]:
    """(x_NCHW float32, y_N int64) of each client, in memory: random, since only the time counts."""
    generator = torch.Generator().manual_seed(0)
    x_NCHW = torch.rand(CLIENTS, SAMPLES, *SHAPE, generator=generator)
    y_N = torch.randint(CLASSES, (CLIENTS, SAMPLES), generator=generator)
    return list(zip(x_NCHW, y_N, strict=True))


class Laps:
    """Seconds of each round; the last line that a script prints is their list, as JSON."""

    def __init__(self) -> None:
        self._last, self._seconds = time.perf_counter(), list[float]()

    def lap(self) -> None:
        """A round is over."""
        now = time.perf_counter()
        self._seconds.append(now - self._last)
        self._last = now

    def tell(self) -> None:
        """Print them."""
        print(json.dumps(self._seconds))


def rounds() -> int:
    """How many rounds the command line asks for."""
    return int(sys.argv[1])
