"""The export command: what other programs get is the run's model, or nothing."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from fedproc_mpi import Config, load_model, run
from fedproc_mpi import export as command
from fedproc_mpi.export import main as export
from fedproc_mpi.shards import Shards

QUICK = {"rounds": 2, "local_epochs": 1, "batch_size": 32}


@pytest.fixture(scope="module")
def runs(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """fedproc, solo, and a model with BatchNorm, on digits."""
    top = tmp_path_factory.mktemp("exported")
    more = {
        "solo": {"algorithm": "solo"},
        "fedproc": {},
        "normed": {"model": "tests.support.small_models:Normed"},
    }
    for name, options in more.items():
        run(Config.create(**options, shards=str(shards), run_dir=str(top / name), lr=0.05, **QUICK))
    return top


@pytest.fixture(scope="module")
def images(shards: Path) -> np.ndarray:
    """Test images (N, C, H, W)."""
    with Shards(shards) as file:
        return np.ascontiguousarray(file.test_set.read(0, 50)[0].transpose(0, 3, 1, 2))


@pytest.mark.parametrize("name", ["fedproc", "normed"])
def test_onnx_gives_the_runs_answers(
    name: str,
    runs: Path,
    shards: Path,
    images: np.ndarray,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Against the weights of model.pt, normalised by hand with the shards' mean and deviation."""
    out = tmp_path / "model.onnx"
    assert export([str(runs / name), "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "300 test images in batches of 1 and more: probabilities at most" in said.out
    assert said.err == ""
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    plain = load_model(runs / name).model
    with Shards(shards) as file:
        mean, std = file.header.mean[0], file.header.std[0]
    with torch.no_grad():
        z_ND, logits_NK = plain((torch.from_numpy(images) / 255 - mean) / std)
    session = onnxruntime.InferenceSession(out)
    for count in (1, 50):  # any batch size
        given = session.run(None, {"images": images[:count]})
        for ours, right in zip(given, (logits_NK, logits_NK.softmax(1), z_ND), strict=True):
            np.testing.assert_allclose(ours, right[:count].numpy(), rtol=1e-3, atol=1e-4)
    facts = json.loads({p.key: p.value for p in onnx.load(out).metadata_props}["fedproc_mpi"])
    assert facts["classes"] == [str(k) for k in range(10)]
    assert facts["image_shape_HWC"] == [8, 8, 1]
    assert facts["model_sha256"] == json.loads((runs / name / "summary.json").read_text())["model_sha256"]


def test_torch_export_of_a_clients_own_model(runs: Path, images: np.ndarray, tmp_path: Path) -> None:
    out = tmp_path / "model.pt2"
    assert export([str(runs / "solo"), "--out", str(out), "--client", "3"]) == 0
    facts = {"fedproc_mpi": ""}
    program = torch.export.load(out, extra_files=facts).module()
    right = load_model(runs / "solo", client=3).predict(images).probabilities
    np.testing.assert_allclose(program(torch.from_numpy(images))[1].detach(), right, atol=1e-6)
    assert json.loads(facts["fedproc_mpi"])["algorithm"] == "solo"


@pytest.mark.parametrize("name", ["resnet18", "simple-cnn"])
def test_the_larger_models_can_be_exported(name: str, tmp_path: Path) -> None:
    from data_prep.cli import main as data_prep

    shards = tmp_path / "synthetic.h5"
    words = ["synthetic", "--clients", "2", "--out", str(shards), "--samples", "12", "--image-size", "28"]
    assert data_prep(words) == 0
    norm = {"norm": "group"} if name == "resnet18" else {}
    options = {**QUICK, "rounds": 1, "shards": str(shards), "model": name, "algorithm": "fedavg", **norm}
    run(Config.create(**options, run_dir=str(tmp_path / "run")))
    assert export([str(tmp_path / "run"), "--out", str(tmp_path / "model.onnx")]) == 0


def test_a_model_that_answers_otherwise_is_not_written(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = command.Exported.forward
    monkeypatch.setattr(command.Exported, "forward", lambda self, images: right(self, images // 2))
    for ending in (".onnx", ".pt2"):
        assert export([str(runs / "fedproc"), "--out", str(tmp_path / f"model{ending}")]) == 1
        assert "answers otherwise than the run's" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_the_shards_random_images_are_compared(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = runs / "fedproc" / "config.json"
    before = config.read_text()
    config.write_text(json.dumps({**json.loads(before), "shards": "gone.h5"}))
    try:
        assert export([str(runs / "fedproc"), "--out", str(tmp_path / "model.pt2")]) == 0
    finally:
        config.write_text(before)
    assert "300 random images (the run's shards are not there)" in capsys.readouterr().out


def test_what_is_refused(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "there.onnx").touch()
    for words, told in (
        (["fedproc"], "--out is missing"),
        (["fedproc", "--out", "model.tflite"], "must end in .onnx or .pt2"),
        (["fedproc", "--out", str(tmp_path / "there.onnx")], "there.onnx exists; choose another --out"),
        (["fedproc", "--out", str(tmp_path / "no" / "model.onnx")], "no folder"),
        (["solo", "--out", str(tmp_path / "model.onnx")], "each client has its own model"),
        (["nothing", "--out", str(tmp_path / "model.onnx")], "is no run directory"),
    ):
        assert export([str(runs / words[0]), *words[1:]]) == 2
        error = capsys.readouterr().err
        assert told in error
        assert error.count("\n") == 1
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    assert export([str(runs / "fedproc"), "--out", str(tmp_path / "model.onnx")]) == 2
    assert "pip install '.[export]' in the checkout" in capsys.readouterr().err
