"""A finished run's model, ready to predict."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedproc_mpi.errors import UserError
from fedproc_mpi.store.model import read_model


class Predictor(nn.Module):
    """Images in, logits out; normalisation included.

    `prototypes_KD` (or None) are the global class prototypes; `class_names` the classes in order;
    `image_shape` is (H, W, C).
    """

    def __init__(
        self, model: nn.Module, data: Mapping[str, Any], prototypes_KD: Tensor | None = None
    ) -> None:
        """data: the shards' header, as a run's config.json has it."""
        super().__init__()
        self.model, self.class_names = model, list(data["class_names"])
        self.image_shape = tuple(data["image_shape"])
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(data["mean"]).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(data["std"]).view(1, -1, 1, 1))
        self.prototypes_KD = prototypes_KD

    def forward(self, images: Tensor | npt.NDArray[Any]) -> Tensor:
        """Logits (B, K) of images: uint8 in 0…255 or float in 0…1; (B, C, H, W) or (B, H, W, C).

        Raises UserError for images of another size, type or range, which would be told wrongly.
        """
        return self._both(images)[1]

    def embed(self, images: Tensor | npt.NDArray[Any]) -> Tensor:
        """z (B, D) of images as in `forward`."""
        return self._both(images)[0]

    def _both(self, images: Tensor | npt.NDArray[Any]) -> tuple[Tensor, Tensor]:
        try:
            given = torch.as_tensor(_contiguous(images))
        except (TypeError, ValueError) as error:
            raise UserError(f"images must be a tensor or an array of numbers: {error}") from error
        x_BCHW = self._channels_first(given)
        if x_BCHW.dtype == torch.uint8:
            x_BCHW = x_BCHW.float() / 255
        elif not x_BCHW.is_floating_point():
            raise UserError(f"images are {x_BCHW.dtype}: give uint8 in 0…255, or float in 0…1")
        elif x_BCHW.numel() and not (x_BCHW.min() >= 0 and x_BCHW.max() <= 1):  # NaN is neither
            found = f"{float(x_BCHW.min()):g}…{float(x_BCHW.max()):g}"
            raise UserError(
                f"float images must be in 0…1, not {found}: divide by 255, and do not normalise them"
            )
        return self.model((x_BCHW.to(self.mean.dtype) - self.mean) / self.std)

    def _channels_first(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W), whichever of the two orders they have, on the model's device."""
        height, width, channels = self.image_shape
        images = images.to(self.mean.device)
        if images.shape[1:] == (channels, height, width):
            return images
        if images.shape[1:] == (height, width, channels):
            return images.permute(0, 3, 1, 2)
        raise UserError(
            f"images are {tuple(images.shape)}; this model takes (B, {channels}, {height}, {width}) or "
            f"(B, {height}, {width}, {channels})"
        )


def _contiguous(images: Tensor | npt.NDArray[Any]) -> Tensor | npt.NDArray[Any]:
    """torch refuses arrays with negative strides, as a flip makes them, and warns of read-only ones."""
    return (
        images if isinstance(images, Tensor) else np.array(images, order="C")
    )  # a copy: it may be read-only


def load_model(run_dir: str | Path, client: int | None = None) -> Predictor:
    """The global model of a finished run, or one client's own where models are personal; eval mode.

    Raises UserError where there is no such model.
    """
    model, run = read_model(Path(run_dir), client)
    return Predictor(model, run["data"], run["prototypes"]).eval()
