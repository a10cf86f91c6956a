"""What a run's model is worth on its test set: over all, by class, by site. Tables, words and pictures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np

from fedproc_mpi.report.heatmap import draw_heatmap
from fedproc_mpi.report.predictions import ALL, OnTest
from fedproc_mpi.report.scores import Scores, Told, always, in_mix, interval, score
from fedproc_mpi.report.tables import NONE, Section, Table
from fedproc_mpi.store.files import write_output

MOST_CLASSES = 12  # up to which a table has a column per class
MOST_SITES = 20  # of more, the terminal shows the worst; files hold all
CONFUSIONS = 5  # told in words


@dataclass(frozen=True)
class Site:
    """A client's figures on its own test rows. in_mix: accuracy on the whole test set in its class mix."""

    name: str
    n: int
    right: int
    scores: Scores
    in_mix: float


class Evaluation:
    """The figures of one run.

    way: how classes are told, "classifier" or "prototypes". who: what a client is called.
    """

    def __init__(self, name: str, on_test: OnTest) -> None:
        """name: of the run, for titles."""
        self.name, self.on_test = name, on_test
        self.ways, self.who = list(on_test.told), "site" if on_test.natural else "client"
        self.whole = {way: {k: score(one) for k, one in told.items()} for way, told in on_test.told.items()}
        self.pooled = {way: score(_pooled(on_test, way)) for way in self.ways}
        self.sites = {way: _sites(on_test, way, self.whole[way]) for way in self.ways}

    def sections(self, by: str = "", pictures: bool = False) -> list[Section]:
        """Tables and words; by: class or site, that alone. pictures: those that `save` writes."""
        found = [self._overall()]
        if by != "site":
            found += [self._by_class(way) for way in self.ways]
            found += [self._confusion(way, pictures) for way in self.ways]
        if by != "class":
            found += [self._by_site(way, pictures) for way in self.ways if self.sites[way]]
        return found

    def save(self, folder: Path, by: str = "") -> list[Path]:
        """Write evaluate.md, and CSV and PNG files; returns them. OSError or UserError where that fails."""
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / "evaluate.md"]
        text = "\n\n".join([f"# {self.name}", *(s.markdown() for s in self.sections(by, pictures=True))])
        write_output(text + "\n", files[0])
        for way in self.ways:
            if by != "site":
                files += self._save_classes(folder, way)
            if by != "class" and self.sites[way]:
                files += self._save_sites(folder, way)
        return files

    # ---- over all ----------------------------------------------------------------------------------------

    def _overall(self) -> Section:
        on_test = self.on_test
        most, constant = always(on_test.y_N, len(on_test.class_names))
        rows = [[_way(way), *_means(list(self.whole[way].values()))] for way in self.ways]
        rows.append([f"always {on_test.class_names[most]}", *_means([constant])])
        table = Table(["told by", "accuracy", "balanced", "macro F1", "macro AUC"], rows, "lrrrr")
        share = _percent(float(constant.accuracy))
        said = [
            f"Model after round {on_test.rounds}, {len(on_test.y_N)} test images; {share} % of them are "
            f"{on_test.class_names[most]}. Balanced: the mean of the classes' recalls.",
        ]
        if not on_test.same_data:
            said.append(f"This is another data set than the one of the run. {_known(on_test)}")
        if on_test.personal:
            said.append("Each client has its own model: mean ± standard deviation over the clients' models.")
        return Section(f"{self.name}: the whole test set, %", table, said)

    # ---- by class ----------------------------------------------------------------------------------------

    def _by_class(self, way: str) -> Section:
        return Section(
            f"{self.name}: by class, told by the {_way(way)}, %", self._class_table(way), self._pooling()
        )

    def _class_table(self, way: str) -> Table:
        s = self.pooled[way]
        rows = [
            [name, str(n), *map(_percent, figures)]
            for name, n, *figures in zip(
                self.on_test.class_names, s.support_K, s.precision_K, s.recall_K, s.f1_K, s.auc_K, strict=True
            )
        ]
        return Table(["class", "images", "precision", "recall", "F1", "AUC"], rows, "lrrrrr")

    def _pooling(self) -> list[str]:
        return (
            ["Each client's model on the client's own test rows, put together."]
            if self.on_test.personal
            else []
        )

    def _confusion(self, way: str, pictures: bool) -> Section:
        s, names = self.pooled[way], self.on_test.class_names
        wrong = s.confusion_KK * (1 - np.eye(len(names), dtype=np.int64))
        worst = np.argsort(-wrong, axis=None, kind="stable")[:CONFUSIONS]
        said = []
        for true, told in zip(*np.unravel_index(worst, wrong.shape), strict=True):
            if wrong[true, told]:
                of_all = f"{wrong[true, told]} of {s.support_K[true]}"
                said.append(f"{of_all} images of {names[true]} are told as {names[told]}.")
        table = self._confusion_table(way) if len(names) <= MOST_CLASSES else None
        picture = f"confusion_{way}.png" if pictures else ""
        return Section(f"{self.name}: confusion, told by the {_way(way)}", table, said, picture)

    def _confusion_table(self, way: str) -> Table:
        names = self.on_test.class_names
        rows = [
            [name, *map(str, row)] for name, row in zip(names, self.pooled[way].confusion_KK, strict=True)
        ]
        return Table(["true \\ told", *names], rows, "l" + "r" * len(names))

    def _save_classes(self, folder: Path, way: str) -> list[Path]:
        tables = {
            f"classes_{way}.csv": self._class_table(way),
            f"confusion_{way}.csv": self._confusion_table(way),
        }
        for name, table in tables.items():
            write_output(table.csv(), folder / name)
        counts_KK, names = self.pooled[way].confusion_KK, self.on_test.class_names
        with np.errstate(invalid="ignore"):
            shares_KK = counts_KK / counts_KK.sum(1, keepdims=True)
        texts = [[str(n) for n in row] for row in counts_KK]
        labels = ("true class", f"told by the {_way(way)}", "share of the true class")
        out = folder / f"confusion_{way}.png"
        picture = draw_heatmap(shares_KK, texts, names, names, labels, self._title(), out)
        return [*(folder / name for name in tables), picture]

    # ---- by site -----------------------------------------------------------------------------------------

    def _by_site(self, way: str, pictures: bool) -> Section:
        sites = self.sites[way]
        shown = (
            sites if len(sites) <= MOST_SITES else sorted(sites, key=lambda s: s.scores.accuracy)[:MOST_SITES]
        )
        said = [
            "On each site's own held-out images."
            if self.on_test.natural
            else "On test rows in its class mix.",
            "95 %: Wilson's interval of the accuracy. In its mix: accuracy on the whole test set, classes "
            "weighted as in the client's training images, where it has any.",
        ]
        if len(shown) < len(sites):
            values = [100 * s.scores.accuracy for s in sites]
            low, middle, high = np.percentile(values, [10, 50, 90])
            said.append(
                f"The {len(shown)} worst of {len(sites)}. Of all 10 % have at most {low:.1f}, half "
                f"{middle:.1f}, 90 % {high:.1f}."
            )
        picture = f"sites_{way}.png" if pictures else ""
        return Section(
            f"{self.name}: by {self.who}, told by the {_way(way)}, %", self._site_table(shown), said, picture
        )

    def _site_table(self, sites: Sequence[Site], all_classes: bool = False) -> Table:
        names = self.on_test.class_names
        per_class = all_classes or len(names) <= MOST_CLASSES
        recalls = [f"recall {name}" for name in names] if per_class else []
        header = [
            self.who,
            "images",
            "accuracy",
            "95 %",
            "balanced",
            "macro F1",
        ]
        rows = []
        for site in sites:
            low, high = interval(site.right, site.n)
            figures = [site.scores.balanced_accuracy, site.scores.macro_f1, site.in_mix]
            rows.append(
                [
                    *(
                        site.name,
                        str(site.n),
                        _percent(site.scores.accuracy),
                        f"{100 * low:.0f}–{100 * high:.0f}",
                    ),
                    *map(_percent, figures),
                    *(map(_percent, site.scores.recall_K) if per_class else []),
                ]
            )
        return Table([*header, "in its mix", *recalls], rows, "lr" + "r" * (5 + len(recalls)))

    def _save_sites(self, folder: Path, way: str) -> list[Path]:
        sites, names = self.sites[way], self.on_test.class_names
        path = folder / f"sites_{way}.csv"
        write_output(self._site_table(sites, all_classes=True).csv(), path)
        recall_mK = np.array([site.scores.recall_K for site in sites])
        texts = [
            [
                f"{100 * r:.0f}" if n else NONE
                for r, n in zip(site.scores.recall_K, site.scores.support_K, strict=True)
            ]
            for site in sites
        ]
        rows = [f"{site.name} ({site.n})" for site in sites]
        labels = (self.who, "class", "recall (numbers: %)")
        out = folder / f"sites_{way}.png"
        return [path, draw_heatmap(recall_mK, texts, rows, names, labels, self._title(), out)]

    def _title(self) -> str:
        return f"{self.name}, the model after round {self.on_test.rounds}"


def _known(on_test: OnTest) -> str:
    """How many of the images the run has trained on."""
    if on_test.trained_on is None:
        return "Whether the run trained on some of its images is not known: the run's shards are not there."
    if on_test.trained_on:
        share = f"{on_test.trained_on} of the {len(on_test.y_N)}"
        return f"The run has TRAINED ON {share} images: these figures are too good."
    return "The run has trained on none of its images."


def _pooled(on_test: OnTest, way: str) -> Told:
    """All predictions of one model, or each personal model's on the client's own rows."""
    told = on_test.told[way]
    if not on_test.personal:
        return told[ALL]
    own = [told[k].rows(on_test.rows[k]) for k in sorted(told) if len(on_test.rows[k])]
    if not own:
        return told[min(told)]
    return Told(np.concatenate([o.y_N for o in own]), np.concatenate([o.scores_NK for o in own]))


def _sites(on_test: OnTest, way: str, whole: dict[int, Scores]) -> list[Site]:
    """The clients that have test rows of their own."""
    found = []
    for k, rows in enumerate(on_test.rows):
        if len(rows):
            model = k if on_test.personal else ALL
            own = on_test.told[way][model].rows(rows)
            s = score(own)
            mix = in_mix(whole[model].recall_K, on_test.mixes_mK[k])
            found.append(Site(on_test.client_names[k], len(rows), round(s.accuracy * len(rows)), s, mix))
    return found


def _means(scores: Sequence[Scores]) -> list[str]:
    """The figures of one model, or mean ± standard deviation over several."""
    columns = [
        [100 * v for v in values if not math.isnan(v)]
        for values in zip(
            *((s.accuracy, s.balanced_accuracy, s.macro_f1, s.macro_auc) for s in scores), strict=True
        )
    ]
    texts = [NONE if not values else f"{fmean(values):.1f}" for values in columns]
    if len(scores) == 1:
        return texts
    return [f"{text} ± {pstdev(v):.1f}" if v else text for text, v in zip(texts, columns, strict=True)]


def _way(way: str) -> str:
    return "nearest prototype" if way == "prototypes" else way


def _percent(value: float) -> str:
    return NONE if math.isnan(value) else f"{100 * value:.1f}"
