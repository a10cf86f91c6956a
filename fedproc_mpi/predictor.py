"""A run's model, ready to predict.

Shapes: B images, C channels, H, W image, K classes, D width of z.
"""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedproc_mpi import algorithms
from fedproc_mpi.algorithms.base import Algorithm
from fedproc_mpi.errors import UserError
from fedproc_mpi.learn.data import Normalise
from fedproc_mpi.learn.models import block_size
from fedproc_mpi.placement.devices import autocast
from fedproc_mpi.store.model import SavedModel, read_model
from fedproc_mpi.terminal import complain

Images = Tensor | npt.NDArray[Any]


@dataclass(frozen=True)
class Prediction:
    """What a model says of B images.

    classes: the name of the most probable class of each. probabilities: (B, K) float32, in the order of the
    model's `classes`. prototype_classes: the class of the nearest prototype of each, where there are any.
    """

    classes: list[str]
    probabilities: npt.NDArray[np.float32]
    prototype_classes: list[str] | None = None


class Predictor(nn.Module):
    """Images in, logits out, with the arithmetic of the run; normalisation included.

    `classes` are their names in order; `image_shape` is (H, W, C); `prototypes_KD` the global prototypes, or
    None; `rounds` after how many rounds the model is, of `config.rounds`; `block` how many images the run
    evaluated at a time.
    """

    def __init__(self, saved: SavedModel) -> None:
        super().__init__()
        self.model, self.config, self.rounds = saved.module, saved.config, saved.rounds
        self.classes = list(saved.data["class_names"])
        self.image_shape = tuple(saved.data["image_shape"])
        self.normalise = Normalise(saved.data["mean"], saved.data["std"])
        self.prototypes_KD = saved.entries.get("prototypes")
        self._entries = saved.entries
        self.block = block_size(self.model, self.image_shape)

    def forward(self, images: Images) -> Tensor:
        """Logits (B, K) of images: uint8 in 0…255 or float in 0…1; (B, C, H, W) or (B, H, W, C).

        Raises UserError for images of another size, type or range, which would be told wrongly.
        """
        return self.both(images)[1]

    def embed(self, images: Images) -> Tensor:
        """z (B, D) of images as in `forward`."""
        return self.both(images)[0]

    @torch.no_grad()
    def predict(self, images: Images) -> Prediction:
        """Class names and probabilities of images as in `forward`."""
        z_BD, logits_BK = self.both(images)
        nearest = self.prototype_scores(z_BD)
        return Prediction(
            self._names(logits_BK),
            logits_BK.softmax(1).cpu().numpy(),
            None if nearest is None else self._names(nearest),
        )

    def prototype_scores(self, z_BD: Tensor) -> Tensor | None:
        """Scores (B, K) of the classes by the run's prototypes, the highest wins; None where it has none."""
        if self.prototypes_KD is None:
            return None
        return self._algorithm.prototype_scores(
            z_BD, {name: tensor.to(z_BD.device) for name, tensor in self._entries.items()}
        )

    @functools.cached_property
    def _algorithm(self) -> Algorithm:
        """Built when it is first asked: a user's own file may be gone, and the classifier needs none."""
        return algorithms.build(self.config.algorithm, self.config.options)

    def both(self, images: Images) -> tuple[Tensor, Tensor]:
        """(z_BD, logits_BK), float32, of images as in `forward`."""
        try:
            given = torch.as_tensor(_contiguous(images))
        except (TypeError, ValueError) as error:
            raise UserError(f"images must be a tensor or an array of numbers: {error}") from error
        x_BCHW = self._channels_first(given)
        if x_BCHW.is_floating_point():
            if x_BCHW.numel() and not (x_BCHW.min() >= 0 and x_BCHW.max() <= 1):  # NaN is neither
                found = f"{float(x_BCHW.min()):g}…{float(x_BCHW.max()):g}"
                raise UserError(
                    f"float images must be in 0…1, not {found}: divide by 255, and do not normalise them"
                )
            x_BCHW = x_BCHW.float() * 255
        elif x_BCHW.dtype != torch.uint8:
            raise UserError(f"images are {x_BCHW.dtype}: give uint8 in 0…255, or float in 0…1")
        if self.config.channels_last:
            x_BCHW = x_BCHW.contiguous(memory_format=torch.channels_last)
        with autocast(self.config, x_BCHW.device):
            z_BD, logits_BK = self.model(self.normalise(x_BCHW))
        return z_BD.float(), logits_BK.float()

    def _names(self, scores_BK: Tensor) -> list[str]:
        return [self.classes[k] for k in scores_BK.argmax(1).tolist()]

    def _channels_first(self, images: Tensor) -> Tensor:
        """Images (B, C, H, W), whichever of the two orders they have, on the model's device."""
        height, width, channels = self.image_shape
        images = images.to(self.normalise.mean.device)
        if images.shape[1:] == (channels, height, width):
            return images
        if images.shape[1:] == (height, width, channels):
            return images.permute(0, 3, 1, 2)
        raise UserError(
            f"images are {tuple(images.shape)}; this model takes (B, {channels}, {height}, {width}) or "
            f"(B, {height}, {width}, {channels})"
        )


def _contiguous(images: Images) -> Images:
    """torch refuses arrays with negative strides, as a flip makes them, and warns of read-only ones."""
    return (
        images if isinstance(images, Tensor) else np.array(images, order="C")
    )  # a copy: it may be read-only


def load_model(run_dir: str | Path, client: int | None = None, best: bool = False) -> Predictor:
    """A run's global model, or one client's own where models are personal; eval mode.

    best: the model of the best round by the validation set, where there was one.
    Of a run that is not finished it is the model of the last checkpoint, and a line on standard error says
    of which round. Raises UserError where there is no such model.
    """
    saved = read_model(Path(run_dir), client, best)
    if not saved.finished and not best:
        total = saved.config.rounds
        complain(f"{run_dir} is not finished: this is the model after round {saved.rounds} of {total}")
    return Predictor(saved).eval()
