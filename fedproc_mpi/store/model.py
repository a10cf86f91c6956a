"""model.pt: the final model, its writer and its reader."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedproc_mpi.config import read_json
from fedproc_mpi.errors import UserError
from fedproc_mpi.learn.flat import FlatModel, list_sha256, tensors_sha256
from fedproc_mpi.learn.models import build_model
from fedproc_mpi.store.clients import read_client
from fedproc_mpi.store.files import CONFIG, MODEL, read_tensors, save_tensors

PERSONAL = ("client_versions", "client_models")  # in place of a state_dict, where models are personal
Tensors = Mapping[str, Tensor]


def model_hashes(tensors: Tensors, prototypes: Tensors) -> tuple[str, str]:
    """(model_sha256, weights_sha256) of one model: with the prototypes behind its tensors, and without."""
    return tensors_sha256({**tensors, **prototypes}), tensors_sha256(tensors)


def hashes_over_clients(hashes: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """The same over personal models, whose hashes are given in client order."""
    models, weights = zip(*hashes, strict=True)
    return list_sha256(models), list_sha256(weights)


def save_model(run_dir: Path, model: Mapping[str, Any], entries: Tensors) -> None:
    """Write model.pt: the state_dict, or what PERSONAL names; then the server's entries."""
    on_cpu = {name: tensor.cpu().clone() for name, tensor in entries.items()}
    save_tensors({**model, **on_cpu}, run_dir / MODEL)


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
        saved = read_tensors(path)
    except Exception as error:  # a damaged file can fail in any way
        raise UserError(
            f"{path} cannot be read ({type(error).__name__}: {error}); delete it, and --resume makes it again"
        ) from error
    if "data" not in config:
        raise UserError(f"{run_dir / CONFIG} is no run's record")
    data = config["data"]
    shape = (data["image_shape"][0], data["image_shape"][1], data["image_shape"][2])
    names = list(data["class_names"])
    kinds = saved.get(PERSONAL[1])
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
        own = read_client(run_dir, client, saved[PERSONAL[0]][client])
        FlatModel(model, config["channels_last"]).load(own["model"], own["counters"])
    predictor = Predictor(model, data["mean"], data["std"], names)
    predictor.prototypes_KD = saved.get("prototypes")
    return predictor.eval()
