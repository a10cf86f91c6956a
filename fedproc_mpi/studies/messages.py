"""`mpirun -n P python -m fedproc_mpi.studies.messages FILE`: what a broadcast and a reduce of P ranks take.

Writes JSON: ranks, host, versions, and for each operation and size the seconds of every repeat on rank 0.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fedproc_mpi.comm.launch import connect
from fedproc_mpi.command import run_command
from fedproc_mpi.errors import UserError
from fedproc_mpi.store.files import write_output

SIZES = [2**k for k in range(10, 25)]  # bytes: 1 KiB … 16 MiB
REPEATS = 9


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    return run_command("fedproc_mpi.studies.messages", _measure, argv)


def _measure(argv: list[str]) -> None:
    if len(argv) != 1:
        raise UserError("one word: the file to write")
    comm = connect()
    import torch

    def seconds_of(operation: Callable[[torch.Tensor], None], size: int) -> list[float]:
        buffer = torch.zeros(size // 8, dtype=torch.float64)
        operation(buffer)  # the first one makes connections
        found = []
        for _ in range(REPEATS):
            comm.exchange(None)  # all begin together
            start = time.perf_counter()
            operation(buffer)
            # The slowest rank's time: a root may leave before the others have got theirs.
            found.append(max(comm.exchange(time.perf_counter() - start)))
        return found

    operations = {"broadcast": comm.broadcast, "reduce": comm.reduce}
    times = {
        name: {str(size): seconds_of(operation, size) for size in SIZES}
        for name, operation in operations.items()
    }
    if comm.rank == 0:
        facts = {"ranks": comm.size, "transport": comm.name, **comm.versions(), "seconds": times}
        write_output(json.dumps(facts, indent=1) + "\n", Path(argv[0]))


if __name__ == "__main__":
    sys.exit(main())
