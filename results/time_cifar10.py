"""Seconds a round of every algorithm on CIFAR-10: python results/time_cifar10.py SHARDS OUT [REPEATS]

Two rounds each by run_cifar10.sh, all algorithms once before any is repeated; the second round counts,
since MOON has nothing to contrast in the first. Prints medians and the median ratio to FedAvg of the same
repeat. A run that is there already is not repeated.
"""

import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from fedproc_mpi.store.metrics import read_metrics

ALGORITHMS = ("fedavg", "fedprox", "scaffold", "fedproc", "solo", "fedproto", "moon")
RUN = str(Path(__file__).with_name("run_cifar10.sh"))


def main(shards: str, out: Path, repeats: int) -> None:
    """Run what is missing, then print the table."""
    for i in range(repeats):
        own = {"ROUNDS": "2", "SHARDS": shards, "OUT": str(out / str(i))}
        subprocess.run([RUN, *ALGORITHMS], env={**os.environ, **own}, check=True)
    seconds = {
        name: [read_metrics(out / str(i) / name)[1]["round_seconds"] for i in range(repeats)]
        for name in ALGORITHMS
    }
    print("| algorithm | s a round | to FedAvg's |\n|---|---|---|")
    for name, own_seconds in seconds.items():
        ratio = median(mine / base for mine, base in zip(own_seconds, seconds["fedavg"], strict=True))
        print(f"| {name} | {median(own_seconds):.1f} | {ratio:.2f} |")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 3)
