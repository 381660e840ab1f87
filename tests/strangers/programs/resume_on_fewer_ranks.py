# needs: torch
# seconds: 180
"""A run of two ranks under torchrun is stopped, and continued on one: each sample of the epoch comes once."""

import json
import os
import subprocess
import sys

STATE = "checkpoint.json"


def train():
    import torch
    import torch.distributed as dist

    from penstock.torch import DataLoader

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    data = torch.utils.data.TensorDataset(torch.arange(100))
    loader = DataLoader(
        data, batch_size=4, shuffle=True, seed=3, shard="auto", num_workers=2, persistent_workers=True
    )
    if os.path.exists(STATE):
        with open(STATE) as file:
            loader.load_state_dict(json.load(file))
    seen = []
    for step, (x,) in enumerate(loader):
        seen += x.tolist()
        if world == 2 and step == 4:
            break
    dist.barrier()  # both have read the state, or there was none
    if rank == 0:
        with open(STATE, "w") as file:
            json.dump(loader.state_dict(), file)
    with open(f"seen-{world}-{rank}.json", "w") as file:
        json.dump(seen, file)
    dist.destroy_process_group()


if "RANK" in os.environ:
    train()
else:
    for ranks in ("2", "1"):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks, __file__]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    seen = []
    for name in ("seen-2-0.json", "seen-2-1.json", "seen-1-0.json"):
        with open(name) as file:
            seen += json.load(file)
    assert sorted(seen) == list(range(100)), seen
    print("ok")
