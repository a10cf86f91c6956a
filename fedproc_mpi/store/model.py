"""A run's models: model.pt, its writer and its reader, which takes the checkpoint of a run that goes on."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedproc_mpi import algorithms
from fedproc_mpi.config import RECORDED, Config, read_json
from fedproc_mpi.errors import UserError, reason
from fedproc_mpi.flags import nearest
from fedproc_mpi.learn.flat import FlatModel, list_sha256, tensors_sha256
from fedproc_mpi.store.clients import NONE, read_client
from fedproc_mpi.store.files import BEST, CHECKPOINT, CONFIG, MODEL, PREVIOUS, read_tensors, save_tensors
from fedproc_mpi.store.init import first_model

DATA = {"class_names", "image_shape", "mean", "std", "fingerprint"}  # what a record tells of its data
Tensors = Mapping[str, Tensor]


def model_hashes(tensors: Tensors, prototypes: Tensors) -> tuple[str, str]:
    """(model_sha256, weights_sha256) of one model: with the prototypes behind its tensors, and without."""
    return tensors_sha256({**tensors, **prototypes}), tensors_sha256(tensors)


def hashes_over_clients(by_client: Mapping[int, tuple[str, str]]) -> tuple[str, str]:
    """The same over personal models, in client order."""
    models, weights = zip(*(by_client[k] for k in sorted(by_client)), strict=True)
    return list_sha256(models), list_sha256(weights)


def save_model(run_dir: Path, rounds: int, tensors: Tensors, entries: Tensors) -> None:
    """Write model.pt: the global model's state_dict after so many rounds, and what the server holds."""
    save_tensors({"rounds": rounds, "state_dict": tensors, **_on_cpu(entries)}, run_dir / MODEL)


def save_personal(
    run_dir: Path, rounds: int, versions: Sequence[int], kinds: Sequence[str], entries: Tensors
) -> None:
    """Write model.pt where models are personal: the version of each client's file, and its kind of model."""
    named = {"rounds": rounds, "client_versions": list(versions), "client_models": list(kinds)}
    save_tensors({**named, **_on_cpu(entries)}, run_dir / MODEL)


def _on_cpu(entries: Tensors) -> dict[str, Tensor]:
    return {name: tensor.cpu().clone() for name, tensor in entries.items()}


@dataclass(frozen=True)
class SavedModel:
    """One model of a run: the global one, or a client's own where models are personal.

    data: the shards' header, as config.json has it. entries: what the server held besides the model
    ("prototypes", "seen"). rounds: after how many of them. finished: there are no more.
    """

    module: nn.Module
    config: Config
    data: Mapping[str, Any]
    entries: Tensors
    rounds: int
    finished: bool


def read_config(run_dir: Path) -> tuple[Config, dict[str, Any]]:
    """A run's config, and its whole record. Raises UserError where there is no run of this package."""
    if not (run_dir / CONFIG).is_file():
        raise UserError(f"{run_dir} is no run directory: it has no {CONFIG}")
    record = read_json(run_dir / CONFIG)
    data = record.get("data")
    if not isinstance(data, dict) or not set(data) >= DATA:
        raise UserError(f"{run_dir / CONFIG} is no run's record: it does not tell which data the run had")
    return Config.create(**{k: v for k, v in record.items() if k not in RECORDED}), record


def find_client(data: Mapping[str, Any], text: str) -> int | None:
    """The client that a user names, by its name or number; None for ''. UserError where there is none.

    data: the shards' header, as config.json has it.
    """
    names = list(data.get("client_names") or ())
    if text in names:
        return names.index(text)
    if text.isdecimal():
        return int(text)
    if not text:
        return None
    known = nearest(text, names) if names else "clients have no names here; give the number"
    raise UserError(f"--client {text}: no such client; {known}")


def read_model(run_dir: Path, client: int | None, best: bool = False) -> SavedModel:
    """A run's final model, or that of its last checkpoint where it is not finished; on the CPU.

    best: that of the best round by validation instead.
    Raises UserError where there is no such model.
    """
    config, record = read_config(run_dir)
    finished = (run_dir / MODEL).is_file()
    if finished and not best:
        saved = read_saved(run_dir / MODEL, "; delete it, and --resume makes it again")
    else:
        saved = _read_unfinished(run_dir, config, [BEST] if best else [CHECKPOINT, PREVIOUS])
    data, kinds = record["data"], saved.get("client_models")
    if kinds is None and client is not None:
        raise UserError(f"{run_dir}: all clients share one model; leave the client away")
    if kinds is not None and (client is None or not 0 <= client < len(kinds)):
        names = data.get("client_names")
        known = f" ({', '.join(names)})" if names else ""
        raise UserError(
            f"{run_dir}: each client has its own model; name a client, 0 to {len(kinds) - 1}{known}"
        )
    kind = config.model if kinds is None or client is None else kinds[client]
    version = None if client is None else saved["client_versions"][client]
    # A client that was never drawn has the model that it would have started with.
    init = config.init if version == NONE else ""
    shape, classes = tuple(data["image_shape"]), len(data["class_names"])
    module, _ = first_model(config, kind, client or 0, shape, classes, init)
    # Flat, as the run had it: the same memory format gives the same last bits.
    flat = FlatModel(module, config.channels_last)
    if client is not None and version not in (None, NONE):
        saved = {**saved, **read_client(run_dir, client, version)}
    try:
        if "state_dict" in saved:
            module.load_state_dict(saved["state_dict"])
        elif version != NONE:
            flat.load(saved["model"], saved["counters"])
    except (KeyError, RuntimeError) as error:
        why = " ".join(str(error).split())[:200]
        raise UserError(f"{run_dir}: the saved model is not the one of its {CONFIG}: {why}") from error
    entries = {name: tensor for name, tensor in saved.items() if name in ("prototypes", "seen")}
    return SavedModel(module, config, data, entries, saved.get("rounds", config.rounds), finished)


def read_saved(path: Path, remedy: str = "") -> dict[str, Any]:
    """What model.pt, a checkpoint or best.pt holds. UserError, with a remedy, where it cannot be read."""
    try:
        return dict(read_tensors(path))
    except Exception as error:  # a damaged file can fail in any way
        system = isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
        why = f"({reason(error)})" if system else f"({type(error).__name__}: {error}){remedy}"
        raise UserError(f"{path} cannot be read {why}") from error


def _read_unfinished(run_dir: Path, config: Config, names: Sequence[str]) -> dict[str, Any]:
    """The first whole one of these checkpoints (best.pt is one) as model.pt would hold it, and its round."""
    for name in names:
        with suppress(UserError):  # missing, or damaged
            saved = read_saved(run_dir / name)
            found = {**saved["state"], "client_versions": saved["client_versions"]}
            found["rounds"] = saved["next_round"]
            algorithm = algorithms.build(config.algorithm, config.options)
            if algorithm.personal:
                clients = range(len(saved["client_versions"]))
                found["client_models"] = [algorithm.model_of(config, k) for k in clients]
            return found
    if BEST in names:
        raise UserError(f"{run_dir}: no whole {BEST}; runs on shards with a validation set have one")
    raise UserError(f"{run_dir}: no {MODEL} and no whole checkpoint yet; the run has only begun")
