# needs: torch
# seconds: 120
"""DDP as torch's tutorial has it: mp.spawn, gloo, and the dataset is a class of this script."""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

import penstock


class Squares:
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.tensor([float(i)]), torch.tensor([float(i) ** 2])


def train(rank, world, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=world)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-5)
    loader = penstock.DataLoader(Squares(), batch_size=4, num_workers=2, seed=0, shuffle=True, shard=(rank, world))
    seen = []
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(torch.as_tensor(x)), torch.as_tensor(y)).backward()
        optimizer.step()
        seen += torch.as_tensor(x).flatten().int().tolist()
    everybody = [None] * world
    dist.all_gather_object(everybody, seen)
    assert sorted(sum(everybody, [])) == list(range(64))
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(train, args=(2, port), nprocs=2)
    print("ok")
