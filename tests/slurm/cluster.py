"""A real Slurm of one node, of this user's own: its own ports, key, socket and folder.

`python -m tests.slurm.cluster FOLDER` keeps one up for trying things by hand, until Ctrl-C.
"""

import contextlib
import getpass
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")
SEARCHED = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/local/sbin"])

# linuxproc and task/none: no cgroups, which a container seldom lets one write. config_overrides: the
# node is believed to have the CPUs named here, so that 100 tasks fit on two cores.
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=100000
MinJobAge=600
MpiDefault=none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=128 RealMemory=200000 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing_programs() -> list[str]:
    """Programs of Slurm and munge that this machine lacks."""
    return [name for name in PROGRAMS if not shutil.which(name, path=SEARCHED)]


def free_port() -> int:
    """A TCP port nobody listens on now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Cluster:
    """munged, slurmctld and slurmd as children of this process; stopped by pid in `stop`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start all; returns once the node is idle."""
        host = platform.node().split(".")[0]
        for name in ("state", "spool"):
            (self.folder / name).mkdir(parents=True)
        facts = {"host": host, "user": getpass.getuser(), "folder": self.folder}
        self.conf.write_text(CONF.format(ctld_port=free_port(), slurmd_port=free_port(), **facts))
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = {"key": "munge.key", "log": "munged.log", "pid": "munged.pid", "seed": "munged.seed"}
        own = [f"--{kind}-file={self.folder / name}" for kind, name in files.items()]
        # --force: a folder under /tmp has parents that anyone may write to
        self._spawn("munged", "--foreground", "--force", f"--socket={self.folder / 'munge.socket'}", *own)
        self._until(lambda: (self.folder / "munge.socket").exists(), "munged made no socket")
        self._spawn("slurmctld", "-D", "-f", str(self.conf))
        self._spawn("slurmd", "-D", "-f", str(self.conf))
        self._until(lambda: "idle" in self._sinfo(), "the node did not become idle")

    def submit(self, *arguments: str, cwd: Path, env: Mapping[str, str]) -> str:
        """sbatch; the job's number."""
        command = ["sbatch", "--parsable", *arguments]
        env = {**env, "SLURM_CONF": str(self.conf)}
        done = subprocess.run(
            command, cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip().split(";")[0]

    def states(self, job: str) -> list[tuple[str, int]]:
        """(state, exit code) of a job, or of each task of an array, in order."""
        text = self._ask("scontrol", "--oneliner", "show", "job", job).stdout
        tasks = []
        for line in text.splitlines():
            facts = dict(word.split("=", 1) for word in line.split() if "=" in word)
            code, number = facts["ExitCode"].split(":")
            index = int(facts.get("ArrayTaskId", "0")) if facts.get("ArrayTaskId", "0").isdigit() else -1
            tasks.append((index, facts["JobState"], int(code) or -int(number)))
        return [(state, code) for _, state, code in sorted(tasks)]

    def signal_batch(self, job: str, name: str) -> None:
        """What `#SBATCH --signal=B:NAME@…` sends near the end of the time."""
        self._ask("scancel", "--batch", f"--signal={name}", job)

    def cancel(self, job: str) -> None:
        """scancel, at once."""
        self._ask("scancel", "--signal=KILL", "--full", job)
        self._ask("scancel", job)

    def wait(self, job: str, seconds: float) -> list[tuple[str, int]]:
        """Until the job, or all of an array, has ended; its states. Too late: cancelled, AssertionError."""
        end = time.monotonic() + seconds
        going = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED")
        while True:
            states = self.states(job)
            if not any(state in going for state, _ in states):
                return states
            if time.monotonic() > end:
                self.cancel(job)
                raise AssertionError(f"job {job} after {seconds} s: {states}")
            time.sleep(0.2)

    def _sinfo(self) -> str:
        return self._ask("sinfo", "--noheader", "--format=%T").stdout

    def _ask(self, *command: str) -> "subprocess.CompletedProcess[str]":
        env = {**os.environ, "SLURM_CONF": str(self.conf)}
        return subprocess.run(command, capture_output=True, text=True, env=env, timeout=30, check=False)

    def _spawn(self, program: str, *arguments: str) -> None:
        path = shutil.which(program, path=SEARCHED)
        assert path, f"no {program}"
        env = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
        with (self.folder / f"{program}.out").open("wb") as out:
            daemon = subprocess.Popen(
                [path, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, cwd=self.folder
            )
        self._daemons.append(daemon)

    def _until(self, condition: "object", problem: str, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not condition():  # type: ignore[operator]
            dead = [d.args for d in self._daemons if d.poll() is not None]
            if dead or time.monotonic() > end:
                raise RuntimeError(f"{problem}; ended: {dead}\n{self.logs()}")
            time.sleep(0.1)

    def logs(self) -> str:
        """The daemons' last lines."""
        texts = []
        for path in sorted([*self.folder.glob("*.log"), *self.folder.glob("*.out")]):
            last = path.read_text(errors="replace").splitlines()[-15:]
            texts.append("\n".join([f"--- {path.name}", *last]))
        return "\n".join(texts)

    def stop(self) -> None:
        """Cancel what runs, then end the daemons."""
        self._ask("scancel", "--user", getpass.getuser())
        end = time.monotonic() + 20
        while self._ask("squeue", "--noheader").stdout.strip() and time.monotonic() < end:
            time.sleep(0.2)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            if daemon.poll() is None:
                daemon.kill()
                daemon.wait()


if __name__ == "__main__":
    cluster = Cluster(Path(sys.argv[1]).resolve())
    cluster.start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    print(f"export SLURM_CONF={cluster.conf}", flush=True)
    signal.sigwait({signal.SIGINT, signal.SIGTERM})
    cluster.stop()
