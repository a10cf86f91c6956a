"""model.pt: the final model, its writer and its reader."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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


def read_model(run_dir: Path, client: int | None) -> tuple[nn.Module, dict[str, Any]]:
    """A finished run's model, or one client's own where models are personal; and the run's config.json.

    The latter with the server's "prototypes" (K, D), or None. Raises UserError where there is no such model.
    """
    path, config = run_dir / MODEL, read_json(run_dir / CONFIG)
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
    kinds = saved.get(PERSONAL[1])
    if kinds is None and client is not None:
        raise UserError(f"{run_dir}: all clients share one model; load_model(run_dir) gives it")
    if kinds is not None and (client is None or not 0 <= client < len(kinds)):
        raise UserError(
            f"{run_dir}: each client has its own model; load_model(run_dir, client=k), k below {len(kinds)}"
        )
    kind = config["model"] if kinds is None else kinds[client]
    model = build_model(kind, shape, len(data["class_names"]), config["normalize_z"], 0, config["norm"])
    if client is None:
        model.load_state_dict(saved["state_dict"])
    else:
        own = read_client(run_dir, client, saved[PERSONAL[0]][client])
        FlatModel(model, config["channels_last"]).load(own["model"], own["counters"])
    return model, {**config, "prototypes": saved.get("prototypes")}
