"""FedAvg by Flower's simulation, two actors of one CPU each: `python flower_fedavg.py ROUNDS`.

Package: flwr[simulation].
"""

import sys
from typing import Any

import flwr
import torch
import torch.nn.functional as F
from flwr.client import ClientApp, NumPyClient
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation

sys.path.insert(0, __file__.rpartition("/")[0])
import work

ROUNDS = work.rounds()
DATA: list[Any] = []


class Client(NumPyClient):  # type: ignore[misc]
    """One client's local epoch."""

    def __init__(self, k: int) -> None:
        self._k = k

    def fit(self, parameters: Any, config: Any) -> Any:
        """Called by Flower."""
        torch.set_num_threads(1)
        if not DATA:
            DATA.extend(work.clients())
        model = work.Net()
        names = list(model.state_dict())
        model.load_state_dict({n: torch.from_numpy(p) for n, p in zip(names, parameters, strict=True)})
        optimizer = torch.optim.SGD(model.parameters(), lr=work.LR)
        x_NCHW, y_N = DATA[self._k]
        for rows in torch.randperm(work.SAMPLES).split(work.BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(x_NCHW[rows]), y_N[rows]).backward()
            optimizer.step()
        return [tensor.numpy() for tensor in model.state_dict().values()], work.SAMPLES, {}


def main() -> None:
    """Rounds are timed by the calls of the server's aggregation; no evaluation."""
    laps = work.Laps()

    class Timed(FedAvg):  # type: ignore[misc]
        """Notes the end of each round."""

        def aggregate_fit(self, *arguments: Any) -> Any:
            """Called by Flower."""
            found = super().aggregate_fit(*arguments)
            laps.lap()
            return found

    def server(context: Any) -> Any:
        weights = [tensor.numpy() for tensor in work.Net().state_dict().values()]
        strategy = Timed(
            fraction_fit=work.COHORT / work.CLIENTS,
            fraction_evaluate=0.0,
            min_available_clients=work.CLIENTS,
            initial_parameters=flwr.common.ndarrays_to_parameters(weights),
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=ROUNDS))

    def client(context: Any) -> Any:
        return Client(int(context.node_config["partition-id"])).to_client()

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(ServerApp(server_fn=server), ClientApp(client), work.CLIENTS, backend_config=resources)
    laps.tell()


main()
