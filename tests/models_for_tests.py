"""Models and algorithms that tests name by module:Class or by path."""

import torch
from torch import nn


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
