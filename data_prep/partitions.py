"""Which client holds which training sample. Every draw comes from PCG64, keyed by (seed, purpose).

N samples, m clients, K classes; a partition is a list of m index arrays, each sample in exactly one.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedproc_mpi.errors import UserError

Indices = npt.NDArray[np.int64]
MAX_TRIES = 2000


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """PCG64 seeded by SeedSequence over (seed, hash of the purpose, key)."""
    word = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:4], "little")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, word, *key])))


def dirichlet(
    labels: npt.NDArray[np.integer], clients: int, beta: float, seed: int, min_samples: int = 10
) -> list[Indices]:
    """The split of NIID-Bench, MOON and FedProc.

    Per class, shares p ~ Dir(β) over the clients; clients that hold N/m samples or more get none of
    it; the class is cut at the truncated cumulative shares. The whole split is drawn again until every
    client has `min_samples`. Raises UserError when that cannot be, or was not reached.
    """
    _check_sizes(len(labels), clients, min_samples)
    rng = generator(seed, "dirichlet")
    best = 0
    by_class = [np.flatnonzero(labels == k) for k in np.unique(labels)]
    for _ in range(MAX_TRIES):
        sizes = np.zeros(clients, np.int64)
        drawn = []  # of each class its members in random order, and where to cut them
        for of_class in by_class:
            members = rng.permutation(of_class)
            shares = rng.dirichlet(np.full(clients, beta)) * (sizes < len(labels) / clients)
            if not shares.sum() > 0:  # at a tiny β the open clients' shares can underflow to 0
                shares = (sizes < len(labels) / clients).astype(float)
            cuts = (np.cumsum(shares / shares.sum()) * len(members)).astype(np.int64)[:-1]
            sizes += np.diff(cuts, prepend=0, append=len(members))
            drawn.append((members, cuts))
        best = max(best, int(sizes.min()))
        if sizes.min() >= min_samples:
            pieces = [np.split(members, cuts) for members, cuts in drawn]
            return [np.sort(np.concatenate(part)) for part in zip(*pieces, strict=True)]
    raise UserError(
        f"no Dirichlet split with beta={beta} gave each of {clients} clients {min_samples} samples in "
        f"{MAX_TRIES} tries (best: {best}); a larger --beta, fewer --clients or a lower --min-samples"
    )


def iid(labels: npt.NDArray[np.integer], clients: int, seed: int, min_samples: int = 10) -> list[Indices]:
    """A random split into parts whose sizes differ by one at most."""
    _check_sizes(len(labels), clients, min_samples)
    order = generator(seed, "iid").permutation(len(labels))
    return [np.sort(part) for part in np.array_split(order, clients)]


def classes_per_client(
    labels: npt.NDArray[np.integer], clients: int, ways: int, std: int, shots: int, seed: int
) -> list[Indices]:
    """FedProto's n-way k-shot split: client i holds n_i ∈ [ways − std, ways + std] classes, uniform.

    Of each it has `shots` samples; 0: its even share of the class. No sample goes to two clients (with
    shots, some go to none). The classes are drawn again until the samples suffice, up to MAX_TRIES.
    """
    classes, totals = np.unique(labels, return_counts=True)
    if not 1 <= ways <= len(classes):
        raise UserError(f"--ways must be between 1 and the {len(classes)} classes, not {ways}")
    if clients * max(1, ways - std) * max(1, shots) > len(labels):
        raise UserError(
            f"{len(labels)} samples cannot give {clients} clients {max(1, shots)} of each of {ways} classes; "
            "fewer --clients, or lower --ways or --shots"
        )
    rng = generator(seed, "classes per client")
    for _ in range(MAX_TRIES):
        counts = rng.integers(max(1, ways - std), min(len(classes), ways + std) + 1, clients)
        held = [rng.permutation(len(classes))[:n] for n in counts]
        holders = np.bincount(np.concatenate(held), minlength=len(classes))
        if (holders * max(1, shots) <= totals).all():
            break
    else:
        raise UserError(
            f"no draw of {ways} ± {std} classes for each of {clients} clients in {MAX_TRIES} tries left "
            f"{max(1, shots)} samples for every holder of a class (the smallest has {totals.min()}); "
            "lower --shots, --ways or --clients"
        )
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for k, label in enumerate(classes):
        members = rng.permutation(np.flatnonzero(labels == label))
        owners = [i for i, mine in enumerate(held) if k in mine]
        if owners:
            pieces = np.array_split(members, len(owners))
            for j, owner in enumerate(owners):
                parts[owner].append(members[j * shots : (j + 1) * shots] if shots else pieces[j])
    return [np.sort(np.concatenate(part)) for part in parts]


def natural(sites: Indices, names: Sequence[str]) -> list[Indices]:
    """One client a site, in the order of `names`."""
    parts = [np.flatnonzero(sites == i) for i in range(len(names))]
    empty = [name for name, part in zip(names, parts, strict=True) if not len(part)]
    if empty:
        raise UserError(f"site {empty[0]} has no training images left; give it more, or remove it")
    return parts


def _check_sizes(samples: int, clients: int, min_samples: int) -> None:
    if clients * min_samples > samples:
        raise UserError(
            f"{samples} samples cannot give {clients} clients {min_samples} each; "
            "fewer --clients, or a lower --min-samples"
        )
