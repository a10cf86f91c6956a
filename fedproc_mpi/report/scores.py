"""How good predictions are: per class and over all, by scikit-learn's definitions.

Shapes: N samples, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]  # NaN where a figure has no value


@dataclass(frozen=True)
class Told:
    """What was told of N samples: their classes y_N, and a score per class, of which the highest is told."""

    y_N: npt.NDArray[np.int64]
    scores_NK: npt.NDArray[np.float32]

    def rows(self, chosen: npt.NDArray[np.int64]) -> "Told":
        """Some of the samples."""
        return Told(self.y_N[chosen], self.scores_NK[chosen])


@dataclass(frozen=True)
class Scores:
    """Figures of one set of predictions.

    Per class, NaN where there is none: support_K (samples), precision_K (none where the class is never told),
    recall_K and f1_K (none where the set has no sample of it), auc_K (the class against all others by its
    score; none where the set is of one class). confusion_KK: rows are true classes, columns what was told.
    balanced_accuracy, macro_f1, macro_auc: means over the classes that have a value.
    """

    accuracy: float
    balanced_accuracy: float
    macro_f1: float
    macro_auc: float
    support_K: npt.NDArray[np.int64]
    precision_K: Floats
    recall_K: Floats
    f1_K: Floats
    auc_K: Floats
    confusion_KK: npt.NDArray[np.int64]


def score(told: Told) -> Scores:
    """The figures of one or more samples."""
    from sklearn import metrics  # here: it takes a second

    y_N, scores_NK = told.y_N, told.scores_NK.astype(np.float64)
    classes = np.arange(scores_NK.shape[1])
    told_N = scores_NK.argmax(1)
    precision_K, recall_K, f1_K, support_K = metrics.precision_recall_fscore_support(
        y_N, told_N, labels=classes, zero_division=np.nan
    )
    # Of a class that is there and never told, F1 is 0; scikit-learn calls it undefined as its precision is.
    f1_K = np.where(support_K > 0, np.nan_to_num(f1_K), np.nan)
    recall_K = np.where(support_K > 0, recall_K, np.nan)
    auc_K = np.full(len(classes), np.nan)
    for k in classes:
        if 0 < support_K[k] < len(y_N):
            auc_K[k] = metrics.roc_auc_score(y_N == k, scores_NK[:, k])
    return Scores(
        float((told_N == y_N).mean()),
        _mean(recall_K),
        _mean(f1_K),
        _mean(auc_K),
        support_K.astype(np.int64),
        precision_K,
        recall_K,
        f1_K,
        auc_K,
        metrics.confusion_matrix(y_N, told_N, labels=classes),
    )


def always(y_N: npt.NDArray[np.int64], num_classes: int) -> tuple[int, Scores]:
    """What one would get by always telling the most frequent class; and that class."""
    most = int(np.bincount(y_N, minlength=num_classes).argmax())
    scores_NK = np.zeros((len(y_N), num_classes), np.float32)
    scores_NK[:, most] = 1
    return most, score(Told(y_N, scores_NK))


def interval(right: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, right of n (Wilson 1927)."""
    from scipy.stats import binomtest

    found = binomtest(right, n).proportion_ci(0.95, method="wilson")
    return float(found.low), float(found.high)


def in_mix(recall_K: Floats, mix_K: Sequence[float]) -> float:
    """The accuracy that these recalls mean where classes have these shares; NaN where one has no recall."""
    shares = np.asarray(mix_K)
    return float(np.sum(recall_K[shares > 0] * shares[shares > 0]) / shares.sum())


def _mean(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")
