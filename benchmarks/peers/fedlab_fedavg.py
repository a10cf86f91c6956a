"""FedAvg by FedLab's standalone simulation: `python fedlab_fedavg.py ROUNDS`. Package: fedlab."""

from typing import Any

import torch
import work
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline
from fedlab.utils import Logger
from torch.utils.data import DataLoader, TensorDataset


class Data:
    """What the trainer asks for a client's batches."""

    def __init__(self) -> None:
        self._clients = [TensorDataset(*pair) for pair in work.clients()]

    def get_dataloader(self, k: int, batch_size: int) -> Any:
        """A client's batches, shuffled."""
        return DataLoader(self._clients[k], batch_size, shuffle=True)


class Pipeline(StandalonePipeline):  # type: ignore[misc]
    """Notes the end of each round in place of an evaluation."""

    laps = work.Laps()

    def evaluate(self) -> None:
        """Called by FedLab after each round."""
        self.laps.lap()


def main() -> None:
    """One process; no evaluation."""
    torch.set_num_threads(1)
    trainer = SGDSerialClientTrainer(work.Net(), work.CLIENTS, logger=Logger())
    trainer.setup_dataset(Data())
    trainer.setup_optim(1, work.BATCH, work.LR)
    pipeline = Pipeline(SyncServerHandler(work.Net(), work.rounds(), work.COHORT / work.CLIENTS), trainer)
    pipeline.main()
    pipeline.laps.tell()


main()
