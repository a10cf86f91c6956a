"""mpirun -n N python run_cases.py SHARDS OUT PART:CASES…: configs of cases.py, each on a part of the ranks.

A part is a number of ranks and a transport: 3-mpi. 3-mpi-busy: the other ranks burn CPU time meanwhile.
One start of torch per rank is what costs the time, so that all share it. OUT/PART.json gets the outcomes.
"""

import json
import sys
from pathlib import Path

from fedproc_mpi.comm.launch import connect

world = connect()  # as the command line does it, before torch

from mpi4py import MPI  # noqa: E402

from fedproc_mpi import Config, run  # noqa: E402
from fedproc_mpi.comm.mpi import MpiComm  # noqa: E402
from tests.support import cases  # noqa: E402

shards, out, *wanted = sys.argv[1:]
for label in wanted:
    part, names = label.split(":")
    size, transport, *busy = part.split("-")
    inside = world.rank < int(size)
    members = MPI.COMM_WORLD.Split(inside, world.rank)
    found = {}
    for name, options in getattr(cases, names).items() if inside else ():
        run_dir = str(Path(out) / f"{name}-{part}")
        config = Config.create(**{"shards": shards, **options}, run_dir=run_dir, transport=transport)
        result = run(config, MpiComm(members))
        if result is not None:
            found[name] = cases.outcome(result)
    if world.rank == 0:
        (Path(out) / f"{part}.json").write_text(json.dumps(found))
    done = MPI.COMM_WORLD.Ibarrier()
    while busy and not done.Test():
        pass
    done.Wait()
    world.collect(None)  # the others sleep here
