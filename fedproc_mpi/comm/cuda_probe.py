"""Whether this MPI reads and writes GPU memory, found out by doing it in a process of its own.

An MPI that is not CUDA-aware ends with a segmentation fault when it is given a device address; what a
library says about itself is often wrong. `python -m fedproc_mpi.comm.cuda_probe` prints `ok`.
"""

import os
import signal
import subprocess
import sys

import torch

from fedproc_mpi.comm.launch import LAUNCHER_PREFIXES
from fedproc_mpi.errors import UserError
from fedproc_mpi.terminal import say

SECONDS = 60


def probe(device: torch.device) -> UserError | None:
    """None where MPI handles this GPU's memory right (or there is no GPU: the server); else what is wrong."""
    if device.type == "cpu":
        return None
    why = failure(str(device))
    return UserError(f"--cuda-aware: {why}; leave the flag away") if why else None


def failure(device: str) -> str:
    """What goes wrong when MPI, alone in a new process, is handed memory of `device`; '' for nothing."""
    # A launcher's variables would make the child a second rank of this job.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHER_PREFIXES)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "fedproc_mpi.comm.cuda_probe", device],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"MPI did not come back within {SECONDS} s from memory of {device}"
    if done.returncode == 0 and done.stdout.strip().endswith("ok"):
        return ""
    if done.returncode < 0:
        return f"MPI crashed on memory of {device} ({signal.Signals(-done.returncode).name})"
    said = (done.stderr or done.stdout).strip().splitlines()
    return f"MPI failed on memory of {device}: {said[-1] if said else 'no word'}"


def _main(device: str) -> None:
    """Send, broadcast and reduce on the process's own communicator; wrong values are an error as well."""
    from mpi4py import MPI

    comm = MPI.COMM_SELF
    sent = torch.arange(2**16, dtype=torch.float64, device=device)
    received, total = torch.zeros_like(sent), torch.zeros_like(sent)
    if sent.device.type == "cuda":
        torch.cuda.synchronize()
    buffers = [t if t.device.type == "cuda" else t.numpy() for t in (sent, received, total)]
    comm.Sendrecv(buffers[0], dest=0, recvbuf=buffers[1], source=0)
    comm.Reduce(buffers[0], buffers[2], op=MPI.SUM, root=0)
    comm.Bcast(buffers[2], root=0)
    right = torch.equal(received, sent) and torch.equal(total, sent)
    if not right:
        sys.exit("values changed on the way")
    say("ok")


if __name__ == "__main__":
    _main(sys.argv[1])
