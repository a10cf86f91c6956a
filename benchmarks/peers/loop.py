"""FedAvg as a plain loop in one process: `python loop.py ROUNDS`."""

import torch
import torch.nn.functional as F
import work


def main() -> None:
    """Sample, train each client from the global model, average; no evaluation."""
    torch.set_num_threads(1)
    data, model, laps = work.clients(), work.Net(), work.Laps()
    for _ in range(work.rounds()):
        start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        total = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
        for k in torch.randperm(work.CLIENTS)[: work.COHORT].tolist():
            model.load_state_dict(start)
            optimizer = torch.optim.SGD(model.parameters(), lr=work.LR)
            x_NCHW, y_N = data[k]
            for rows in torch.randperm(work.SAMPLES).split(work.BATCH):
                optimizer.zero_grad()
                F.cross_entropy(model(x_NCHW[rows]), y_N[rows]).backward()
                optimizer.step()
            for name, tensor in model.state_dict().items():
                total[name] += tensor / work.COHORT
        model.load_state_dict(total)
        laps.lap()
    laps.tell()


main()
