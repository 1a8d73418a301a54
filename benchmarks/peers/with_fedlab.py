"""FedLab's standalone simulation: its FedAvg with the serial trainer, one process."""

import sys
from unittest.mock import MagicMock

for name in (
    "torchvision",
    "torchvision.transforms",
):  # for FedLab's data sets only, which are not used here
    sys.modules[name] = MagicMock()

import torch
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from torch.utils.data import DataLoader, TensorDataset
from peer_task import BATCH, LR, Bench, Net, task, tensors


class Data:
    """What FedLab asks of a federation's data."""

    def __init__(self, clients: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.clients = [TensorDataset(*client) for client in clients]

    def get_dataloader(self, id: int, batch_size: int) -> DataLoader:
        return DataLoader(self.clients[id], batch_size=batch_size)


class Quiet:
    def info(self, *_: object) -> None:
        pass


def main() -> None:
    wanted = task()
    net = Net(wanted.hidden)
    server = FedAvgServerHandler(net, 10**9, 1.0, logger=Quiet())
    server.num_clients = wanted.clients
    trainer = FedAvgSerialClientTrainer(net, wanted.clients, logger=Quiet())
    trainer.setup_dataset(Data(tensors(wanted)))
    trainer.setup_optim(1, BATCH, LR)
    trainer.criterion = torch.nn.BCEWithLogitsLoss()
    for _ in Bench().rounds():
        trainer.local_process(server.downlink_package, server.sample_clients())
        for package in trainer.uplink_package:
            server.load(package)


if __name__ == "__main__":
    main()
