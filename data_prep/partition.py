"""Which client holds which training sample. Every draw comes from PCG64, keyed by (seed, purpose).

N samples, m clients, K classes; a partition is a list of m index arrays, each sample in exactly one.
"""

import hashlib

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
    """The split of NIID-Bench, MOON and FedProc (FACTS: partition).

    Per class, shares p ~ Dir(β) over the clients; clients that hold N/m samples or more get none of
    it; the class is cut at the truncated cumulative shares. The whole split is drawn again until every
    client has `min_samples`. Raises UserError when that cannot be, or was not reached.
    """
    if not beta > 0:
        raise UserError(f"--beta must be above 0, not {beta}")
    if clients * min_samples > len(labels):
        raise UserError(
            f"{len(labels)} samples cannot give {clients} clients {min_samples} each; "
            "fewer --clients, or a lower --min-samples"
        )
    rng = generator(seed, "dirichlet")
    best = 0
    for _ in range(MAX_TRIES):
        parts: list[list[Indices]] = [[] for _ in range(clients)]
        sizes = np.zeros(clients, np.int64)
        for k in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == k))
            shares = rng.dirichlet(np.full(clients, beta)) * (sizes < len(labels) / clients)
            if not shares.sum() > 0:  # at a tiny β the open clients' shares can underflow to 0
                shares = (sizes < len(labels) / clients).astype(float)
            cuts = (np.cumsum(shares / shares.sum()) * len(members)).astype(np.int64)[:-1]
            pieces = np.split(members, cuts)
            for part, piece in zip(parts, pieces, strict=True):
                part.append(piece)
            sizes += [len(piece) for piece in pieces]
        best = max(best, int(sizes.min()))
        if sizes.min() >= min_samples:
            return [np.sort(np.concatenate(part)) for part in parts]
    raise UserError(
        f"no Dirichlet split with beta={beta} gave each of {clients} clients {min_samples} samples in "
        f"{MAX_TRIES} tries (best: {best}); a larger --beta, fewer --clients or a lower --min-samples"
    )


def stratified_split(
    labels: npt.NDArray[np.integer], test_share: float, seed: int
) -> tuple[Indices, Indices]:
    """(train, test) indices, ascending; of each class round(share·n) samples go to the test set."""
    rng = generator(seed, "train/test split")
    test = [
        rng.permutation(np.flatnonzero(labels == k))[: round(test_share * int((labels == k).sum()))]
        for k in np.unique(labels)
    ]
    test_rows = np.sort(np.concatenate(test))
    return np.setdiff1d(np.arange(len(labels)), test_rows), test_rows


def client_test_rows(
    labels: npt.NDArray[np.integer],
    partition: list[Indices],
    test_labels: npt.NDArray[np.integer],
    num_classes: int,
    seed: int,
) -> list[Indices]:
    """For each client rows of the global test set in the client's own class mix.

    As many as the client has training samples, or as the scarcest class of its mix allows; at least one
    of each class it holds that the test set has.
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
        size = min(len(part), float((available[held] / mix[held]).min()))
        wanted = np.where(held, np.maximum(1, np.floor(size * mix + 1e-9)), 0).astype(int)
        rng = generator(seed, "client test rows", i)
        drawn = [rng.permutation(by_class[k])[: wanted[k]] for k in np.flatnonzero(held)]
        result.append(np.sort(np.concatenate(drawn)))
    return result
