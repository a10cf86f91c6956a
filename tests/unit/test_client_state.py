"""What clients keep: files and versions, a damaged checkpoint, a client that diverges; evaluation."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from fedproc_mpi import Config, TrainingFailed, UserError, load_model, run
from fedproc_mpi.__main__ import main
from fedproc_mpi.learn.evaluation import Counts, Sizes, accuracies, add_counts, worst_decile
from fedproc_mpi.shards import Shards
from fedproc_mpi.store import checkpoint
from fedproc_mpi.store.checkpoint import versions_of
from fedproc_mpi.store.clients import NONE, ClientFiles, Kept, client_file, verify_clients
from fedproc_mpi.store.files import CHECKPOINT, PREVIOUS
from tests.support.cases import SMALL, poisoned
from tests.support.files import with_one_bit_changed

CPU = torch.device("cpu")


def states_in(run_dir: Path, cache_bytes: int = 1000, versions: Sequence[int] = (NONE,) * 3) -> ClientFiles:
    return ClientFiles(run_dir, versions, CPU, cache_bytes, lambda k: {"c": torch.tensor([float(-k)])})


def numbered(value: float) -> Kept:
    return {"c": torch.full((10,), float(value))}


def kept_versions(run_dir: Path) -> list[list[int]]:
    return [versions_of(run_dir / name) for name in (CHECKPOINT, PREVIOUS)]


def files_in(run_dir: Path) -> set[str]:
    return {path.name for path in (run_dir / "clients").glob("*")}


def test_a_state_counts_from_advance_on_and_any_rank_reads_it(tmp_path: Path) -> None:
    states, other = states_in(tmp_path), states_in(tmp_path)
    assert states.load(2)["c"].tolist() == [-2.0]  # kept nothing yet
    changing = numbered(1)
    states.save(2, 0, changing)
    changing["c"].fill_(9)  # what was saved is a copy
    assert states.load(2)["c"].tolist() == [-2.0]  # the round is not over
    for rank in (states, other):
        rank.advance([2], 0)
        assert rank.load(2)["c"].tolist() == [1.0] * 10
    assert files_in(tmp_path) == {"client00002_round00000.pt"}


def test_the_cache_is_bounded_and_never_stale(tmp_path: Path) -> None:
    states = states_in(tmp_path, cache_bytes=80)  # two states of 10 float32
    for k in range(3):
        states.save(k, 0, numbered(k))
    states.advance(range(3), 0)
    assert sorted(states._cache) == [1, 2]
    assert states.load(0)["c"][0] == 0  # from its file; the one used longest ago goes
    assert sorted(states._cache) == [0, 2]
    states_in(tmp_path, 1000).save(0, 1, numbered(7))  # another rank trains client 0
    states.advance([0], 1)
    assert states.load(0)["c"][0] == 7


def test_files_live_until_no_kept_checkpoint_names_them(tmp_path: Path) -> None:
    states = states_in(tmp_path)
    kept: list[list[int]] = []
    for t in range(6):
        states.save(0, t, numbered(t))
        states.advance([0], t)
        if t % 2:  # a checkpoint every second round, two are kept
            kept = [list(states.versions), *kept][:2]
        states.collect_garbage(kept)
    assert files_in(tmp_path) == {"client00000_round00003.pt", "client00000_round00005.pt"}
    # A kill: files of rounds 6 and 7 that no checkpoint names are ignored, and deleted on resuming.
    states.save(0, 6, numbered(6))
    states.save(1, 7, numbered(7))
    resumed = states_in(tmp_path, versions=kept[0])
    resumed.scan()
    resumed.collect_garbage(kept)
    assert files_in(tmp_path) == {"client00000_round00003.pt", "client00000_round00005.pt"}
    assert resumed.load(0)["c"][0] == 5


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    states = states_in(tmp_path, cache_bytes=0)
    states.save(1, 0, numbered(1))
    states.advance([1], 0)
    path = client_file(tmp_path, 1, 0)
    whole = path.read_bytes()
    for damaged in (whole[:100], with_one_bit_changed(path)):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"client00001_round00000.pt: client 1's state cannot be read"):
            states.load(1)


@pytest.mark.parametrize("algorithm", ["scaffold", "moon", "solo", "fedproto"])
def test_goes_on_from_what_is_whole(shards: Path, tmp_path: Path, algorithm: str) -> None:
    """As if killed after the last round; then with a damaged checkpoint; then with a damaged client file."""
    more = {"checkpoint_every": 1, "shards": str(shards), "run_dir": str(tmp_path), "resume": True}
    config = Config.create(**{**SMALL, "algorithm": algorithm, "sample_rate": 0.4, **more})
    straight = run(config)
    assert straight is not None
    newest, previous = kept_versions(tmp_path)
    assert -1 in newest  # a client that was never drawn; where models are personal its first model counts

    def again(resumed_at: int) -> None:
        (tmp_path / "summary.json").unlink()
        result = run(config)
        assert result is not None
        assert result.summary["model_sha256"] == straight.summary["model_sha256"]
        assert result.summary["resumed_at_round"] == resumed_at
        rounds = [torch.load(tmp_path / name)["next_round"] for name in (CHECKPOINT, PREVIOUS)]
        assert rounds == [3, 2]  # a damaged checkpoint has not pushed the good one out

    again(3)
    (tmp_path / CHECKPOINT).write_bytes(b"broken")
    again(2)
    trained = next(k for k in range(5) if newest[k] != previous[k])
    path = client_file(tmp_path, trained, newest[trained])
    path.write_bytes(with_one_bit_changed(path))
    again(2)
    path.unlink()
    again(2)
    # What cannot be read just now is no reason to go back, and to delete what is newer.
    path.unlink()
    path.mkdir()
    (tmp_path / "summary.json").unlink()
    with pytest.raises(UserError, match=rf"{path.name}: client .* Is a directory; try again, or move that"):
        run(config)
    assert torch.load(tmp_path / CHECKPOINT)["next_round"] == 3
    path.rmdir()
    (tmp_path / "summary.json").touch()
    again(2)
    both = next(k for k in range(5) if newest[k] == previous[k] != -1)
    client_file(tmp_path, both, newest[both]).unlink()
    (tmp_path / "summary.json").unlink()
    with pytest.raises(UserError, match=rf"no checkpoint is whole .*client {both}'s state cannot be read"):
        run(config)


@pytest.mark.parametrize("bit", range(8))
def test_no_changed_bit_of_a_files_end_stops_a_resume(tmp_path: Path, bit: int) -> None:
    """Python's zipfile takes some damage of the archive's directory that torch's reader does not, and for
    some it seeks to before the file's start: all of it is damage, or harmless."""
    states = states_in(tmp_path)
    states.save(0, 0, numbered(1))
    path = client_file(tmp_path, 0, 0)
    whole = path.read_bytes()
    for i in range(len(whole) - 120, len(whole)):
        damaged = bytearray(whole)
        damaged[i] ^= 1 << bit
        path.write_bytes(damaged)
        try:
            verify_clients(tmp_path, [0])
        except UserError as error:
            checkpoint.raise_unless_damaged(path, error)
            continue
        assert torch.equal(torch.load(path)["c"], torch.full((10,), 1.0))


def test_a_run_directory_that_a_rank_does_not_see_is_told(tmp_path: Path) -> None:
    states = states_in(tmp_path / "only on rank 0's host")
    with pytest.raises(UserError, match="must be on a file system that all ranks see"):
        states.save(0, 0, numbered(1))


def test_memory_is_bounded_with_1000_clients(tmp_path: Path) -> None:
    states = ClientFiles(tmp_path, [NONE] * 1000, CPU, 400, lambda k: {})
    for t in range(2):
        for k in range(t, 1000, 7):
            states.save(k, t, numbered(k))
        states.advance(range(t, 1000, 7), t)
        states.collect_garbage([])
    assert len(states._cache) == 10
    assert [states.load(k)["c"][0] for k in range(0, 1000, 7)] == list(range(0, 1000, 7))
    assert states.load(2) == {}
    assert len(states._cache) == 10


def test_a_diverged_client_stops_the_run(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(poisoned(shards, tmp_path, "3,1", "stop")) == TrainingFailed.exit_code == 3
    told = capsys.readouterr().err
    assert "round 2: client " in told
    assert "classifier.bias reached nan" in told
    assert "--resume --on-diverged exclude" in told
    # The remedy gives what exclude would have given from the start, and is part of the record.
    assert main([*poisoned(shards, tmp_path, "3,1", "exclude"), "--resume"]) == 0
    assert main(poisoned(shards, tmp_path / "other", "3,1", "exclude")) == 0
    summaries = [json.loads((d / "summary.json").read_text()) for d in (tmp_path, tmp_path / "other")]
    assert summaries[0]["resumed_at_round"] == 1
    assert summaries[0]["model_sha256"] == summaries[1]["model_sha256"]
    assert json.loads((tmp_path / "config.json").read_text())["on_diverged"] == "exclude"
    capsys.readouterr()
    assert main([*poisoned(shards, tmp_path, "3,1", "stop"), "--resume"]) == 2
    assert "--on-diverged was 'exclude', now 'stop'" in capsys.readouterr().err


def test_a_diverged_client_is_left_out_and_keeps_its_old_state(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(poisoned(shards, tmp_path, "1", "exclude")) == 0
    lines = [json.loads(text) for text in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [[k for k, _ in line.get("excluded", [])] for line in lines] == [[], [1], []]
    assert "classifier.bias" in lines[1]["excluded"][0][1]
    # checkpoints of rounds 2 and 3 are kept: after round 1 client 1's state was still that of round 0
    newest, previous = kept_versions(tmp_path)
    assert newest == [2, 2, 2, 2, 2]
    assert previous == [1, 0, 1, 1, 1]
    assert client_file(tmp_path, 1, 0).exists()
    assert main(poisoned(shards, tmp_path / "all", "0,1,2,3,4", "exclude")) == 3
    assert "every client of the cohort diverged" in capsys.readouterr().err


def test_accuracies_from_counts() -> None:
    # Two ranks counted 30 + 20 of 100 test samples, of three classes with 60, 40 and 0; clients have 10, 20
    # and 0 own rows.
    ranks: list[Counts] = [
        {
            "head": {"all": {-1: [20, 10, 0]}, "own": {0: [4], 1: [6]}},
            "prototype": {"all": {-1: [5, 0, 0]}, "own": {}},
        },
        {
            "head": {"all": {-1: [10, 10, 0]}, "own": {1: [12]}},
            "prototype": {"all": {-1: [0, 5, 0]}, "own": {0: [10]}},
        },
    ]
    sizes = Sizes([60, 40, 0], [10, 20, 0], ["East", "West", "North"])
    found = accuracies(add_counts(ranks), sizes)
    # clients: 4/10 and 18/20; mean 0.65, std 0.25; by prototype 1 and 0
    assert found.pop("client_accuracy") == {"East": 0.4, "West": 0.9}
    assert found.pop("class_recall") == [0.5, 0.5, None]  # 30 of 60, 20 of 40
    assert found == pytest.approx(
        {
            "accuracy": 0.5,
            "balanced_accuracy": 0.5,
            "client_accuracy_mean": 0.65,
            "client_accuracy_std": 0.25,
            "client_accuracy_worst_decile": 0.4,
            "prototype_accuracy": 0.1,
            "client_prototype_accuracy_mean": 0.5,
            "client_prototype_accuracy_std": 0.5,
            "client_prototype_accuracy_worst_decile": 0.0,
        }
    )
    counts: Counts = {"head": {"all": {0: [30, 10, 0], 2: [60, 0, 0]}, "own": {0: [5], 2: [0]}}}
    personal = accuracies(counts, sizes)
    assert personal.pop("client_accuracy") == {"East": 0.5}
    assert personal.pop("class_recall") == [0.75, 0.125, None]  # (30/60 + 60/60)/2, (10/40 + 0)/2
    assert personal == pytest.approx(
        {
            "accuracy": 0.5,
            "accuracy_std": 0.1,
            "balanced_accuracy": 0.4375,
            "clients_evaluated": 2,
            "client_accuracy_mean": 0.5,
            "client_accuracy_std": 0.0,
            "client_accuracy_worst_decile": 0.5,
        }
    )
    # Where only the clients' own rows were counted: 1/10 and 10/20
    own = accuracies({"head": {"own": {0: [1], 1: [10]}}}, sizes, "val_")
    assert own.pop("client_val_accuracy") == {"East": 0.1, "West": 0.5}
    assert own == pytest.approx(
        {
            "val_accuracy": 0.3,
            "val_accuracy_std": 0.2,
            "val_clients_evaluated": 2,
            "client_val_accuracy_mean": 0.3,
            "client_val_accuracy_std": 0.2,
            "client_val_accuracy_worst_decile": 0.1,
        }
    )


def test_worst_decile_is_the_mean_of_the_lowest_tenth() -> None:
    assert worst_decile([0.5, 0.2, 0.9]) == 0.2
    assert worst_decile([i / 20 for i in range(20)]) == pytest.approx(0.025)  # 0 and 0.05
    assert worst_decile([0.0, 0.1, 0.2, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]) == pytest.approx(0.05)


def predict(run_dir: Path, shards: Shards, client: int | None = None) -> np.ndarray:
    images, _ = shards.test_set.read(0, len(shards.test_set))
    with torch.no_grad():
        logits = load_model(run_dir, client)(torch.from_numpy(images).permute(0, 3, 1, 2))
    return logits.argmax(1).numpy()


def by_prototype(run_dir: Path, shards: Shards, distance: str, client: int | None = None) -> np.ndarray:
    """Classes by the nearest prototype, in numpy."""
    images, _ = shards.test_set.read(0, len(shards.test_set))
    model = load_model(run_dir, client)
    assert model.prototypes_KD is not None
    proto_KD = model.prototypes_KD.numpy()
    with torch.no_grad():
        z_ND = model.embed(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()
    if distance == "euclid":
        return np.linalg.norm(z_ND[:, None] - proto_KD, axis=2).argmin(1)
    lengths_NK = np.linalg.norm(z_ND, axis=1)[:, None] * np.linalg.norm(proto_KD, axis=1)
    return (z_ND @ proto_KD.T / lengths_NK).argmax(1)


def test_accuracies_by_prototype_agree_with_the_loaded_models(shards: Path, tmp_path: Path) -> None:
    small = {**SMALL, "shards": str(shards), "sample_rate": 1.0, "local_epochs": 3}
    with Shards(shards) as file:
        _, labels = file.test_set.read(0, len(file.test_set))
        rows = [file.test_set.rows(k) for k in range(5)]
        for name, distance, clients in (("fedproc", "cosine", [None]), ("fedproto", "euclid", range(5))):
            result = run(Config.create(algorithm=name, run_dir=str(tmp_path / name), **small))
            assert result is not None
            right_m = [by_prototype(tmp_path / name, file, distance, k) == labels for k in clients]
            own = [right_m[min(k, len(right_m) - 1)][rows[k]].mean() for k in range(5)]
            assert result.summary["prototype_accuracy"] == pytest.approx(np.mean(right_m), abs=0.003)
            assert result.summary["client_prototype_accuracy_mean"] == pytest.approx(np.mean(own), abs=0.003)
            assert result.summary["prototype_accuracy"] > 0.3


def test_both_views_agree_with_the_loaded_models(shards: Path, tmp_path: Path) -> None:
    more = {"shards": str(shards), "rounds": 8, "eval_every": 3, "local_epochs": 3}
    small = {**SMALL, **more}
    with Shards(shards) as file:
        _, labels = file.test_set.read(0, len(file.test_set))
        rows = [file.test_set.rows(k) for k in range(5)]
        run(Config.create(algorithm="fedproc", run_dir=str(tmp_path / "one"), **small))
        summary = json.loads((tmp_path / "one" / "summary.json").read_text())
        right = predict(tmp_path / "one", file) == labels
        own = [right[own_rows].mean() for own_rows in rows]
        assert summary["final_accuracy"] == pytest.approx(right.mean(), abs=0.003)
        assert summary["client_accuracy_mean"] == pytest.approx(np.mean(own), abs=0.003)
        assert summary["client_accuracy_std"] == pytest.approx(np.std(own), abs=0.01)
        assert summary["client_accuracy_worst_decile"] == pytest.approx(min(own), abs=0.02)
        assert summary["prototype_accuracy"] > 0.3
        run(Config.create(algorithm="solo", run_dir=str(tmp_path / "own"), **small))
        lines = [json.loads(line) for line in (tmp_path / "own" / "metrics.jsonl").read_text().splitlines()]
        right_m = np.array([predict(tmp_path / "own", file, k) == labels for k in range(5)])
        assert lines[-1]["accuracy"] == pytest.approx(right_m.mean(), abs=0.003)
        assert lines[-1]["accuracy_std"] == pytest.approx(right_m.mean(1).std(), abs=0.003)
        own = [right_m[k][rows[k]].mean() for k in range(5)]
        assert lines[-1]["client_accuracy_mean"] == pytest.approx(np.mean(own), abs=0.003)
        assert [line["accuracy"] is not None for line in lines] == [t in (2, 5, 7) for t in range(8)]
        # Each round the cohort's models, at the end all: the best is of the rounds in which as many count.
        assert [line.get("clients_evaluated") for line in lines] == [None, None, 3, None, None, 3, None, 5]
        solo = json.loads((tmp_path / "own" / "summary.json").read_text())
        assert solo["best_accuracy"] == solo["final_accuracy"] == lines[-1]["accuracy"]
        with pytest.raises(UserError, match="all clients share one model"):
            load_model(tmp_path / "one", client=0)
