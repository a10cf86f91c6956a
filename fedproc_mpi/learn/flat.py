"""A model's whole state as one flat float32 vector, and the round's state as one flat buffer.

Shapes: S floats of the model's state (parameters, then float buffers), P of them parameters,
N integer buffers (`num_batches_tracked`).
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedproc_mpi.learn.sums import Segment

ALIGN = 64  # bytes: every entry starts on a cache line, so a kernel meets one alignment everywhere


class FlatModel:
    """A module whose parameters, gradients and buffers are views into flat vectors.

    vector_S: float32, parameters first; grad_P: float32, its gradients; counters_N: int64.
    Loading a state, an optimizer step or a proximal term is then one vector operation. With
    `channels_last`, 4-D weights lie in that order in memory; names and shapes are unchanged.
    """

    def __init__(self, module: nn.Module, channels_last: bool = False) -> None:
        self.module = module
        tensors = dict(module.named_parameters()) | {
            k: v for k, v in module.named_buffers() if v.is_floating_point()
        }
        integers = {k: v for k, v in module.named_buffers() if not v.is_floating_point()}
        device = next(module.parameters()).device
        self.segments = _segments({k: v.numel() for k, v in tensors.items()})
        self.counter_names = _segments({k: v.numel() for k, v in integers.items()})
        self.num_params = sum(p.numel() for p in module.parameters())
        self.vector_S = torch.empty(sum(v.numel() for v in tensors.values()), device=device)
        self.grad_P = torch.zeros(self.num_params, device=device)
        self.counters_N = torch.empty(
            sum(v.numel() for v in integers.values()), dtype=torch.int64, device=device
        )
        with torch.no_grad():
            for segment, tensor in zip(self.segments, tensors.values(), strict=True):
                view = _shaped(self.vector_S[segment.start : segment.stop], tensor.shape, channels_last)
                view.copy_(tensor)
                if isinstance(tensor, nn.Parameter):
                    gradient = self.grad_P[segment.start : segment.stop]
                    tensor.data = view
                    tensor.grad = _shaped(gradient, tensor.shape, channels_last)
                else:
                    _set_buffer(module, segment.label, view)
            for segment, tensor in zip(self.counter_names, integers.values(), strict=True):
                view = self.counters_N[segment.start : segment.stop].view(tensor.shape)
                view.copy_(tensor)
                _set_buffer(module, segment.label, view)

    def load(self, vector_S: Tensor, counters_N: Tensor) -> None:
        """Take over a state (the round's global model)."""
        with torch.no_grad():
            self.vector_S.copy_(vector_S)
            self.counters_N.copy_(counters_N)


@dataclass(frozen=True)
class Entry:
    """One named tensor of the round's state."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32


class State:
    """What the server sends at the start of a round: named tensors in one typed buffer.

    `buffer` is uint8; `state["model"]` and the others are views into it, in the order of `entries`.
    """

    def __init__(self, entries: Mapping[str, Entry], device: torch.device | str = "cpu") -> None:
        self.entries = dict(entries)
        starts, end = {}, 0
        for name, entry in self.entries.items():
            starts[name] = end
            size = math.prod(entry.shape) * entry.dtype.itemsize
            end += -(-size // ALIGN) * ALIGN
        self.buffer = torch.zeros(end, dtype=torch.uint8, device=device)
        self._views = {
            name: self.buffer[starts[name] : starts[name] + math.prod(e.shape) * e.dtype.itemsize]
            .view(e.dtype)
            .view(e.shape)
            for name, e in self.entries.items()
        }

    def __getitem__(self, name: str) -> Tensor:
        return self._views[name]

    def __contains__(self, name: str) -> bool:
        return name in self._views

    def tensors(self) -> dict[str, Tensor]:
        """The named views."""
        return dict(self._views)


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over name, dtype, shape and little-endian bytes of each tensor, in the mapping's order."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        array = tensor.detach().cpu().contiguous().numpy()
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name}|{array.dtype.name}|{list(array.shape)}|".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def list_sha256(digests: Iterable[str]) -> str:
    """SHA-256 over hexadecimal digests, one after the other."""
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _segments(sizes: Mapping[str, int]) -> tuple[Segment, ...]:
    segments, start = [], 0
    for name, size in sizes.items():
        segments.append(Segment(name, start, start + size))
        start += size
    return tuple(segments)


def _shaped(flat: Tensor, shape: torch.Size, channels_last: bool) -> Tensor:
    if channels_last and len(shape) == 4:
        out_channels, in_channels, height, width = shape
        return flat.view(out_channels, height, width, in_channels).permute(0, 3, 1, 2)
    return flat.view(shape)


def _set_buffer(module: nn.Module, name: str, value: Tensor) -> None:
    parent, _, leaf = name.rpartition(".")
    module.get_submodule(parent)._buffers[leaf] = value
