"""`python -m data_prep SOURCE --clients M --beta B --seed S --out FILE`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from data_prep import partition, sources
from data_prep.write import write
from fedproc_mpi.errors import UserError
from fedproc_mpi.shards import Shards


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, or 2 for the user's mistakes, told in one line."""
    arguments = _parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except UserError as error:
        print(f"data_prep: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m data_prep", description="Shard a data set to HDF5.")
    commands = parser.add_subparsers(required=True, metavar="SOURCE")
    digits = commands.add_parser("digits", help="the embedded 8×8 digits")
    digits.add_argument("--clients", type=int, default=10, help="m")
    digits.add_argument("--beta", type=float, default=0.5, help="Dirichlet concentration")
    digits.add_argument("--min-samples", type=int, default=10, help="fewest samples a client")
    digits.add_argument("--seed", type=int, default=0)
    digits.add_argument("--out", type=Path, required=True, help="the shards file")
    digits.set_defaults(run=_shard)
    inspect = commands.add_parser("inspect", help="show a shards file")
    inspect.add_argument("file", type=Path)
    inspect.set_defaults(run=_inspect)
    return parser


def shard_digits(out: Path) -> None:
    """What the first run of fedproc_mpi does: the embedded digits for 10 clients, beta 0.5, seed 0."""
    arguments = ["digits", "--clients", "10", "--beta", "0.5", "--seed", "0", "--out", str(out)]
    _shard(_parser().parse_args(arguments))


def _shard(arguments: argparse.Namespace) -> None:
    if arguments.clients < 1:
        raise UserError(f"--clients must be at least 1, not {arguments.clients}")
    if arguments.out.exists():
        raise UserError(f"{arguments.out} exists; choose another --out, or remove it")
    source = sources.digits(arguments.seed)
    parts = partition.dirichlet(
        source.train.labels, arguments.clients, arguments.beta, arguments.seed, arguments.min_samples
    )
    made_by = f"python -m data_prep digits --clients {arguments.clients} --beta {arguments.beta}"
    write(source, parts, arguments.out, arguments.seed, "dirichlet", arguments.beta, made_by)
    print(f"data_prep: {arguments.out}: {len(parts)} clients, {len(source.train.labels)} samples")


def _inspect(arguments: argparse.Namespace) -> None:
    with Shards(arguments.file) as shards:
        header, sizes = shards.header, shards.sizes
        counts = [
            np.bincount(shards.client_labels(i), minlength=shards.num_classes) for i in range(len(sizes))
        ]
        empty = sum(int((c == 0).sum()) for c in counts)
        held = sorted(int((c > 0).sum()) for c in counts)
        print(f"{header.dataset}: {shards.num_classes} classes, images {header.image_shape} (H, W, C)")
        print(f"partition        {header.partition}, beta {header.beta}, seed {header.seed}")
        print(f"clients          {len(sizes)}")
        print(f"samples          {sum(sizes)} train, {shards.num_test} test")
        print(f"samples a client min {min(sizes)}, median {int(np.median(sizes))}, max {max(sizes)}")
        print(f"classes a client min {held[0]}, median {held[len(held) // 2]}, max {held[-1]}")
        print(f"empty pairs      {empty} of {len(sizes) * shards.num_classes} (client, class)")
        print(f"fingerprint      {shards.fingerprint}")


if __name__ == "__main__":
    sys.exit(main())
