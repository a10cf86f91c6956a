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

Tensors = Mapping[str, Tensor]


def model_hashes(tensors: Tensors, prototypes: Tensors) -> tuple[str, str]:
    """(model_sha256, weights_sha256) of one model: with the prototypes behind its tensors, and without."""
    return tensors_sha256({**tensors, **prototypes}), tensors_sha256(tensors)


def hashes_over_clients(by_client: Mapping[int, tuple[str, str]]) -> tuple[str, str]:
    """The same over personal models, in client order."""
    models, weights = zip(*(by_client[k] for k in sorted(by_client)), strict=True)
    return list_sha256(models), list_sha256(weights)


def save_model(run_dir: Path, tensors: Tensors, entries: Tensors) -> None:
    """Write model.pt: the global model's state_dict, and what the server holds besides."""
    save_tensors({"state_dict": tensors, **_on_cpu(entries)}, run_dir / MODEL)


def save_personal(run_dir: Path, versions: Sequence[int], kinds: Sequence[str], entries: Tensors) -> None:
    """Write model.pt where models are personal: the version of each client's file, and its kind of model."""
    named = {"client_versions": list(versions), "client_models": list(kinds)}
    save_tensors({**named, **_on_cpu(entries)}, run_dir / MODEL)


def _on_cpu(entries: Tensors) -> dict[str, Tensor]:
    return {name: tensor.cpu().clone() for name, tensor in entries.items()}


def read_model(run_dir: Path, client: int | None) -> tuple[nn.Module, dict[str, Any]]:
    """A finished run's model, or one client's own where models are personal; and the run's config.json.

    The latter with the server's "prototypes" (K, D), or None. Raises UserError where there is no such model.
    """
    if not (run_dir / CONFIG).is_file():
        raise UserError(f"{run_dir} is no run directory: it has no {CONFIG}")
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
    kinds = saved.get("client_models")
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
        own = read_client(run_dir, client, saved["client_versions"][client])
        FlatModel(model, config["channels_last"]).load(own["model"], own["counters"])
    return model, {**config, "prototypes": saved.get("prototypes")}
