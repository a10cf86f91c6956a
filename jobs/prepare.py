"""Make the shards files that the presets name and that are not there yet. Called by prepare.sh.

prepare.py [PRESET…] [--root DIR] [--download]. Where one fails, the others are still made; exit code 2.
"""

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from data_prep.cli import words_to_make  # noqa: E402
from fedproc_mpi.config import PRESET_DIR, load_preset  # noqa: E402

TINY_FOLDER = "tiny-imagenet-200"  # what its archive unpacks to, under --root


def main() -> int:
    """See above."""
    files = {p.stem: load_preset(p.stem).get("shards") for p in sorted(PRESET_DIR.glob("*.toml"))}
    files = {preset: Path(file) for preset, file in files.items() if file}
    parser = argparse.ArgumentParser(prog="jobs/prepare.sh", description="Make the presets' shards.")
    parser.add_argument("presets", nargs="*", metavar="PRESET", help=f"of {', '.join(files)}; default: all")
    parser.add_argument("--root", type=Path, default=Path("data"), help="folder of the data sets (data)")
    parser.add_argument("--download", action="store_true", help="fetch what --root lacks (CIFAR)")
    chosen = parser.parse_args()
    if unknown := [preset for preset in chosen.presets if preset not in files]:
        parser.error(f"{unknown[0]}: no preset with shards; known: {', '.join(files)}")
    failed = [preset for preset in chosen.presets or files if not make(files[preset], chosen)]
    if failed:
        print(f"prepare: not made: {', '.join(failed)}; the reasons stand above", file=sys.stderr)
    return 2 if failed else 0


def make(file: Path, chosen: argparse.Namespace) -> bool:
    """Whether the file is there afterwards."""
    if file.exists():
        print(f"prepare: {file} is there", flush=True)
        return True
    words = words_to_make(file)
    tiny = words[3] == "tinyimagenet"
    words += ["--root", str(chosen.root / TINY_FOLDER if tiny else chosen.root)]
    words += ["--download"] if chosen.download and not tiny else []
    print(f"prepare: {' '.join(words)}", flush=True)
    return subprocess.run([sys.executable, *words[1:]]).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
