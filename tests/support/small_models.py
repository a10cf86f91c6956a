"""Models of a user's own, for `--model tests.support.small_models:Normed`."""

import torch
import torch.nn.functional as F
from torch import nn


class Normed(nn.Module):
    """A convolution with BatchNorm; z has 16 values."""

    channels = 8

    def __init__(self, shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(shape[2], self.channels, 3, stride=2)
        self.norm = nn.BatchNorm2d(self.channels)
        self.head = nn.LazyLinear(16)
        self.classifier = nn.Linear(16, num_classes)
        self(torch.zeros(2, shape[2], shape[0], shape[1]))

    def forward(self, x_BCHW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z_BD = self.head(F.relu(self.norm(self.conv(x_BCHW))).flatten(1))
        return z_BD, self.classifier(z_BD)


class Wide(Normed):
    """The same with more channels: another encoder, the same z."""

    channels = 12


class WithBatchNorm(nn.Module):
    """A user's own model, with BatchNorm and its integer counter, and dropout."""

    def __init__(self, shape: tuple[int, int, int], num_classes: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(shape[2], 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3)
        )
        self.head = nn.Linear(4 * shape[0] * shape[1], 16)
        self.classifier = nn.Linear(16, num_classes)

    def forward(self, x_BCHW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z_BD = self.head(self.encoder(x_BCHW))
        return z_BD, self.classifier(z_BD)
