<<<<<<< ours
"""Jobs that tests start: `python tests/support/jobs.py hashes SHARDS OUT`, several configs in one process.
=======
"""Jobs that tests start: `python tests/support/jobs.py hashes SHARDS OUT` runs several configs in a process.
>>>>>>> theirs

One start of torch a rank is what costs the time, so the configs share it.
"""

import json
import sys
import tempfile
from pathlib import Path

from fedproc_mpi.comm.launch import connect

QUICK = {"rounds": 3, "local_epochs": 1, "batch_size": 32}
CONFIGS = {
    "fedproc": {"algorithm": "fedproc"},
    "fedavg": {"algorithm": "fedavg"},
    # 2 of 5 clients a round: with 5 ranks two client ranks have nothing to do
    "fedproc sampled": {"algorithm": "fedproc", "sample_rate": 0.4},
    "author's code": {
        "algorithm": "fedproc",
        "normalize_z": True,
        "prototype_average": "count",
        "class_means": "train",
        "absent_class": "zeros",
        "sample_rate": 0.4,
    },
    "batchnorm": {"algorithm": "fedavg", "model": "tests.support.small_models:WithBatchNorm"},
}


def hashes(shards: str) -> dict[str, object]:
    """Config → [model_sha256, accuracies by round, losses by round], on rank 0."""
    comm = connect()
    from fedproc_mpi import Config, run

    out = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, options in CONFIGS.items():
            run_dir = comm.share(str(Path(folder) / name))
            config = Config.create(**QUICK, **options, shards=shards, run_dir=run_dir)
            result = run(config, comm)
            if result is not None:
                rounds = [[line["accuracy"], line["loss"]] for line in result.metrics]
                out[name] = [result.summary["model_sha256"], rounds]
        comm.share(None)  # rank 0's directory goes when all are done
    return out


if __name__ == "__main__":
    found = hashes(sys.argv[2])
    if found:
        Path(sys.argv[3]).write_text(json.dumps(found))
