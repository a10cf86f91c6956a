"""The evaluate command: figures by hand and by scikit-learn, the run's own figures, what is refused."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import classification_report, roc_auc_score

from data_prep.cli import main as data_prep
from fedproc_mpi import Config, load_model, run
from fedproc_mpi.evaluate import main as evaluate
from fedproc_mpi.report.evaluation import Evaluation
from fedproc_mpi.report.predictions import predict_test
from fedproc_mpi.report.scores import Told, always, in_mix, interval, score
from fedproc_mpi.shards import Shards

QUICK = {"rounds": 3, "local_epochs": 1, "batch_size": 32}


@pytest.fixture(scope="module")
def runs(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """fedproc and solo on digits of 5 clients."""
    top = tmp_path_factory.mktemp("evaluated")
    for name in ("fedproc", "solo"):
        run(Config.create(algorithm=name, shards=str(shards), run_dir=str(top / name), lr=0.05, **QUICK))
    return top


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_figures_by_hand() -> None:
    """Six samples of classes 0, 0, 0, 0, 1, 1, told 0, 0, 0, 1, 1, 2; class 2 is not there, 3 never told."""
    of_class_0 = [[0.9, 0.0, 0.1, 0], [0.8, 0.1, 0.1, 0], [0.5, 0.3, 0.2, 0], [0.4, 0.6, 0.0, 0]]
    of_class_1 = [[0.2, 0.7, 0.1, 0], [0.1, 0.2, 0.7, 0]]
    scores_NK = np.array([*of_class_0, *of_class_1], np.float32)
    s = score(Told(np.array([0, 0, 0, 0, 1, 1]), scores_NK))
    assert s.accuracy == pytest.approx(4 / 6)
    assert s.support_K.tolist() == [4, 2, 0, 0]
    assert s.precision_K[:3] == pytest.approx([1, 0.5, 0])  # 3 of 3, 1 of 2, 0 of 1
    assert np.isnan(s.precision_K[3])
    assert s.recall_K[:2] == pytest.approx([0.75, 0.5])
    assert np.isnan(s.recall_K[2:]).all()
    assert s.f1_K[:2] == pytest.approx([2 * 0.75 / 1.75, 0.5])
    assert np.isnan(s.f1_K[2:]).all()
    assert s.balanced_accuracy == pytest.approx(0.625)
    # Class 0: its scores 0.9, 0.8, 0.5, 0.4 are all above 0.2 and 0.1. Class 1: of 8 pairs 0.7 wins against
    # 0, 0.1, 0.3, 0.6, and 0.2 against 0, 0.1: 6.
    assert s.auc_K[:2] == pytest.approx([1, 6 / 8])
    assert s.confusion_KK.tolist() == [[3, 1, 0, 0], [0, 1, 1, 0], [0] * 4, [0] * 4]
    # 0.9·0.75 + 0.1·0.5, and a class without a recall that has a share
    assert in_mix(s.recall_K, [0.9, 0.1, 0, 0]) == pytest.approx(0.725)
    assert np.isnan(in_mix(s.recall_K, [0.9, 0, 0.1, 0]))


def test_a_set_that_is_nearly_one_class_does_not_look_good() -> None:
    most, s = always(np.array([1] * 93 + [0] * 7), 2)
    assert most == 1
    assert (s.accuracy, s.balanced_accuracy) == (0.93, 0.5)
    assert s.macro_f1 == pytest.approx(0.93 / 1.93)  # F1 of class 1 is 2·0.93/1.93, of class 0 it is 0


def test_wilsons_interval() -> None:
    # z = 1.959964; n = 10, p = 0.8: (p + z²/2n ± z·sqrt(p(1-p)/n + z²/4n²))/(1 + z²/n)
    assert interval(8, 10) == pytest.approx((0.490162, 0.943318), abs=1e-6)


def test_the_figures_are_the_run_s_own(runs: Path) -> None:
    """Exactly: the models are computed as the run computed them."""
    for name in ("fedproc", "solo"):
        summary = json.loads((runs / name / "summary.json").read_text())
        evaluation = Evaluation(name, predict_test(runs / name, "", False))
        whole = evaluation.whole["classifier"].values()
        assert np.mean([s.accuracy for s in whole]) == pytest.approx(summary["final_accuracy"], abs=1e-12)
        assert np.mean([s.balanced_accuracy for s in whole]) == pytest.approx(summary["balanced_accuracy"])
        recall_K = np.mean([s.recall_K for s in whole], axis=0)
        assert recall_K.tolist() == pytest.approx(summary["class_recall"])
        sites = {site.name: site.scores.accuracy for site in evaluation.sites["classifier"]}
        assert list(sites.values()) == pytest.approx(list(summary["client_accuracy"].values()))
    evaluation = Evaluation("fedproc", predict_test(runs / "fedproc", "", False))
    summary = json.loads((runs / "fedproc" / "summary.json").read_text())
    assert evaluation.pooled["prototypes"].accuracy == pytest.approx(summary["prototype_accuracy"], abs=1e-12)


def test_files_against_scikit_learn(runs: Path, shards: Path, tmp_path: Path) -> None:
    assert evaluate([str(runs / "fedproc"), "--out", str(tmp_path / "out")]) == 0
    with Shards(shards) as file:
        images, labels = file.test_set.read(0, len(file.test_set))
        rows = [file.test_set.rows(k) for k in range(5)]
        shares = np.bincount(file.client_labels(2), minlength=10) / file.sizes[2]
    prediction = load_model(runs / "fedproc").predict(images)
    told = prediction.probabilities.argmax(1)
    report = classification_report(labels, told, output_dict=True, zero_division=np.nan)
    for k, row in enumerate(table(tmp_path / "out" / "classes_classifier.csv")):
        assert (row["class"], row["images"]) == (str(k), str((labels == k).sum()))
        right = report[str(k)]
        assert row["recall"] == f"{100 * right['recall']:.1f}"
        assert row["precision"] == (
            "–" if np.isnan(right["precision"]) else f"{100 * right['precision']:.1f}"
        )
        assert float(row["AUC"]) == pytest.approx(
            100 * roc_auc_score(labels == k, prediction.probabilities[:, k]), abs=0.06
        )
    client = table(tmp_path / "out" / "sites_classifier.csv")[2]
    assert client["client"] == "client 2"
    assert client["accuracy"] == f"{100 * (told[rows[2]] == labels[rows[2]]).mean():.1f}"
    by_mix = sum(shares[k] * report[str(k)]["recall"] for k in range(10))
    assert client["in its mix"] == f"{100 * by_mix:.1f}"
    confusion = table(tmp_path / "out" / "confusion_classifier.csv")
    assert [int(row[str(j)]) for row in confusion for j in range(10)] == [
        int(((labels == i) & (told == j)).sum()) for i in range(10) for j in range(10)
    ]
    text = (tmp_path / "out" / "evaluate.md").read_text()
    for name in ("confusion_classifier", "sites_classifier", "confusion_prototypes", "sites_prototypes"):
        assert f"({name}.png)" in text
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_one_part_alone(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate([str(runs / "solo"), "--by", "site"]) == 0
    out = capsys.readouterr().out
    assert "by client" in out
    assert "by class" not in out
    assert evaluate([str(runs / "solo"), "--by", "class"]) == 0
    out = capsys.readouterr().out
    assert "by client" not in out
    assert "Each client's model on the client's own test rows, put together." in out


def test_sites_have_their_names_and_another_test_set_can_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from examples.site_images import main as make_images

    make_images(tmp_path / "images")
    words = ["folders", "--root", str(tmp_path / "images"), "--image-size", "12", "--channels", "1"]
    for name, seed in (("a", "0"), ("b", "1")):
        assert data_prep([*words, "--out", str(tmp_path / f"{name}.h5"), "--seed", seed]) == 0
    for algorithm in ("fedavg", "solo"):
        options = {**QUICK, "algorithm": algorithm, "shards": str(tmp_path / "a.h5"), "lr": 0.01}
        run(Config.create(**options, run_dir=str(tmp_path / algorithm)))
        capsys.readouterr()
        assert evaluate([str(tmp_path / algorithm), "--shards", str(tmp_path / "b.h5")]) == 0
        out = capsys.readouterr().out
        assert "This is another data set than the one of the run." in out
        for site in ("East", "North", "South"):
            assert f"\n{site} " in out
        assert "On each site's own held-out images." in out


def test_images_of_another_hospital(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same figures as by data_prep's test set, and how many of the images were trained on."""
    random = np.random.default_rng(0)
    for place in ("own/East", "own/West", "other/North"):
        for label, brightest in (("healthy", 60), ("ill", 250)):
            (tmp_path / place / label).mkdir(parents=True)
            for i in range(20):
                pixels = random.integers(0, brightest, (12, 12), np.uint8)
                Image.fromarray(pixels).save(tmp_path / place / label / f"{i}.png")
    words = ["--image-size", "12", "--channels", "1", "--out"]
    own, shards = str(tmp_path / "own"), str(tmp_path / "own.h5")
    assert data_prep(["folders", "--root", own, *words, shards]) == 0
    run_dir = str(tmp_path / "run")
    run(Config.create(algorithm="fedavg", shards=shards, run_dir=run_dir, lr=0.05, **QUICK))
    capsys.readouterr()
    assert evaluate([run_dir, "--images", str(tmp_path / "other")]) == 0
    told = capsys.readouterr().out
    assert "The run has trained on none of its images." in told
    both = str(tmp_path / "both.h5")
    other = ["--test-root", str(tmp_path / "other")]
    assert data_prep(["folders", "--root", own, *other, *words, both]) == 0
    capsys.readouterr()
    assert evaluate([run_dir, "--shards", both]) == 0
    by_shards = capsys.readouterr().out.splitlines()
    lines = told.splitlines()
    for start in ("classifier", "healthy", "ill"):
        assert [x for x in lines if x.startswith(start)] == [x for x in by_shards if x.startswith(start)]
    assert [line.split()[:2] for line in lines if line.startswith("North")] == [["North", "40"]]
    # Of its own folders it has trained on 4 of 5.
    assert evaluate([run_dir, "--images", own]) == 0
    assert "TRAINED ON 64 of the 80 images" in capsys.readouterr().out
    Path(shards).unlink()
    assert evaluate([run_dir, "--images", own]) == 0
    assert "is not known: the run's shards are not there" in capsys.readouterr().out
    (tmp_path / "other/North/odd").mkdir()
    shutil.copy(tmp_path / "other/North/ill/0.png", tmp_path / "other/North/odd")
    assert evaluate([run_dir, "--images", str(tmp_path / "other")]) == 2
    assert "odd is no class of the run" in capsys.readouterr().err


def test_sites_without_held_out_images_get_no_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(0)
    for place in ("train/East", "train/West", "test/East"):
        for label in ("healthy", "ill"):
            (tmp_path / place / label).mkdir(parents=True)
            for i in range(12):
                picture = Image.fromarray(random.integers(0, 256, (12, 12), np.uint8))
                picture.save(tmp_path / place / label / f"{i}.png")
    out = str(tmp_path / "sites.h5")
    roots = ["--root", str(tmp_path / "train"), "--test-root", str(tmp_path / "test")]
    assert data_prep(["folders", *roots, "--image-size", "12", "--channels", "1", "--out", out]) == 0
    assert "no test image of West: no accuracy of its own" in capsys.readouterr().out
    run_dir = str(tmp_path / "run")
    result = run(Config.create(algorithm="solo", shards=out, run_dir=run_dir, **QUICK))
    assert result is not None
    assert set(result.summary["client_accuracy"]) == {"East"}
    capsys.readouterr()
    assert evaluate([run_dir]) == 0
    told = capsys.readouterr().out
    assert "On each site's own held-out images." in told
    found = [line.split()[:2] for line in told.splitlines() if line.startswith(("East", "West"))]
    assert found == [["East", "24"]]


def test_what_is_refused(
    runs: Path, shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*words: str) -> str:
        assert evaluate([*words]) == 2
        error = capsys.readouterr().err
        assert error.startswith("fedproc_mpi.evaluate: ")
        assert error.count("\n") == 1
        return error

    solo, fedproc = str(runs / "solo"), str(runs / "fedproc")
    assert "is no run directory" in told(str(runs))
    assert "no such shards file" in told(fedproc, "--shards", str(tmp_path / "none.h5"))
    assert "--by must be one of" in told(fedproc, "--by", "hospital")
    assert "no whole best.pt; runs on shards with a validation set have one" in told(fedproc, "--best")
    others = tmp_path / "others.h5"
    assert data_prep(["digits", "--clients", "3", "--out", str(others)]) == 0
    capsys.readouterr()
    assert "clients have models of their own here" in told(solo, "--shards", str(others))
    images = np.zeros((40, 8, 8), np.uint8)
    labels = np.arange(40) % 2
    np.savez(tmp_path / "x.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    words = ["npz", "--file", str(tmp_path / "x.npz"), "--partition", "iid", "--clients", "2"]
    assert data_prep([*words, "--out", str(tmp_path / "two.h5")]) == 0
    capsys.readouterr()
    assert "has other classes (the run has 0, 1," in told(fedproc, "--shards", str(tmp_path / "two.h5"))
    moved = shutil.copytree(runs / "fedproc", tmp_path / "moved")
    record = json.loads((moved / "config.json").read_text())
    (moved / "config.json").write_text(json.dumps({**record, "shards": str(others)}))
    assert "others.h5 has changed since the run" in told(str(moved))
    assert evaluate([fedproc, "--shards", str(others)]) == 0  # one model for all: any clients do
