"""Reading speed of a shards file, the choice of its layout, and the peak memory of a client rank.

    python benchmarks/read_shards.py FILE            # time to open and to load one client; layouts compared
    python benchmarks/read_shards.py FILE --memory   # peak memory of a client rank (starts mpirun -n 2)

Cold: the file's pages are dropped from the page cache before each read (posix_fadvise), as far as the
kernel does it; warm: they are not.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from fedproc_mpi.comm.mpirun import launch_words
from fedproc_mpi.shards import Shards

LAYOUTS = {
    "contiguous": {},
    "chunks of 64": {"chunks": 64},
    "chunks of 64, lzf": {"chunks": 64, "compression": "lzf"},
    "chunks of 64, gzip 1": {"chunks": 64, "compression": "gzip", "compression_opts": 1},
}
RANK = """
import resource, sys, tempfile, torch
idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
from mpi4py import MPI
from fedproc_mpi.__main__ import main
flags = ["--rounds", "1", "--local-epochs", "1", "--sample-rate", sys.argv[3], "--model", sys.argv[2]]
code = main(["--shards", sys.argv[1], "--run-dir", sys.argv[4], *flags])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
if MPI.COMM_WORLD.rank == 1:
    print(f"RANK {idle} {peak}", flush=True)
sys.exit(code)
"""


def drop_cache(path: Path) -> None:
    """Ask the kernel to forget the file's pages."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def milliseconds(read: Callable[[], object], path: Path, cold: bool, n: int) -> str:
    """Median (and slowest) of n reads."""
    times = []
    for _ in range(n):
        if cold:
            drop_cache(path)
        start = time.perf_counter()
        read()
        times.append(1000 * (time.perf_counter() - start))
    return f"{statistics.median(times):7.2f} ({max(times):.2f})"


def speed(path: Path, n: int) -> None:
    """Open the file and load its largest client, as a rank does at its start."""
    with Shards(path) as shards:
        largest = int(np.argmax(shards.sizes))
        x_NHWC, _ = shards.client(largest)

    def load() -> None:
        with Shards(path) as shards:
            shards.client(largest)

    def verify() -> None:
        with Shards(path) as shards:
            shards.verify_client(largest)

    size = f"{len(x_NHWC)} samples, {x_NHWC.nbytes / 1e6:.2f} MB"
    print(f"{path.name}: largest client {largest}: {size}; ms, median (slowest) of {n}")
    for name, read in (("open + load", load), ("open + load + checksum", verify)):
        warm, cold = (milliseconds(read, path, cold, n) for cold in (False, True))
        print(f"  {name:24} warm {warm}   cold {cold}")


def layouts(path: Path, n: int) -> None:
    """The same images in other layouts: one client in the middle read from each."""
    with Shards(path) as shards:
        middle = shards.num_clients // 2
        rows = slice(int(shards.offsets[middle]), int(shards.offsets[middle + 1]))
    with h5py.File(path, "r") as file:
        x_NHWC = file["train/images"][:]
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        print(f"  layouts, client {middle}; ms, median (slowest) of {n}")
        for name, options in LAYOUTS.items():
            copy = Path(folder) / f"{len(name)}.h5"
            given = dict(options)
            if "chunks" in given:
                given["chunks"] = (int(given["chunks"]), *x_NHWC.shape[1:])
            with h5py.File(copy, "w") as file:
                file.create_dataset("images", data=x_NHWC, **given)

            def load(copy: Path = copy) -> None:
                with h5py.File(copy, "r", locking=False) as file:
                    file["images"][rows]

            warm, cold = (milliseconds(load, copy, cold, n) for cold in (False, True))
            megabytes = copy.stat().st_size / 1e6
            print(f"  {name:24} warm {warm}   cold {cold}   file {megabytes:.1f} MB")


def memory(path: Path, model: str, rate: float) -> None:
    """One round on one client rank beside the server: its peak above an idle `import torch`."""
    with Shards(path) as shards:
        # one client rank loads every sampled client, one after the other; all stay in its cache
        cohort = max(1, round(rate * shards.num_clients))
        row = int(np.prod(shards.header.image_shape))
        data = row * sum(sorted(shards.sizes)[-cohort:]) / 1e6
    with tempfile.TemporaryDirectory() as folder:
        run_dir = f"{folder}/run"
        arguments = [sys.executable, "-c", RANK, str(path), model, str(rate), run_dir]
        done = subprocess.run([*launch_words(2), *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        line = next(line for line in done.stdout.splitlines() if line.startswith("RANK"))
        weights = Path(run_dir, "model.pt").stat().st_size / 1e6
        name = json.loads(Path(run_dir, "config.json").read_text())["model"]
    idle, peak = map(float, line.split()[1:])
    print(f"{path.name}, {name}, {cohort} client(s) loaded by the one client rank")
    print(f"  peak {peak:.0f} MB, an idle `import torch` {idle:.0f} MB")
    print(f"  above idle {peak - idle:.0f} MB: shards ≤ {data:.1f} MB, model {weights:.1f} MB")


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path, help="a shards file")
    parser.add_argument("--memory", action="store_true", help="peak memory of a client rank")
    parser.add_argument("--model", default="auto", help="for --memory")
    parser.add_argument(
        "--sample-rate", type=float, default=1.0, help="for --memory: share of clients it loads"
    )
    parser.add_argument("-n", type=int, default=21, help="reads to take the median of")
    arguments = parser.parse_args()
    if arguments.memory:
        memory(arguments.file, arguments.model, arguments.sample_rate)
    else:
        speed(arguments.file, arguments.n)
        layouts(arguments.file, arguments.n)


if __name__ == "__main__":
    main()
