"""Test samples: held out of a set that has no test half, and each client's own rows of the test set.

N samples, m clients, K classes.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from data_prep.partitions import Indices, generator
from fedproc_mpi.errors import UserError


def stratified_split(
    labels: npt.NDArray[np.integer],
    test_share: float,
    seed: int,
    sites: Indices | None = None,
    groups: Sequence[str] = (),
    purpose: str = "test",
) -> tuple[Indices, Indices]:
    """(train, test) indices, ascending; of each class round(share·n) samples go to the test set.

    sites: the client of each sample; a class's test samples are then spread over its sites, evenly
    along the samples in site order, so that each site holds out its share as far as whole samples allow.
    groups: of each sample; a group is kept whole, and the shares are met as far as whole groups allow.
    purpose: test or validation, which are drawn from streams of their own.
    """
    if len(groups):
        return _grouped_split(labels, test_share, seed, sites, groups, purpose)
    rng = generator(seed, f"train/{purpose} split")
    test = []
    for k in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == k))
        count = round(test_share * len(members))
        if sites is None:
            test.append(members[:count])
        elif count:
            by_site = members[np.argsort(sites[members], kind="stable")]
            steps = (np.arange(count) + rng.random()) * len(members) / count
            test.append(by_site[steps.astype(np.int64)])
    test_rows = np.sort(np.concatenate([*test, np.zeros(0, np.int64)]))
    return np.setdiff1d(np.arange(len(labels)), test_rows), test_rows


def _grouped_split(
    labels: npt.NDArray[np.integer],
    test_share: float,
    seed: int,
    sites: Indices | None,
    groups: Sequence[str],
    purpose: str,
) -> tuple[Indices, Indices]:
    """Groups in random order; each goes to the test set where that brings its counts nearer to the shares.

    Counts are per site and class. Raises UserError where a class would have no training sample left.
    """
    names, group_N = np.unique(np.asarray(groups), return_inverse=True)
    cells = np.stack([np.zeros_like(labels) if sites is None else sites, labels])
    _, cell_N = np.unique(cells, axis=1, return_inverse=True)
    counts_GC = np.zeros((len(names), int(cell_N.max()) + 1))
    np.add.at(counts_GC, (group_N, cell_N.reshape(-1)), 1)
    wanted_C, held_C = test_share * counts_GC.sum(0), np.zeros(counts_GC.shape[1])
    in_test_G = np.zeros(len(names), bool)
    for g in generator(seed, f"train/{purpose} split of groups").permutation(len(names)):
        nearer = np.square(held_C + counts_GC[g] - wanted_C).sum() < np.square(held_C - wanted_C).sum()
        if nearer:
            held_C, in_test_G[g] = held_C + counts_GC[g], True
    in_test_N = in_test_G[group_N]
    lost = sorted(set(labels.tolist()) - set(labels[~in_test_N].tolist()))
    if lost or not in_test_N.any():
        what = (
            f"class number {lost[0]} has all its images in the {purpose} half"
            if lost
            else f"the {purpose} half is empty"
        )
        raise UserError(f"--group: {len(names)} group(s) cannot be split: {what}; another --seed or share")
    return np.flatnonzero(~in_test_N), np.flatnonzero(in_test_N)


def client_test_rows(
    labels: npt.NDArray[np.integer],
    partition: Sequence[Indices],
    test_labels: npt.NDArray[np.integer],
    num_classes: int,
    seed: int,
    all_there_are: bool = False,
) -> list[Indices]:
    """For each client rows of the global test set in the client's own class mix.

    As many as the client has training samples (all_there_are: any number), or as the scarcest class of
    its mix allows; at least one of each class it holds that the test set has.
    """
    by_class = [np.flatnonzero(test_labels == k) for k in range(num_classes)]
    available = np.array([len(rows) for rows in by_class])
    result = []
    for i, part in enumerate(partition):
        counts = np.bincount(labels[part], minlength=num_classes) * (available > 0)
        if not counts.sum():
            result.append(np.zeros(0, np.int64))
            continue
        held = counts > 0
        mix = counts / counts.sum()
        most = float((available[held] / mix[held]).min())
        size = most if all_there_are else min(len(part), most)
        wanted = np.where(held, np.maximum(1, np.floor(size * mix + 1e-9)), 0).astype(int)
        rng = generator(seed, "client test rows", i)
        drawn = [rng.permutation(by_class[k])[: wanted[k]] for k in np.flatnonzero(held)]
        result.append(np.sort(np.concatenate(drawn)))
    return result


def site_test_rows(rows: Sequence[Indices], test_sites: Indices) -> list[Indices]:
    """Natural partition: a client's test rows are its site's own, none where the test set has none of them.

    Where it has none of any site, `rows` stay.
    """
    own = [np.flatnonzero(test_sites == i) for i in range(len(rows))]
    return own if any(map(len, own)) else list(rows)
