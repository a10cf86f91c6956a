"""mpirun -n N python run_commands.py COMMANDS OUT: command lines of fedproc_mpi, one after the other.

COMMANDS is a JSON list of lists of words. OUT/RANK.json gets, for each, the exit code and what the rank
wrote to stderr. One start of torch per rank is what costs the time, so that all share it.
"""

import contextlib
import io
import json
import sys
from pathlib import Path

from fedproc_mpi.__main__ import main
from fedproc_mpi.comm.launch import launched_rank

commands, out = sys.argv[1:]
told = []
for words in json.loads(commands):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(words)
    told.append([code, said.getvalue()])
(Path(out) / f"{launched_rank()}.json").write_text(json.dumps(told))
