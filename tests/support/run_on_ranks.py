"""mpirun -n N python run_on_ranks.py SHARDS OUT PART…: every case of test_same_hash on each PART.

A part is a number of ranks and a transport: 3-mpi.
"""

import json
import sys
from pathlib import Path

from mpi4py import MPI

from fedproc_mpi import Config, run
from fedproc_mpi.comm.mpi import MpiComm
from tests.support.cases import CASES, SMALL

shards, out, *wanted = sys.argv[1:]
world = MpiComm(MPI.COMM_WORLD)
for label in wanted:
    size, transport = int(label.split("-")[0]), label.split("-")[1]
    part = MPI.COMM_WORLD.Split(world.rank < size, world.rank)
    found = {}
    if world.rank < size:
        comm = MpiComm(part)
        for name, options in CASES.items():
            run_dir = str(Path(out) / f"{name}-{label}")
            case = {**SMALL, **options, "transport": transport}
            result = run(Config.create(shards=shards, run_dir=run_dir, **case), comm)
            if result is not None:
                found[name] = [result.summary["model_sha256"], result.summary["final_accuracy"]]
    if world.rank == 0:
        (Path(out) / f"hashes-{label}.json").write_text(json.dumps(found))
    world.collect(None)  # ranks outside the part sleep here
