"""A client's samples as uint8 tensors on its device, and the batched augmentation. No DataLoader.

Shapes: N samples of a client, B batch, H, W, C image.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from cachetools import LRUCache
from torch import Tensor, nn

from fedproc_mpi.shards import Shards

AUGMENT_BY_DATASET = {"cifar10": "cifar10", "cifar100": "cifar100"}


@dataclass(frozen=True)
class ClientData:
    """One client: images (N, C, H, W) uint8, labels (N,) int64, on the device of its rank."""

    client: int
    x_NCHW: Tensor
    y_N: Tensor

    @property
    def num_examples(self) -> int:
        """|D_i|."""
        return len(self.y_N)


class Clients:
    """The clients of a shards file, by number; those used last stay resident up to `cache_bytes`."""

    def __init__(self, shards: Shards, device: torch.device, channels_last: bool, cache_bytes: int) -> None:
        self.shards, self.sizes = shards, shards.sizes
        self._device, self._channels_last = device, channels_last
        self._resident: LRUCache[int, ClientData] = LRUCache(cache_bytes, lambda data: data.x_NCHW.numel())

    def __len__(self) -> int:
        return len(self.sizes)

    def sizes_of(self, cohort: Sequence[int]) -> list[int]:
        """|D_i| of each of these clients."""
        return [self.sizes[k] for k in cohort]

    def __getitem__(self, client: int) -> ClientData:
        data = self._resident.get(client)
        if data is None:
            x_NHWC, y_N = self.shards.client(client)
            labels_N = torch.from_numpy(y_N.astype("int64")).to(self._device)
            data = ClientData(client, self.to_device(x_NHWC), labels_N)
            with suppress(ValueError):  # larger than the whole cache: read again next time
                self._resident[client] = data
        return data

    def to_device(self, x_NHWC: npt.NDArray[np.uint8]) -> Tensor:
        """uint8 images as (N, C, H, W) in the run's memory format on the device."""
        x_NCHW = torch.from_numpy(x_NHWC).permute(0, 3, 1, 2)
        memory_format = torch.channels_last if self._channels_last else torch.contiguous_format
        return x_NCHW.to(self._device).contiguous(memory_format=memory_format)


class Normalise(nn.Module):
    """uint8 pixels (or 0…255 as floats) to float32 with the shards' mean and std.

    mean, std: per channel of the images scaled to [0, 1].
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.mean: Tensor
        self.scale: Tensor
        self.register_buffer("mean", 255 * torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("scale", 1 / (255 * torch.tensor(std).view(1, -1, 1, 1)))

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return (x_BCHW.to(torch.float32) - self.mean) * self.scale


class Batches:
    """Cuts, augments and normalises a client's samples."""

    def __init__(self, shards: Shards, augment: str, device: torch.device) -> None:
        if augment == "auto":
            augment = AUGMENT_BY_DATASET.get(shards.header.dataset, "none")
        self.augment = augment
        self.normalise = Normalise(shards.header.mean, shards.header.std).to(device)

    def epoch(
        self, data: ClientData, batch_size: int, generator: torch.Generator, drop_last: bool, min_batch: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """One shuffled pass: (x_BCHW float32, y_B int64).

        drop_last leaves out a short last batch unless it is the only one; else a last batch of fewer
        than `min_batch` samples joins the one before it.
        """
        order_N = torch.randperm(data.num_examples, generator=generator).to(data.y_N.device)
        x_NCHW, y_N = data.x_NCHW[order_N], data.y_N[order_N]
        for start, stop in cuts(data.num_examples, batch_size, drop_last, min_batch):
            x_BCHW = augment_batch(x_NCHW[start:stop], self.augment, generator)
            yield self.normalise(x_BCHW), y_N[start:stop]


def cuts(n: int, batch_size: int, drop_last: bool, min_batch: int) -> list[tuple[int, int]]:
    """The batches [start, stop) of n samples in order."""
    pieces = [(start, min(start + batch_size, n)) for start in range(0, n, batch_size)]
    if len(pieces) > 1:
        start, stop = pieces[-1]
        if drop_last and stop - start < batch_size:
            pieces.pop()
        elif stop - start < min_batch:
            pieces[-2:] = [(pieces[-2][0], stop)]
    return pieces


def augment_batch(x_BCHW: Tensor, kind: str, generator: torch.Generator) -> Tensor:
    """Augment a uint8 batch on its device; one set of random numbers per sample, drawn on the host.

    cifar10: pad 4 by reflection, random crop to the old size, random horizontal flip (MOON's code).
    cifar100: pad 4 with zeros, crop, flip, rotation within ±15° (nearest neighbour, zero fill).
    """
    if kind == "none":
        return x_BCHW
    draws_B4 = torch.rand(len(x_BCHW), 4, generator=generator).to(x_BCHW.device)
    shift_B2 = (draws_B4[:, :2] * 9).long()  # 0..8 from the corner of the padded image
    flip_B = draws_B4[:, 2] < 0.5
    out_BCHW = shift_and_flip(x_BCHW, shift_B2, flip_B, "reflect" if kind == "cifar10" else "constant")
    if kind == "cifar100":
        out_BCHW = rotate(out_BCHW, (draws_B4[:, 3] * 2 - 1) * 15)
    return out_BCHW


def shift_and_flip(x_BCHW: Tensor, shift_B2: Tensor, flip_B: Tensor, mode: str, pad: int = 4) -> Tensor:
    """Pad by `pad`, crop each image at its (row, column) of the padded one, flip where asked."""
    batch, _, height, width = x_BCHW.shape
    rows_BH = shift_B2[:, :1] + torch.arange(height, device=x_BCHW.device) - pad
    columns_W = torch.arange(width, device=x_BCHW.device)
    columns_BW = torch.where(flip_B[:, None], columns_W.flip(0), columns_W) + shift_B2[:, 1:] - pad
    x_BHWC = x_BCHW.permute(0, 2, 3, 1)
    index_B = torch.arange(batch, device=x_BCHW.device)[:, None, None]
    if mode == "reflect":
        rows_BH, columns_BW = _reflect(rows_BH, height), _reflect(columns_BW, width)
        return x_BHWC[index_B, rows_BH[:, :, None], columns_BW[:, None, :]].permute(0, 3, 1, 2)
    inside_BH1 = ((rows_BH >= 0) & (rows_BH < height))[:, :, None]
    inside_B1W = ((columns_BW >= 0) & (columns_BW < width))[:, None, :]
    rows_BH, columns_BW = rows_BH.clamp(0, height - 1), columns_BW.clamp(0, width - 1)
    out_BHWC = x_BHWC[index_B, rows_BH[:, :, None], columns_BW[:, None, :]]
    return (out_BHWC * (inside_BH1 & inside_B1W)[..., None]).permute(0, 3, 1, 2)


def rotate(x_BCHW: Tensor, degrees_B: Tensor) -> Tensor:
    """Rotate each image counter-clockwise about its centre; nearest neighbour, zero fill."""
    height, width = x_BCHW.shape[2:]
    radians_B = degrees_B * (math.pi / 180)
    cos_B, sin_B = radians_B.cos(), radians_B.sin()
    ratio = height / width
    zero_B = torch.zeros_like(cos_B)
    theta_B23 = torch.stack([cos_B, -sin_B * ratio, zero_B, sin_B / ratio, cos_B, zero_B], dim=1).view(
        -1, 2, 3
    )
    grid_BHW2 = F.affine_grid(theta_B23, list(x_BCHW.shape), align_corners=False)
    out = F.grid_sample(x_BCHW.float(), grid_BHW2, mode="nearest", padding_mode="zeros", align_corners=False)
    return out.to(x_BCHW.dtype)


def _reflect(index: Tensor, size: int) -> Tensor:
    """Reflection about the border samples, which are not repeated."""
    index = index.abs()
    return torch.where(index >= size, 2 * (size - 1) - index, index)
