"""mpirun -n N python run_on_ranks.py SHARDS OUT SIZE…: every case of test_algorithms on SIZE ranks each."""

import json
import sys
from pathlib import Path

from mpi4py import MPI

from fedproc_mpi import Config, run
from fedproc_mpi.comm.mpi import MpiComm
from tests.test_algorithms import CASES, SMALL

shards, out, *sizes = sys.argv[1:]
world = MpiComm(MPI.COMM_WORLD)
for size in map(int, sizes):
    part = MPI.COMM_WORLD.Split(world.rank < size, world.rank)
    found = {}
    if world.rank < size:
        comm = MpiComm(part)
        for name, options in CASES.items():
            run_dir = str(Path(out) / f"{name}-{size}")
            result = run(Config.create(shards=shards, run_dir=run_dir, **{**SMALL, **options}), comm)
            if result is not None:
                found[name] = [result.summary["model_sha256"], result.summary["final_accuracy"]]
    if world.rank == 0:
        (Path(out) / f"hashes-{size}.json").write_text(json.dumps(found))
    world.collect(None)  # ranks outside the part sleep here
