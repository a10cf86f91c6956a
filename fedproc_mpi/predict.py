"""A finished run's model, ready to predict."""

from pathlib import Path

import torch
from torch import Tensor, nn

from fedproc_mpi.store.model import read_model


class Predictor(nn.Module):
    """Images in, logits out; normalisation included.

    `prototypes_KD` (or None) are the global class prototypes; `class_names` the classes in order.
    """

    def __init__(self, model: nn.Module, mean: list[float], std: list[float], class_names: list[str]) -> None:
        super().__init__()
        self.model, self.class_names = model, class_names
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))
        self.prototypes_KD: Tensor | None = None

    def forward(self, x_BCHW: Tensor) -> Tensor:
        """Logits (B, K) of images (B, C, H, W): uint8 in 0…255, or float in 0…1."""
        return self._both(x_BCHW)[1]

    def embed(self, x_BCHW: Tensor) -> Tensor:
        """z (B, D) of images as in `forward`."""
        return self._both(x_BCHW)[0]

    def _both(self, x_BCHW: Tensor) -> tuple[Tensor, Tensor]:
        x_BCHW = x_BCHW.float() if x_BCHW.is_floating_point() else x_BCHW.float() / 255
        return self.model((x_BCHW - self.mean) / self.std)


def load_model(run_dir: str | Path, client: int | None = None) -> Predictor:
    """The global model of a finished run, or one client's own where models are personal; eval mode.

    Raises UserError where there is no such model.
    """
    model, run = read_model(Path(run_dir), client)
    data = run["data"]
    predictor = Predictor(model, data["mean"], data["std"], list(data["class_names"]))
    predictor.prototypes_KD = run["prototypes"]
    return predictor.eval()
