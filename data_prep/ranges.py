"""The range of the pixels of each client and of the test set, gathered piece by piece."""

from collections.abc import Sequence

from fedproc_mpi.shards import Images, client_label

NARROW = 64  # images whose pixels span less are all but black, white or grey: 0…1, or a constant


class Ranges:
    """Least and greatest value, of each of m clients and of the test set."""

    def __init__(self, num_clients: int) -> None:
        self._ranges = [(255, 0)] * (num_clients + 1)  # the last one is the test set's

    def client(self, i: int, x_NHWC: Images) -> None:
        """Take in images of client i."""
        low, high = self._ranges[i]
        self._ranges[i] = min(low, int(x_NHWC.min())), max(high, int(x_NHWC.max()))

    def test(self, x_NHWC: Images) -> None:
        """Take in images of the test set."""
        self.client(-1, x_NHWC)

    @property
    def low(self) -> int:
        """The least value of all clients, the test set left out."""
        return min(low for low, _ in self._ranges[:-1])

    @property
    def high(self) -> int:
        """The greatest."""
        return max(high for _, high in self._ranges[:-1])

    def suspicious(self, client_names: Sequence[str]) -> str:
        """In words, whose pixels use the least of 0…255, where that is too little; '' where none is."""
        *clients, (low, high) = self._ranges
        if high - low < NARROW:
            return f"that is the test set: {low}…{high}; images should use 0…255"
        narrow = [i for i, (low, high) in enumerate(clients) if high - low < NARROW]
        if not narrow:
            return ""
        worst = min(narrow, key=lambda i: clients[i][1] - clients[i][0])
        who = f"{len(narrow)} of {len(clients)} clients, the worst" if len(narrow) > 1 else "that"
        low, high = clients[worst]
        return f"{who} is {client_label(worst, client_names)}: {low}…{high}; images should use 0…255"
