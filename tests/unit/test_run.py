"""A run in this process: the run directory, resuming, the library."""

import dataclasses
import errno
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedproc_mpi import Config, Stopped, TrainingFailed, UserError, load_model, run
from fedproc_mpi.__main__ import main
from fedproc_mpi.algorithms.base import Task, Update
from fedproc_mpi.algorithms.fedproc import FedProc
from fedproc_mpi.comm.launch import own_cores
from fedproc_mpi.config import read_json
from fedproc_mpi.errors import reason
from fedproc_mpi.federated import Result
from fedproc_mpi.identity import own_files
from fedproc_mpi.learn.flat import Entry, State
from fedproc_mpi.learn.models import build_model
from fedproc_mpi.shards import Shards
from fedproc_mpi.store import checkpoint, metrics, rundir
from fedproc_mpi.store.init import load_init
from fedproc_mpi.store.lock import RunLock
from fedproc_mpi.store.rundir import differences
from tests.support.cases import TIMES
from tests.support.files import make_shards, with_one_bit_changed

QUICK = {"rounds": 4, "local_epochs": 1, "batch_size": 32}


def run_once(shards: Path, run_dir: Path, **options: object) -> Result:
    result = run(Config.create(**{**QUICK, **options}, shards=str(shards), run_dir=str(run_dir)))
    assert result is not None
    return result


@pytest.fixture(scope="module")
def finished(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run_once(shards, tmp_path_factory.mktemp("runs") / "a")


def lines_of(run_dir: Path) -> list[dict]:
    return [json.loads(text) for text in (run_dir / "metrics.jsonl").read_text().splitlines()]


class Killed(BaseException):
    """Stands for kill -9: nothing catches it, nothing is cleaned up."""


def killed_at(monkeypatch: pytest.MonkeyPatch, where: str, call: int) -> None:
    """The call-th time that a save comes to this place the process ends there."""
    module, name = {
        "before the checkpoint": (checkpoint, "save_tensors"),
        "between its two renames": (checkpoint.os, "replace"),
        "before the line": (metrics, "append_line"),
    }[where]
    real, calls = getattr(module, name), []

    def function(*arguments: Path) -> None:
        if where != "between its two renames" or arguments[1].name == "checkpoint.pt":
            calls.append(1)
            if len(calls) == call:
                raise Killed
        real(*arguments)

    monkeypatch.setattr(module, name, function)


def test_run_directory(finished: Result) -> None:
    names = {path.name for path in finished.run_dir.iterdir()}
    assert names == {
        *("config.json", "metrics.jsonl", "summary.json", "model.pt", "checkpoint.pt", "checkpoint.prev.pt"),
    }
    lines = lines_of(finished.run_dir)
    assert [line["round"] for line in lines] == [0, 1, 2, 3]
    assert [line["alpha"] for line in lines] == [1.0, 0.75, 0.5, 0.25]
    phases = {
        "broadcast",
        "train",
        "client_state",
        "prototypes",
        "reduce",
        "server",
        "evaluate",
        "checkpoint",
    }
    assert all(set(line["seconds"]) == phases for line in lines)
    config = json.loads((finished.run_dir / "config.json").read_text())
    assert config["environment"]["torch"] == torch.__version__
    assert len(config["data"]["fingerprint"]) == 64


def test_model_sha256_is_what_it_says(finished: Result) -> None:
    """Worked out here from model.pt alone: name, dtype, shape, little-endian bytes, then prototypes."""
    import hashlib

    saved = torch.load(finished.run_dir / "model.pt", weights_only=True)
    digest = hashlib.sha256()
    for name, tensor in [*saved["state_dict"].items(), ("prototypes", saved["prototypes"])]:
        digest.update(f"{name}|float32|{list(tensor.shape)}|".encode())
        digest.update(tensor.numpy().astype("<f4").tobytes())
    assert digest.hexdigest() == finished.summary["model_sha256"]


def test_same_config_same_hash_other_seed_other_hash(finished: Result, shards: Path, tmp_path: Path) -> None:
    again = run_once(shards, tmp_path / "b", eval_every=3, checkpoint_every=2, data_cache_mb=0)
    assert again.summary["model_sha256"] == finished.summary["model_sha256"]
    assert [line["accuracy"] is None for line in again.metrics] == [True, True, False, False]
    other = run_once(shards, tmp_path / "c", seed=1)
    assert other.summary["model_sha256"] != finished.summary["model_sha256"]


@pytest.mark.parametrize("where", ["before the checkpoint", "between its two renames", "before the line"])
@pytest.mark.parametrize("call", [1, 3])
def test_killed_and_resumed_gives_the_same_hash(
    finished: Result, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, call: int
) -> None:
    with monkeypatch.context() as patch:
        killed_at(patch, where, call)
        with pytest.raises(Killed):
            run_once(shards, tmp_path / "run")
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "accu')  # a line cut short by the kill
    resumed = run_once(shards, tmp_path / "run", resume=True)
    assert resumed.summary["model_sha256"] == finished.summary["model_sha256"]
    lines = lines_of(tmp_path / "run")
    assert [line["round"] for line in lines] == [0, 1, 2, 3]
    assert [line["accuracy"] for line in lines] == [line["accuracy"] for line in finished.metrics]


@pytest.mark.parametrize("damage", [lambda path: b"broken", with_one_bit_changed])
def test_resume_from_the_previous_checkpoint_when_the_newest_is_damaged(
    finished: Result, shards: Path, tmp_path: Path, damage: Callable[[Path], bytes]
) -> None:
    run_dir = Path(shutil.copytree(finished.run_dir, tmp_path / "run"))
    (run_dir / "summary.json").unlink()
    (run_dir / "checkpoint.pt").write_bytes(damage(run_dir / "checkpoint.pt"))
    resumed = run_once(shards, run_dir, resume=True)
    assert resumed.summary["resumed_at_round"] == 3
    assert resumed.summary["model_sha256"] == finished.summary["model_sha256"]
    (run_dir / "summary.json").unlink()
    for name in ("checkpoint.pt", "checkpoint.prev.pt"):
        (run_dir / name).write_bytes(b"broken")
    with pytest.raises(UserError, match="no checkpoint is whole"):
        run_once(shards, run_dir, resume=True)


def test_a_run_directory_without_its_config_is_no_new_one(
    finished: Result, shards: Path, tmp_path: Path
) -> None:
    """Else another config's checkpoint, or summary, would be taken for this run's."""
    for kept in ("summary.json", "checkpoint.pt", "checkpoint.prev.pt", "metrics.jsonl"):
        run_dir = tmp_path / kept
        run_dir.mkdir()
        shutil.copy(finished.run_dir / kept, run_dir)
        for resume in (False, True):
            with pytest.raises(UserError, match=rf"holds {kept} of a run, but no config\.json"):
                run_once(shards, run_dir, seed=1, resume=resume)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"round": 3', b'"round\xff": 3')),
        lambda path: path.write_text("5\n{}\nnull\n"),
    ],
)
def test_lost_lines_of_metrics_are_made_again_from_the_checkpoint(
    finished: Result, shards: Path, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    run_dir = Path(shutil.copytree(finished.run_dir, tmp_path / "run"))
    (run_dir / "summary.json").unlink()
    damage(run_dir / "metrics.jsonl")
    resumed = run_once(shards, run_dir, resume=True)
    assert resumed.summary["resumed_at_round"] == 4
    for name in ("model_sha256", "final_accuracy", "best_accuracy"):
        assert resumed.summary[name] == finished.summary[name]
    for line, before in zip(lines_of(run_dir), finished.metrics, strict=True):
        assert {**line, **dict.fromkeys(TIMES)} == {**before, **dict.fromkeys(TIMES)}


def test_what_is_missing_of_a_finished_run_is_made_again(
    finished: Result, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = Path(shutil.copytree(finished.run_dir, tmp_path / "run"))
    (run_dir / "model.pt").unlink()
    assert load_model(run_dir).rounds == 4  # from the checkpoint
    assert "is not finished: this is the model after round 4 of 4" in capsys.readouterr().err
    assert run_once(shards, run_dir, resume=True).summary["model_sha256"] == finished.summary["model_sha256"]
    load_model(run_dir)
    (run_dir / "summary.json").write_text("{}")
    with pytest.raises(UserError, match="is no run's summary: delete it"):
        run_once(shards, run_dir, resume=True)
    (run_dir / "metrics.jsonl").unlink()
    (run_dir / "metrics.jsonl").mkdir()
    (run_dir / "summary.json").unlink()
    with pytest.raises(UserError, match=r"cannot save .*metrics\.jsonl: Is a directory"):
        run_once(shards, run_dir, resume=True)
    (run_dir / "config.json").write_text("{}")
    with pytest.raises(UserError, match="is no run's record"):
        load_model(run_dir)


def test_a_picture_that_cannot_be_made_is_no_crash(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run" / "accuracy.png").mkdir(parents=True)
    assert main(["--shards", str(shards), "--rounds", "1", "--run-dir", str(tmp_path / "run")]) == 0
    assert "picture         none: Is a directory" in capsys.readouterr().out


def test_a_full_disk_is_called_so() -> None:
    """torch tells of a count of bytes; the system's error is behind it."""
    error = RuntimeError("unexpected pos 704 vs 598")
    error.__context__ = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert reason(error) == "No space left on device"
    assert reason(ValueError("a\n b")) == "a b"


def test_config_json_tells_where_a_run_went_on_and_where_it_was_before(
    finished: Result, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = Path(shutil.copytree(finished.run_dir, tmp_path / "run"))
    first = json.loads((run_dir / "config.json").read_text())["environment"]
    for host in ("other", "other", "third"):
        (run_dir / "summary.json").unlink()
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        run_once(shards, run_dir, resume=True)
    now = json.loads((run_dir / "config.json").read_text())["environment"]
    assert now["placements"][0]["host"] == "third"
    assert now["earlier"][0] == first
    assert [e["placements"][0]["host"] for e in now["earlier"][1:]] == ["other"]
    assert run_once(shards, run_dir, resume=True).summary == read_json(run_dir / "summary.json")


def settings_of_torch() -> dict[str, object]:
    return {
        "threads": torch.get_num_threads(),
        "deterministic": torch.get_deterministic_debug_mode(),
        "benchmark": torch.backends.cudnn.benchmark,
        "matmul": torch.backends.cuda.matmul.allow_tf32,
        "convolutions": torch.backends.cudnn.allow_tf32,
        "environment": dict(os.environ),
        "signals": [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)],
    }


def test_a_run_gives_back_what_it_changed(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within it the promise holds, or is given up; the program around it goes on as it was."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before, within = settings_of_torch(), dict[str, object]()
    real = FedProc.client_update

    def client_update(self: FedProc, task: Task) -> Update:
        within.update(settings_of_torch())
        return real(self, task)

    monkeypatch.setattr(FedProc, "client_update", client_update)
    kept = run_once(shards, tmp_path / "kept", rounds=1, threads=2, precision="tf32")
    assert kept.summary["deterministic"] is True
    assert (within["deterministic"], within["benchmark"], within["threads"]) == (2, False, 2)
    assert (within["matmul"], within["convolutions"]) == (True, True)
    assert settings_of_torch() == before
    quick = run_once(shards, tmp_path / "quick", deterministic=False, rounds=1)
    assert quick.summary["deterministic"] is False
    assert (within["deterministic"], within["benchmark"], within["threads"]) == (0, True, 1)
    assert settings_of_torch() == before
    with pytest.raises(TrainingFailed):
        run_once(shards, tmp_path / "diverging", lr=1e4, threads=2)
    assert settings_of_torch() == before
    with pytest.raises(UserError):
        run_once(shards, tmp_path / "wrong", threads=2, model="nonsense")
    assert settings_of_torch() == before


def test_a_run_closes_its_shards(shards: Path, tmp_path: Path) -> None:
    path = shutil.copy(shards, tmp_path / "mine.h5")
    run_once(path, tmp_path / "run", rounds=1)
    opened = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.exists()]
    assert str(path) not in opened


def test_numpy_numbers_and_paths_are_taken(shards: Path, tmp_path: Path) -> None:
    plain = Config.create(rounds=2, lr=0.5, momentum=0.0, seed=3, temperature=0.5, deterministic=True)
    numbers = {"rounds": np.int64(2), "lr": np.float64(0.5), "momentum": np.float32(0), "seed": np.uint8(3)}
    given = Config.create(
        **numbers, temperature=np.float64(0.5), deterministic=np.bool_(True), shards=shards, run_dir=tmp_path
    )
    assert {**given.flat(), "shards": plain.shards, "run_dir": ""} == plain.flat()
    for name in ("rounds", "lr", "momentum", "seed", "deterministic"):
        assert type(getattr(given, name)) is type(getattr(plain, name))
    assert (given.shards, given.run_dir) == (str(shards), str(tmp_path))


def test_a_copy_of_the_shards_changes_nothing(finished: Result, shards: Path, tmp_path: Path) -> None:
    """The job scripts put one on a node's own disk; config.json keeps naming the file that stays."""
    copy = str(shutil.copy(shards, tmp_path / "copy.h5"))
    config = Config.create(**QUICK, shards="elsewhere.h5", shards_copy=copy, run_dir=str(tmp_path / "run"))
    result = run(config)
    assert result is not None
    assert result.summary["model_sha256"] == finished.summary["model_sha256"]
    kept = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (kept["shards"], kept["shards_copy"]) == ("elsewhere.h5", "")


def test_two_runs_that_start_together_get_a_directory_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda _: "now")
    assert len({rundir._new_directory(Config()) for _ in range(3)}) == 3


def test_initial_weights_that_are_not_finite(finished: Result, shards: Path, tmp_path: Path) -> None:
    saved = torch.load(finished.run_dir / "model.pt", weights_only=True)["state_dict"]
    name = next(name for name in saved if name.endswith("weight"))
    saved[name].view(-1)[0] = float("nan")
    torch.save(saved, tmp_path / "init.pt")
    with pytest.raises(UserError, match=rf"init\.pt: {name} holds values that are not finite"):
        run_once(shards, tmp_path / "run", init=str(tmp_path / "init.pt"))
    saved[name].fill_(1e20)  # a z beyond the range of the first prototypes
    torch.save(saved, tmp_path / "init.pt")
    with pytest.raises(TrainingFailed, match="before the first round: client"):
        run_once(shards, tmp_path / "run", init=str(tmp_path / "init.pt"))


def test_a_run_is_never_overwritten(finished: Result, shards: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in finished.run_dir.iterdir()}
    with pytest.raises(UserError, match="already holds a finished run"):
        run_once(shards, finished.run_dir)
    with pytest.raises(UserError, match=r"--lr was 0\.03, now 0\.5; --temperature was 1\.0, now 2\.0"):
        run_once(shards, finished.run_dir, resume=True, lr=0.5, temperature=2.0)
    # the device that `auto` found is recorded
    config = Config.create(**QUICK, lr=FedProc.default_lr, **FedProc().options())
    fingerprint = Shards(str(shards)).fingerprint
    assert differences(finished.run_dir, config, fingerprint) == ""
    told = differences(finished.run_dir, dataclasses.replace(config, device="cuda"), fingerprint)
    assert told == "--device was 'cpu', now 'cuda'"
    # and what a user's own files held
    own = tmp_path / "own.py"
    own.write_text("x = 1")
    saved = json.loads((finished.run_dir / "config.json").read_text())
    held = {**saved, "algorithm": str(own), "files": own_files(Config.create(algorithm=str(own)))}
    assert held["files"] == {str(own): hashlib.sha256(b"x = 1").hexdigest()}
    (tmp_path / "config.json").write_text(json.dumps(held))
    config = Config.create(**QUICK, algorithm=str(own), lr=FedProc.default_lr, **FedProc().options())
    assert differences(tmp_path, config, fingerprint) == ""
    own.write_text("x = 2")
    assert differences(tmp_path, config, fingerprint) == f"{own} has changed"
    # a finished run is not run again; execution fields may differ
    same = run_once(shards, finished.run_dir, resume=True, eval_every=2)
    assert same.summary == finished.summary
    assert before == {path.name: path.read_bytes() for path in finished.run_dir.iterdir()}
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write there"):
        run_once(shards, tmp_path / "file" / "run")


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_another_process_made_while_this_one_waited_for_the_lock_is_left_alone(
    finished: Result, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: bool
) -> None:
    run_dir, real, waited = tmp_path / "run", rundir.RunLock, []

    def after_waiting(path: Path) -> RunLock:
        if not waited:
            waited.append(shutil.copytree(finished.run_dir, path, dirs_exist_ok=True))
        return real(path)

    monkeypatch.setattr(rundir, "RunLock", after_waiting)
    if resume:
        assert run_once(shards, run_dir, resume=True).summary == finished.summary
    else:
        with pytest.raises(UserError, match="already holds a finished run"):
            run_once(shards, run_dir)
    assert waited
    assert not (run_dir / "lock").exists()
    for path in finished.run_dir.iterdir():
        assert (run_dir / path.name).read_bytes() == path.read_bytes()


def test_bare_resume_takes_the_newest_unfinished_run_of_the_config(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        killed_at(patch, "between its two renames", 3)
        with pytest.raises(Killed):
            run(Config.create(**QUICK, shards=str(shards)))
    (unfinished,) = Path("runs").iterdir()
    with pytest.raises(UserError, match="--seed was 0, now 5"):
        run(Config.create(**QUICK, shards=str(shards), seed=5, resume=True))
    result = run(Config.create(**QUICK, shards=str(shards), resume=True))
    assert result is not None
    assert result.run_dir == unfinished
    assert result.summary["resumed_at_round"] == 2


def test_resume_notices_other_shards(finished: Result, tmp_path: Path) -> None:
    from tests.support.files import make_shards

    with pytest.raises(UserError, match="the shards' contents changed"):
        run_once(make_shards(tmp_path, clients=4), finished.run_dir, resume=True)


def test_full_disk_while_saving_keeps_the_previous_checkpoint(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: Result
) -> None:
    real, calls = torch.save, []

    def save(value: object, file: object) -> None:
        calls.append(1)
        if len(calls) == 3:
            file.write(b"half")  # type: ignore[attr-defined]
            raise OSError(28, "No space left on device")
        real(value, file)

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(UserError, match=r"No space left on device; .*--resume goes on"):
        run_once(shards, tmp_path / "run")
    state = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    assert state["next_round"] == 2
    resumed = run_once(shards, tmp_path / "run", resume=True)
    assert resumed.summary["model_sha256"] == finished.summary["model_sha256"]


def test_a_signal_stops_after_the_round_and_can_be_resumed(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: Result
) -> None:
    real = FedProc.client_update

    def client_update(self: FedProc, task: Task) -> Update:
        signal.raise_signal(signal.SIGUSR1)
        return real(self, task)

    with monkeypatch.context() as patch:
        patch.setattr(FedProc, "client_update", client_update)
        with pytest.raises(Stopped, match="SIGUSR1 after round 1") as caught:
            run_once(shards, tmp_path / "run", checkpoint_every=100)
    assert caught.value.exit_code == 75
    resumed = run_once(shards, tmp_path / "run", resume=True)
    assert resumed.summary["model_sha256"] == finished.summary["model_sha256"]


def test_divergence_is_a_defined_outcome(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingFailed, match=r"round 1: client \d: (model|losses|prototypes)") as caught:
        run_once(shards, tmp_path / "run", lr=1e4)
    assert caught.value.exit_code == 3


def test_load_model_is_ready_to_predict(finished: Result, shards: Path, tmp_path: Path) -> None:
    model = load_model(finished.run_dir)
    assert not model.training
    with Shards(shards) as file:
        x_NHWC, y_N = file.test_set.read(0, len(file.test_set))
    x_NCHW = torch.from_numpy(x_NHWC).permute(0, 3, 1, 2)
    with torch.no_grad():
        accuracy = (model(x_NCHW).argmax(1).numpy() == y_N).mean()
        same = model(x_NCHW.float() / 255)
    assert accuracy == pytest.approx(finished.summary["final_accuracy"], abs=0.01)
    torch.testing.assert_close(same, model(x_NCHW).detach())
    assert model.prototypes_KD is not None
    assert model.prototypes_KD.shape == (10, 256)
    with pytest.raises(UserError, match=r"is no run directory: it has no config\.json"):
        load_model(tmp_path)


@torch.no_grad()
def test_what_a_model_takes_and_what_it_refuses(finished: Result, shards: Path) -> None:
    """Whatever it takes gives the same logits: no image is read on a wrong scale or with its axes swapped."""
    model = load_model(finished.run_dir)
    with Shards(shards) as file:
        x_NHWC, _ = file.test_set.read(0, 9)
    x_NCHW = torch.from_numpy(x_NHWC).permute(0, 3, 1, 2)
    right = model(x_NCHW)
    for same in (
        x_NHWC,
        x_NHWC[::-1][::-1],
        x_NHWC / 255,
        (x_NHWC / 255).astype(np.float16),
        x_NCHW.double() / 255,
    ):
        torch.testing.assert_close(
            model(same), right, atol=2e-2 if same.dtype == np.float16 else 1e-4, rtol=1e-3
        )
    for wrong, told in (
        (x_NCHW.float(), "float images must be in 0…1, not 0…255: divide by 255"),
        ((x_NCHW.float() / 255 - 0.3) / 0.3, "float images must be in 0…1, not -1"),
        (x_NCHW.float() * torch.nan, "float images must be in 0…1, not nan"),
        (x_NCHW.int(), "images are torch.int32: give uint8"),
        (x_NHWC > 99, "images are torch.bool: give uint8"),
        (x_NHWC.astype(np.uint16), "images are torch.uint16: give uint8"),
        (x_NCHW[0], "images are (1, 8, 8); this model takes (B, 1, 8, 8) or (B, 8, 8, 1)"),
        (x_NCHW[..., :7], "images are (9, 1, 8, 7); this model takes"),
        (x_NHWC.astype(object), "must be a tensor or an array of numbers"),
    ):
        with pytest.raises(UserError) as refused:
            model(wrong)
        assert told in str(refused.value)


def test_init_from_a_file(finished: Result, shards: Path, tmp_path: Path) -> None:
    started = run_once(shards, tmp_path / "a", init=str(finished.run_dir / "model.pt"), rounds=1)
    fresh = run_once(shards, tmp_path / "b", rounds=1)
    assert started.metrics[0]["loss"] < fresh.metrics[0]["loss"]
    (tmp_path / "bad.pt").write_text("no")
    with pytest.raises(UserError, match="cannot be loaded"):
        run_once(shards, tmp_path / "c", init=str(tmp_path / "bad.pt"))
    # One bit of the weights: torch.load does not look.
    changed = with_one_bit_changed(finished.run_dir / "model.pt")
    (tmp_path / "bad.pt").write_bytes(changed)
    with pytest.raises(UserError, match=r"cannot be loaded: .*has changed"):
        run_once(shards, tmp_path / "d", init=str(tmp_path / "bad.pt"))
    shutil.copytree(finished.run_dir, tmp_path / "e")
    (tmp_path / "e" / "model.pt").write_bytes(changed)
    with pytest.raises(UserError, match=r"model\.pt cannot be read .*has changed"):
        load_model(tmp_path / "e")


def test_the_encoder_of_a_torchvision_resnet_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of its trunk is taken, the stem where it fits; what is not is listed whole."""
    from torchvision.models import resnet18

    torch.manual_seed(3)
    saved = resnet18().state_dict()
    torch.save(saved, tmp_path / "resnet18.pth")
    for stem, drawn in (("imagenet", ()), ("cifar", ("conv1.weight",))):
        module = build_model("resnet18", (64, 64, 3), 5, False, 0, stem=stem)
        fresh = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        told = load_init(module, str(tmp_path / "resnet18.pth"), "encoder")
        for name, tensor in module.state_dict().items():
            part, _, rest = name.partition(".")
            given = part == "encoder" and rest not in drawn
            assert torch.equal(tensor, saved[rest] if given else fresh[name]), name
        assert f"{120 - len(drawn)} of the encoder's 120 tensors are taken" in told  # 122 less fc's two
        assert "not used of the file: fc.weight, fc.bias" in told
        assert ("conv1.weight (64×3×7×7 in the file, 64×3×3×3 here)" in told) == bool(drawn)
    with pytest.raises(UserError, match=r"does not fit this model: drawn: encoder\.conv1\.weight"):
        load_init(module, str(tmp_path / "resnet18.pth"), "all")
    small = build_model("small-cnn", (8, 8, 1), 5, False, 0)
    with pytest.raises(UserError, match="nothing of it fits the encoder"):
        load_init(small, str(tmp_path / "resnet18.pth"), "encoder")
    saved["layer1.0.conv1.weight"][0, 0, 0, 0] = torch.inf
    torch.save({"state_dict": {f"module.{k}": v for k, v in saved.items()}}, tmp_path / "wrapped.pth")
    with pytest.raises(UserError, match=r"layer1\.0\.conv1\.weight holds values that are not finite"):
        load_init(module, str(tmp_path / "wrapped.pth"), "encoder")


def test_tensorboard_shows_the_lines_and_the_partition(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_dir, options = tmp_path / "run", {"tensorboard": True, "checkpoint_every": 2}
    with monkeypatch.context() as patch:
        killed_at(patch, "before the line", 4)
        with pytest.raises(Killed):
            run_once(shards, run_dir, **options)
    finished = run_once(shards, run_dir, **options, resume=True)
    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    for key in ("accuracy", "loss", "alpha", "balanced_accuracy"):
        shown = {point.step: point.value for point in events.Scalars(key)}
        assert shown == pytest.approx({line["round"] + 1: line[key] for line in finished.metrics})
    by_client = [events.Scalars(f"client_accuracy/{k}")[-1].value for k in range(5)]
    assert by_client == pytest.approx(list(finished.summary["client_accuracy"].values()))
    assert events.Images("partition")[0].width == 900
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match="--tensorboard needs a package that is not here: pip install"):
        run_once(shards, tmp_path / "none", tensorboard=True)
    assert not (tmp_path / "none").exists()


def test_a_runs_own_encoder_is_taken(
    finished: Result, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model_pt = str(finished.run_dir / "model.pt")
    started = run_once(shards, tmp_path / "a", init=model_pt, init_part="encoder", rounds=1)
    assert "of the encoder's" in capsys.readouterr().out
    whole = run_once(shards, tmp_path / "b", init=model_pt, rounds=1)
    fresh = run_once(shards, tmp_path / "c", rounds=1)
    assert len({run.summary["model_sha256"] for run in (started, whole, fresh)}) == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sample_rate": 0.05}, "of 5 clients draws none; at least 0.2"),
        ({"model": "simpel-cnn"}, "did you mean simple-cnn"),
        ({"model": "simple-cnn"}, "too small for this model"),
        ({"model": "small-cnn", "norm": "group"}, "--norm group is for resnet18 and resnet50"),
        ({"model": "small-cnn", "stem": "imagenet"}, "--stem imagenet is for resnet18 and resnet50"),
        ({"algorithm": "scaffold", "optimizer": "adamw"}, "--optimizer adamw: scaffold is defined for sgd"),
        ({"patience": 2}, "--patience needs a validation set"),
        ({"model": "nothing:Here"}, "cannot import"),
        ({"model": "torch.nn:Flatten"}, "torch.nn:Flatten"),
        ({"algorithm": "fedprox_"}, "no such algorithm"),
        ({"temperatur": 1.0}, "did you mean --temperature"),
    ],
)
def test_wrong_input_leaves_nothing_behind(shards: Path, tmp_path: Path, options: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        run_once(shards, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_state_views_share_one_buffer() -> None:
    state = State(
        {"model": Entry((3,)), "seen": Entry((5,), torch.bool), "counters": Entry((2,), torch.int64)}
    )
    state["model"].fill_(1.5)
    state["counters"].fill_(-7)
    other = State(state.entries)
    other.buffer.copy_(state.buffer)
    assert other["model"].tolist() == [1.5] * 3
    assert other["counters"].tolist() == [-7, -7]


def test_a_resume_that_finds_nothing_says_so(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--shards", str(shards), "--rounds", "1", "--local-epochs", "1", "--resume"]
    assert main(flags) == 0
    assert "--resume: no unfinished run in runs/: starting anew" in capsys.readouterr().out
    assert main([*flags, "--run-dir", "mine"]) == 0
    assert "--resume: no run in mine: starting anew" in capsys.readouterr().out
    assert main([*flags, "--run-dir", "mine", "--rounds", "2"]) == 2
    told = capsys.readouterr().err
    assert "--rounds was 1, now 2; a run's length is part of its result: start a new run" in told


def test_a_record_of_a_newer_version(finished: Result, shards: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(finished.run_dir, tmp_path / "newer"))
    record = json.loads((run_dir / "config.json").read_text())
    (run_dir / "config.json").write_text(json.dumps({**record, "warp": 9}))
    with pytest.raises(UserError, match="warp is a setting of another version of fedproc_mpi"):
        run_once(shards, run_dir, resume=True)


def test_a_stop_in_the_last_round_is_no_stop(
    finished: Result, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All was trained: the model is written."""
    real = FedProc.client_update

    def client_update(self: FedProc, task: Task) -> Update:
        if task.round.t == task.round.total - 1:
            signal.raise_signal(signal.SIGTERM)
        return real(self, task)

    monkeypatch.setattr(FedProc, "client_update", client_update)
    result = run_once(shards, tmp_path / "run")
    assert result.summary["model_sha256"] == finished.summary["model_sha256"]


def test_what_a_run_says_at_its_start(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_once(shards, tmp_path / "run", rounds=1, threads=(threads := len(own_cores()) + 1))
    first, second, *more = capsys.readouterr().out.splitlines()
    assert first == f"fedproc_mpi: fedproc on {shards}, 1 rank over serial: verifying the shards …"
    params = sum(p.numel() for p in load_model(tmp_path / "run").model.parameters())
    assert second.endswith(
        f"fedproc, 1 rank(s) over serial, 5 clients, model small-cnn ({params:,} parameters)"
    )
    assert f"fedproc_mpi: run directory {tmp_path / 'run'}; if it is stopped, --resume goes on" in more
    assert any(f"--threads {threads} on " in line for line in more)


@pytest.mark.parametrize("flag", ["--shards", "--run-dir", "--init", "--algorithm", "--preset"])
def test_names_that_no_file_system_takes(
    shards: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flag: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    ending = {"--algorithm": ".py", "--preset": ".toml"}.get(flag, "")
    assert main(["--shards", str(shards), flag, 300 * "x" + ending]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "xxx" in told


def test_a_long_name_of_shards_names_a_run_all_the_same(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = shutil.copy(shards, tmp_path / f"{240 * 's'}.h5")
    assert main(["--shards", str(path), "--rounds", "1", "--local-epochs", "1"]) == 0


def test_a_model_from_a_users_file(shards: Path, tmp_path: Path) -> None:
    """It is part of what the result depends on, as an algorithm's file is."""
    path = tmp_path / "mine.py"
    path.write_text(
        "from torch import nn\n"
        "class Tiny(nn.Module):\n"
        "    def __init__(self, image_shape, num_classes):\n"
        "        super().__init__()\n"
        "        height, width, channels = image_shape\n"
        "        self.z = nn.Linear(height * width * channels, 7)\n"
        "        self.out = nn.Linear(7, num_classes)\n"
        "    def forward(self, x):\n"
        "        z = self.z(x.flatten(1))\n"
        "        return z, self.out(z)\n"
    )
    name = f"{path}:Tiny"
    result = run_once(shards, tmp_path / "run", model=name, rounds=1)
    assert load_model(result.run_dir).embed(np.zeros((2, 8, 8, 1), np.uint8)).shape == (2, 7)
    kept = json.loads((tmp_path / "run" / "config.json").read_text())["files"]
    assert kept == {name: hashlib.sha256(path.read_bytes()).hexdigest()}
    for wrong, told in ((f"{path}:Small", "cannot import it"), (f"{tmp_path}/no.py:Tiny", "no such file")):
        with pytest.raises(UserError, match=told):
            run_once(shards, tmp_path / "wrong", model=wrong)


def test_shards_in_forked_workers(shards: Path) -> None:
    """As a DataLoader or a pool of a user's own reads them."""
    with Shards(shards) as file:
        whole = [file.client(i)[0].tobytes() for i in range(5)]
        pool = multiprocessing.get_context("fork").Pool(2)
        with pool:
            assert pool.map(_bytes_of_client, [(str(shards), i) for i in range(5)]) == whole


def _bytes_of_client(work: tuple[str, int]) -> bytes:
    with Shards(work[0]) as file:
        return file.client(work[1])[0].tobytes()


def test_scaffold_trains_at_its_defaults(shards: Path, tmp_path: Path) -> None:
    result = run(Config.create(algorithm="scaffold", shards=str(shards), run_dir=str(tmp_path / "run")))
    assert result is not None
    assert result.summary["final_accuracy"] > 0.85
    assert json.loads((tmp_path / "run" / "config.json").read_text())["lr"] == 0.01


def test_two_runs_at_once_in_one_process(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch has one generator for both: the second is refused, the first is not disturbed."""
    real, refused = FedProc.client_update, list[str]()

    def client_update(self: FedProc, task: Task) -> Update:
        if not refused:
            with pytest.raises(UserError) as told:
                run_once(shards, tmp_path / "second")
            refused.append(str(told.value))
        return real(self, task)

    monkeypatch.setattr(FedProc, "client_update", client_update)
    assert run_once(shards, tmp_path / "first").summary["final_accuracy"] > 0.1
    assert "another run is under way in this process" in refused[0]


def test_a_copy_that_is_none(shards: Path, tmp_path: Path) -> None:
    other = make_shards(tmp_path, seed=9)
    with pytest.raises(UserError, match="is no copy of"):
        run_once(shards, tmp_path / "run", shards_copy=str(other))


def test_directories_that_are_no_run(shards: Path, tmp_path: Path) -> None:
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    with pytest.raises(UserError, match="is a link that leads nowhere"):
        run_once(shards, tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    with pytest.raises(UserError, match="is no run's record"):
        run_once(shards, tmp_path / "empty", resume=True)


def test_a_run_directory_that_another_process_writes(shards: Path, tmp_path: Path) -> None:
    """Told as such, and not as one to resume."""
    unfinished = tmp_path / "run"
    unfinished.mkdir()
    (unfinished / "config.json").write_text("{}")
    lock = RunLock(unfinished)
    with pytest.raises(UserError, match=rf"is being written by process {os.getpid()} on "):
        run_once(shards, unfinished)
    lock.release()


def test_a_run_directory_that_is_deleted_under_the_run(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FedProc.client_update

    def client_update(self: FedProc, task: Task) -> Update:
        if task.round.t == 2:
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
        return real(self, task)

    monkeypatch.setattr(FedProc, "client_update", client_update)
    with pytest.raises(UserError, match=r"run is gone, and what was saved there"):
        run_once(shards, tmp_path / "run")
