"""Initial weights from a file: a whole model's, or what fits of an encoder's, as torchvision's ResNets."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from fedproc_mpi.config import Config
from fedproc_mpi.errors import UserError
from fedproc_mpi.learn.models import ImageShape, build_model
from fedproc_mpi.learn.seeds import seed_for
from fedproc_mpi.store.files import check_archive

WRAPPERS = ("state_dict", "model")  # under which training scripts save a state_dict
PREFIXES = ("module.", "encoder.")  # of DistributedDataParallel, and of this package's own models


def first_model(
    config: Config, name: str, client: int, shape: ImageShape, num_classes: int, init: str
) -> tuple[nn.Module, str]:
    """A new model with w⁰, and what `load_init` tells; personal models are drawn per client.

    init: a file of weights, or ''. Raises UserError as `build_model` and `load_init`.
    """
    seed = seed_for(config.seed, "model", client=client)
    module = build_model(name, shape, num_classes, config.normalize_z, seed, config.norm, config.stem)
    return module, load_init(module, init, config.init_part) if init else ""


def load_init(module: nn.Module, path: str, part: str) -> str:
    """Load a file's weights into a model; in words what was taken and what not, '' where all was.

    part: all, and everything must fit; or encoder, and what fits is taken. Raises UserError where the file
    cannot be read, does not fit, or holds values that are not finite; names are listed whole.
    """
    where = f"--init {path}"
    given = _read(path, where)
    target = module if part == "all" else getattr(module, "encoder", None)
    if not isinstance(target, nn.Module):
        raise UserError(f"{where}: --init-part encoder is for models that have an encoder, and this has none")
    own, other = target.state_dict(), []
    if part == "encoder":
        given = _of_the_encoder(given)
    fitting = {k: v for k, v in given.items() if k in own and v.shape == own[k].shape}
    for name, tensor in own.items():
        if name not in given:
            other.append(f"{name} (not in the file)")
        elif name not in fitting:
            other.append(f"{name} ({_size(given[name])} in the file, {_size(tensor)} here)")
    unused = [name for name in given if name not in own]
    if part == "all" and (other or unused):
        raise UserError(
            f"{where}: does not fit this model: {_told(other, unused)}; --init-part encoder takes what fits"
        )
    if not any(name in fitting for name, _ in target.named_parameters()):
        raise UserError(f"{where}: nothing of it fits the encoder: {_told(other, unused)}")
    for name, tensor in fitting.items():
        if not bool(torch.isfinite(tensor).all()):
            raise UserError(f"{where}: {name} holds values that are not finite")
    target.load_state_dict({**own, **fitting})
    if part == "all":
        return ""
    taken = f"{len(fitting)} of the encoder's {len(own)} tensors are taken"
    return f"{where}: {taken}; {_told(other, unused)}; head and classifier drawn"


def _read(path: str, where: str) -> dict[str, Tensor]:
    """The file's tensors by name."""
    try:
        if zipfile.is_zipfile(path):  # as all but files from before torch 1.6 are
            check_archive(Path(path))
        saved = torch.load(path, map_location="cpu", weights_only=True)
        for name in WRAPPERS:
            if isinstance(saved.get(name), Mapping):
                saved = saved[name]
    except Exception as error:  # a foreign file can fail in any way inside torch.load
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{where}: cannot be loaded: {reason}") from error
    tensors = {str(name): value for name, value in saved.items() if isinstance(value, Tensor)}
    if not tensors:
        raise UserError(f"{where}: cannot be loaded: it holds no tensors by name")
    return tensors


def _of_the_encoder(given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names as the encoder has them."""
    for prefix in PREFIXES:
        if any(name.startswith(prefix) for name in given):
            given = {name.removeprefix(prefix): tensor for name, tensor in given.items()}
    return dict(given)


def _told(other: Sequence[str], unused: Sequence[str]) -> str:
    parts = [f"drawn: {', '.join(other)}"] if other else []
    parts += [f"not used of the file: {', '.join(unused)}"] if unused else []
    return "; ".join(parts) or "all of it"


def _size(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a number"
