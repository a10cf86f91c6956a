"""A finished run's model, ready to predict."""

from pathlib import Path

import torch
from torch import Tensor, nn

from fedproc_mpi.config import read_json
from fedproc_mpi.errors import UserError
from fedproc_mpi.learn.flat import FlatModel
from fedproc_mpi.learn.models import build_model
from fedproc_mpi.store.checkpoint import read_checked
from fedproc_mpi.store.client_state import read_state
from fedproc_mpi.store.records import CONFIG, MODEL


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
    run_dir = Path(run_dir)
    config = read_json(run_dir / CONFIG)
    path = run_dir / MODEL
    if not path.is_file():
        raise UserError(f"{run_dir}: no model.pt; the run is not finished (--resume goes on)")
    try:
        saved = read_checked(path)
    except Exception as error:  # a damaged file can fail in any way
        raise UserError(
            f"{path} cannot be read ({type(error).__name__}: {error}); delete it, and --resume makes it again"
        ) from error
    if "data" not in config:
        raise UserError(f"{run_dir / CONFIG} is no run's record")
    data = config["data"]
    shape = (data["image_shape"][0], data["image_shape"][1], data["image_shape"][2])
    names = list(data["class_names"])
    kinds = saved.get("client_models")
    if kinds is None and client is not None:
        raise UserError(f"{run_dir}: all clients share one model; load_model(run_dir) gives it")
    if kinds is not None and (client is None or not 0 <= client < len(kinds)):
        raise UserError(
            f"{run_dir}: each client has its own model; load_model(run_dir, client=k), k below {len(kinds)}"
        )
    kind = config["model"] if kinds is None else kinds[client]
    model = build_model(kind, shape, len(names), config["normalize_z"], 0, config["norm"])
    if client is None:
        model.load_state_dict(saved["state_dict"])
    else:
        own = read_state(run_dir, client, saved["client_versions"][client])
        FlatModel(model, config["channels_last"]).load(own["model"], own["counters"])
    predictor = Predictor(model, data["mean"], data["std"], names)
    predictor.prototypes_KD = saved.get("prototypes")
    return predictor.eval()
