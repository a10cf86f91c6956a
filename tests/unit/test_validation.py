"""The validation set: how it is drawn, what a run does with it, early stopping."""

import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

from data_prep.cli import main as data_prep
from fedproc_mpi import Config, UserError, load_model, run
from fedproc_mpi.clock import Clock
from fedproc_mpi.federated import Result
from fedproc_mpi.learn.client import Round
from fedproc_mpi.shards import Shards
from fedproc_mpi.steps import Report, round_line
from fedproc_mpi.store import checkpoint, metrics

QUICK = {"rounds": 6, "local_epochs": 1, "batch_size": 32}


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits for 5 clients with a fifth of each held out for validation."""
    out = tmp_path_factory.mktemp("validated") / "digits.h5"
    assert data_prep(["digits", "--clients", "5", "--val-share", "0.2", "--out", str(out)]) == 0
    return out


def run_once(shards: Path, run_dir: Path, **options: object) -> Result:
    result = run(Config.create(**{**QUICK, **options}, shards=str(shards), run_dir=str(run_dir)))
    assert result is not None
    return result


def rows(images: np.ndarray) -> list[bytes]:
    return sorted(image.tobytes() for image in images)


def test_each_clients_share_is_drawn_from_its_own_samples(validated: Path, shards: Path) -> None:
    with Shards(validated) as file, Shards(shards) as without:
        assert file.val_set is not None
        assert without.val_set is None
        x_val_NHWC, y_val_N = file.val_set.read(0, len(file.val_set))
        seen = []
        for k in range(5):
            own = file.val_set.rows(k)
            train, before = file.client(k), without.client(k)
            assert rows(np.concatenate([train[0], x_val_NHWC[own]])) == rows(before[0])
            for label in range(10):
                all_of_it = int((before[1] == label).sum())
                held = int((y_val_N[own] == label).sum())
                assert abs(held - 0.2 * all_of_it) <= 1  # as near as whole samples of a class allow
            seen += own.tolist()
        assert seen == list(range(len(file.val_set)))
        assert rows(file.test_set.read(0, 999)[0]) == rows(without.test_set.read(0, 999)[0])
        assert file.fingerprint != without.fingerprint


def test_a_patients_images_stay_together(tmp_path: Path) -> None:
    """Each patient has a brightness of its own: none of them is in two of the three sets."""
    for site in range(2):
        for patient in range(30):
            folder = tmp_path / "images" / f"site{site}" / ("ill" if patient % 2 else "healthy")
            folder.mkdir(parents=True, exist_ok=True)
            for i in range(3):
                level = 4 * (30 * site + patient)
                Image.new("L", (8, 8), level).save(folder / f"p{patient}_{i}.png")
    out = tmp_path / "grouped.h5"
    words = ["folders", "--root", str(tmp_path / "images"), "--out", str(out), "--image-size", "8"]
    assert data_prep([*words, "--channels", "1", "--group", "site./.*/p\\d+", "--val-share", "0.25"]) == 0
    with Shards(out) as file:
        assert file.val_set is not None
        train = {int(x.flat[0]) for k in range(2) for x in file.client(k)[0]}
        val = {int(x.flat[0]) for x in file.val_set.read(0, 999)[0]}
        test = {int(x.flat[0]) for x in file.test_set.read(0, 999)[0]}
        assert not train & val
        assert not train & test
        assert not val & test
        assert len(train | val | test) == 60
        assert len(val) == pytest.approx(12, abs=3)  # a quarter of the 48 patients that are not for test


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--val-share", "1"], "--val-share 1.0 must be below 1"),
        (["--val-share", "0.0001"], "holds out none"),
        (["--val-share", "0.99", "--clients", "40", "--beta", "5"], "nothing to train on; lower it"),
        (["--val-share", "-1"], "--val-share must be at least 0"),
    ],
)
def test_shares_that_cannot_be(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert data_prep(["digits", "--out", str(tmp_path / "x.h5"), *words]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "x.h5").exists()


def test_a_changed_validation_set_is_refused(validated: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(validated, tmp_path / "changed.h5"))
    with h5py.File(path, "r+") as file:
        file["val/labels"][3] = (file["val/labels"][3] + 1) % 10
    with pytest.raises(UserError, match="val set: checksum mismatch"):
        run_once(path, tmp_path / "run")


def accuracy(run_dir: Path, shards: Path, name: str, client: int | None = None, best: bool = False) -> float:
    """Of a run's model on a held-out set; a client's own rows of the validation set where one is named."""
    with Shards(shards) as file:
        held_out = file.test_set if name == "test" else file.val_set
        assert held_out is not None
        images, labels = held_out.read(0, len(held_out))
        own = np.arange(len(labels)) if name == "test" or client is None else held_out.rows(client)
    predicted = load_model(run_dir, client, best=best).predict(images[own]).classes
    return float(np.mean([int(told) == label for told, label in zip(predicted, labels[own], strict=True)]))


def test_rounds_are_validated_and_the_test_set_is_used_once(validated: Path, tmp_path: Path) -> None:
    result = run_once(validated, tmp_path / "run", lr=0.1)  # so high that the last round is not the best
    by_round = [line["val_accuracy"] for line in result.metrics]
    assert all(line["accuracy"] is None for line in result.metrics)
    assert by_round[-1] == pytest.approx(accuracy(tmp_path / "run", validated, "val"), abs=0.004)
    summary, best = result.summary, int(np.argmax(by_round))
    assert best < 5, "another learning rate: this test wants the best round before the last"
    at_the_end = accuracy(tmp_path / "run", validated, "test")
    assert summary["final_accuracy"] == pytest.approx(at_the_end, abs=0.003)
    assert (summary["best_round"], summary["best_val_accuracy"]) == (best, by_round[best])
    at_best = accuracy(tmp_path / "run", validated, "test", best=True)
    assert summary["best_accuracy"] == pytest.approx(at_best, abs=0.003)
    assert summary["best_chosen_on"] == "validation"
    assert load_model(tmp_path / "run", best=True).rounds == best + 1
    # The same data without early stopping: the final model does not depend on what was looked at.
    again = run_once(validated, tmp_path / "rarely", lr=0.1, eval_every=6)
    assert again.summary["model_sha256"] == summary["model_sha256"]


def test_personal_models_are_validated_on_their_own_samples(validated: Path, tmp_path: Path) -> None:
    result = run_once(validated, tmp_path / "run", algorithm="solo", sample_rate=0.4, rounds=4, lr=0.1)
    summary, last = result.summary, result.metrics[-1]
    own = [accuracy(tmp_path / "run", validated, "val", client=k) for k in range(5)]
    assert last["val_accuracy"] == pytest.approx(np.mean(own), abs=0.01)
    assert list(last["client_val_accuracy"].values()) == pytest.approx(own, abs=0.02)
    on_test = [accuracy(tmp_path / "run", validated, "test", client=k) for k in range(5)]
    assert summary["final_accuracy"] == pytest.approx(np.mean(on_test), abs=0.003)
    assert summary["clients_evaluated"] == 5
    # A client that was not drawn by then has the model that it starts with.
    drawn = {k for line in result.metrics[: summary["best_round"] + 1] for k in line["cohort"]}
    assert len(drawn) < 5, "another seed: this test wants a client that is drawn after the best round"
    at_best = [accuracy(tmp_path / "run", validated, "test", client=k, best=True) for k in range(5)]
    assert summary["best_accuracy"] == pytest.approx(np.mean(at_best), abs=0.003)


def test_patience_ends_a_run(
    validated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a rate of 0 nothing gets better: round 1 is the best, and two rounds later it ends."""
    options = {"lr": 1e-12, "patience": 2, "checkpoint_every": 4, "rounds": 9}
    result = run_once(validated, tmp_path / "run", **options)
    assert [line["round"] for line in result.metrics] == [0, 1, 2]
    assert result.summary["rounds"] == 3
    assert result.summary["best_round"] == 0
    assert (
        "no better validation accuracy for 2 round(s): the run ends after round 3" in capsys.readouterr().out
    )
    short = run_once(validated, tmp_path / "short", lr=1e-12, rounds=3, alpha_schedule="over100")
    long = run_once(validated, tmp_path / "long", **options, alpha_schedule="over100")
    assert long.summary["model_sha256"] == short.summary["model_sha256"]

    # Killed before its last checkpoint, and behind it: the same end.
    for module, name in ((checkpoint, "save"), (metrics, "append_line")):
        run_dir = tmp_path / name
        with monkeypatch.context() as patch:
            patch.setattr(module, name, killed_in_round_3(getattr(module, name)))
            with pytest.raises(KeyboardInterrupt):
                run_once(validated, run_dir, **options)
        resumed = run_once(validated, run_dir, **options, resume=True)
        for key in ("model_sha256", "final_accuracy", "best_accuracy", "best_round", "rounds"):
            assert resumed.summary[key] == result.summary[key]


def test_patience_waits_for_a_validation(
    validated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Validated after rounds 3, 6, …: nothing got better after round 6, and not before."""
    options = {"lr": 1e-12, "patience": 2, "eval_every": 3, "rounds": 12}
    result = run_once(validated, tmp_path / "run", **options)
    assert result.summary["rounds"] == 6
    assert result.summary["best_round"] == 2
    assert "no better validation accuracy for 3 round(s)" in capsys.readouterr().out
    model = load_model(tmp_path / "run")
    assert (model.rounds, model.config.rounds) == (6, 12)


def test_the_rounds_that_are_validated_are_part_of_the_result(validated: Path, tmp_path: Path) -> None:
    """They decide which model is the best. Without a validation set the flag is free."""
    run_once(validated, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(UserError, match="--eval-every was 1, now 2"):
        run_once(validated, tmp_path / "run", eval_every=2, resume=True)


@pytest.mark.parametrize("damage", ["lost", "damaged", "of another round"])
def test_a_best_model_that_is_lost_ends_no_run(
    damage: str, validated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run_once(validated, tmp_path / "run", lr=0.1)
    best, best_round = tmp_path / "run" / "best.pt", whole.summary["best_round"]
    assert best_round < 5, "another learning rate: this test wants the best round before the last"
    (tmp_path / "run" / "summary.json").unlink()
    if damage == "of another round":
        saved = torch.load(best, weights_only=True)
        torch.save(saved | {"next_round": saved["next_round"] + 1}, best)
    elif damage == "damaged":
        best.write_bytes(best.read_bytes()[:-100])
    else:
        best.unlink()
    again = run_once(validated, tmp_path / "run", lr=0.1, resume=True)
    assert again.summary["model_sha256"] == whole.summary["model_sha256"]
    assert again.summary["final_accuracy"] == whole.summary["final_accuracy"]
    assert again.summary["best_round"] == best_round
    assert again.summary["best_accuracy"] is None
    told = capsys.readouterr().err
    assert ("the best model is lost" in told) == (damage != "of another round")


def test_lines_of_many_clients_name_them_in_the_last_round_alone() -> None:
    """Of 201 clients, on the test set and on the validation set; of 200 always."""
    for many, told in ((201, [False, True]), (200, [True, True])):
        named = {str(k): 0.5 for k in range(many)}
        figures = {"client_accuracy": named, "client_val_accuracy": named, "val_accuracy": 0.5}
        for t in range(2):
            clock = Clock()
            clock.mark("train")
            line = round_line(Round(t, 2, many), [0], [Report()], figures, {}, clock)
            assert line["val_accuracy"] == 0.5
            assert ("client_accuracy" in line, "client_val_accuracy" in line) == (told[t], told[t])


def killed_in_round_3(save: Callable[..., None]) -> Callable[..., None]:
    """A save that is interrupted in the third round; it gets the number of rounds, or the round's line."""

    def function(run_dir: Path, what: int | dict, *others: object) -> None:
        if (what["round"] + 1 if isinstance(what, dict) else what) == 3:
            raise KeyboardInterrupt
        save(run_dir, what, *others)

    return function
