"""Seconds of a round beside other simulators, on the same work: `python benchmarks/peers/run.py --peers DIR`.

Each peer has an environment of its own, DIR/pfl, DIR/fedlab, DIR/flwr (README.md here says how to make them);
those that are missing are left out. The repeats take turns, so that what slows the machine slows all alike.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WARM_UP = 2  # rounds that do not count
SCRIPTS = {  # name → (environment, words)
    "pfl, 2 processes": ("pfl", ["-m", "torch.distributed.run", "--nproc_per_node", "2", "pfl_fedavg.py"]),
    "FedLab, 1 process": ("fedlab", ["-W", "ignore", "fedlab_fedavg.py"]),
    "Flower, 2 actors": ("flwr", ["flower_fedavg.py"]),
}
OURS, ALONE, LOOP = "fedproc_mpi, server + 2 ranks", "fedproc_mpi, 1 process", "plain loop, 1 process"
THREADS = {"OMP_NUM_THREADS": "1"}


def peer(python: str, words: list[str], rounds: int) -> list[float]:
    """Seconds of each round of a script here."""
    done = subprocess.run(
        [python, *words, str(rounds)],
        cwd=HERE,
        env={**os.environ, **THREADS},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    found = [line for line in done.stdout.splitlines() if line.startswith("[0.") or line[1:2].isdigit()]
    seconds: list[float] = json.loads(found[-1])
    return seconds


def ours(ranks: int, rounds: int, folder: Path, repeat: int) -> list[float]:
    """Seconds of each round here, the evaluation of 1,000 pictures and the checkpoint included."""
    run_dir = folder / f"run-{ranks}-{repeat}"
    words = [
        "--algorithm",
        "fedavg",
        "--model",
        "benchmarks.peers.work:Ours",
        "--shards",
        str(folder / "x.h5"),
    ]
    words += ["--sample-rate", "0.2", "--rounds", str(rounds), "--local-epochs", "1", "--batch-size", "32"]
    words += ["--lr", "0.01", "--momentum", "0", "--weight-decay", "0", "--augment", "none"]
    launch = [] if ranks == 1 else [shutil.which("mpirun") or "mpirun", "--bind-to", "none", "-n", str(ranks)]
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    subprocess.run(
        [*launch, sys.executable, "-m", "fedproc_mpi", *words, "--run-dir", str(run_dir)],
        cwd=ROOT,
        env={"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", **os.environ, **allowed},
        capture_output=True,
        timeout=300,
        check=True,
    )
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["round_seconds"] for line in lines]


def main() -> None:
    """Print a Markdown table: medians over the repeats, and ours as a share of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", type=Path, default=Path("peers"), help="folder of the environments")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=12)
    given = parser.parse_args()
    peers = {
        name: (str((given.peers / environment / "bin/python").absolute()), words)
        for name, (environment, words) in SCRIPTS.items()
        if (given.peers / environment / "bin/python").exists()
    }
    peers[LOOP] = (sys.executable, ["loop.py"])
    found: dict[str, list[float]] = {name: [] for name in (OURS, ALONE, *peers)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = ["synthetic", "--clients", "100", "--samples", "100", "--image-size", "32", "--channels", "3"]
        data += ["--classes", "10", "--test-samples", "1000", "--out", str(folder / "x.h5")]
        subprocess.run([sys.executable, "-m", "data_prep", *data], cwd=ROOT, check=True, capture_output=True)
        for repeat in range(given.repeats):
            for ranks, who in ((3, OURS), (1, ALONE)):
                found[who].append(median(ours(ranks, given.rounds, folder, repeat)[WARM_UP:]))
            for who, (python, words) in peers.items():
                found[who].append(median(peer(python, words, given.rounds)[WARM_UP:]))
    print(f"| | s a round (median of {given.repeats}) | lowest, highest | ours, server + 2 ranks, ÷ this |")
    print("|---|--:|--:|--:|")
    for who, values in found.items():
        ratio = median(a / b for a, b in zip(found[OURS], values, strict=True))
        print(f"| {who} | {median(values):.3f} | {min(values):.3f}, {max(values):.3f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
