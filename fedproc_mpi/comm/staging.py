"""Host buffers through which a GPU tensor passes in chunks on its way to and from MPI."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


class Staging:
    """Two pinned host buffers and a copy stream: while MPI works on one chunk, the other is copied."""

    def __init__(self, device: torch.device, chunk_bytes: int) -> None:
        self._api = torch.get_device_module(device)
        pinned = device.type == "cuda"
        self._buffers = [torch.empty(chunk_bytes, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
        self._done = [self._api.Event() for _ in range(2)]
        self._stream = self._api.Stream()

    def through(self, chunks: Sequence[Tensor], read: bool, write: bool) -> Iterator[Tensor]:
        """A host tensor for each device chunk, in order.

        read: it holds the chunk's values. write: what the caller leaves in it goes back to the device;
        later work on the current stream sees it. A host tensor is valid until the next one is asked for.
        """
        hosts = [self._host(i, chunk) for i, chunk in enumerate(chunks)]
        self._stream.wait_stream(self._api.current_stream())  # the values may still be in the making
        if read and chunks:
            self._copy(hosts, chunks, 0)
        for i, host in enumerate(hosts):
            if read and i + 1 < len(chunks):
                self._copy(hosts, chunks, i + 1)  # on the stream behind the write that used this buffer
            self._done[i % 2].synchronize()
            yield host
            if write:
                self._copy(chunks, hosts, i)
        self._api.current_stream().wait_stream(self._stream)

    def _host(self, i: int, chunk: Tensor) -> Tensor:
        return self._buffers[i % 2][: chunk.numel() * chunk.element_size()].view(chunk.dtype)

    def _copy(self, to: Sequence[Tensor], source: Sequence[Tensor], i: int) -> None:
        with self._api.stream(self._stream):
            to[i].copy_(source[i], non_blocking=True)
            self._done[i % 2].record(self._stream)
