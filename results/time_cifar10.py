"""Seconds a round of every algorithm on CIFAR-10: python results/time_cifar10.py SHARDS OUT [REPEATS]

Interleaved; two rounds each, as in run_cifar10.sh, on a server and two client ranks; the second counts,
since MOON has nothing to contrast in the first. Prints medians and the median ratio to FedAvg of the same
repeat. A run that is there already is not repeated.
"""

import json
import subprocess
import sys
from pathlib import Path
from statistics import median

OPTIONS = {
    "fedavg": "",
    "fedprox": "--mu 0.01",
    "scaffold": "",
    "fedproc": "",
    "solo": "",
    "fedproto": "--lam 0.1",
    "moon": "--mu 5 --temperature 0.5",
}
SETTING = (
    "--model simple-cnn --augment cifar10 --rounds 2 --local-epochs 5 --batch-size 64 --lr 0.01 --seed 0"
)


def main(shards: str, out: Path, repeats: int) -> None:
    """Run what is missing, then print the table."""
    for i in range(repeats):
        for name, own in OPTIONS.items():
            run_dir = out / str(i) / name
            if (run_dir / "summary.json").exists():
                continue
            flags = ["--algorithm", name, *own.split(), *SETTING.split(), "--shards", shards]
            command = ["mpirun", "-n", "3", sys.executable, "-m", "fedproc_mpi", *flags]
            subprocess.run([*command, "--run-dir", str(run_dir)], check=True)
    seconds = {name: [second_round(out / str(i) / name) for i in range(repeats)] for name in OPTIONS}
    print("| algorithm | s a round | to FedAvg's |\n|---|---|---|")
    for name, own in seconds.items():
        ratio = median(mine / base for mine, base in zip(own, seconds["fedavg"], strict=True))
        print(f"| {name} | {median(own):.1f} | {ratio:.2f} |")


def second_round(run_dir: Path) -> float:
    """Seconds of the run's second round."""
    return float(json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[1])["round_seconds"])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 3)
