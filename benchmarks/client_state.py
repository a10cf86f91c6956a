"""What it costs to keep a client's state: python benchmarks/client_state.py [DIRECTORY]

Writes (with fsync) and reads what SCAFFOLD keeps of one client, for SimpleCNN and ResNet-50; the directory
should lie on the file system that runs use. MOON, SOLO and FedProto keep as much (ResNet-50: buffers too).
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from fedproc_mpi.learn.models import build_model
from fedproc_mpi.store.clients import NONE, ClientFiles, client_file

CLIENTS = 5


def main(top: str) -> None:
    for name, num_classes in (("simple-cnn", 10), ("resnet50", 100)):
        model = build_model(name, (32, 32, 3), num_classes, normalize_z=False, seed=0)
        control_P = torch.randn(sum(p.numel() for p in model.parameters()))
        with tempfile.TemporaryDirectory(dir=top) as folder:
            states = ClientFiles(Path(folder), [NONE] * CLIENTS, torch.device("cpu"), 0, initial=lambda k: {})
            save = [timed(partial(states.save, k, 0, {"control": control_P})) for k in range(CLIENTS)]
            states.advance(range(CLIENTS), 0)
            load = [timed(partial(states.load, k)) for k in range(CLIENTS)]
            size = client_file(Path(folder), 0, 0).stat().st_size
        print(
            f"{name}: {size / 1e6:.1f} MB a client; save {1e3 * statistics.median(save):.0f} ms, "
            f"load {1e3 * statistics.median(load):.1f} ms (medians of {CLIENTS}); "
            f"m=100, two versions each: {200 * size / 1e9:.2f} GB"
        )


def timed(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".")
