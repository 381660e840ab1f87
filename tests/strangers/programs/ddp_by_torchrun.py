# needs: torch
# seconds: 120
# launch: env OMP_NUM_THREADS=1 torchrun --standalone --nproc-per-node 2 SCRIPT
"""The same under torchrun: the ranks are found by themselves."""

import torch
import torch.distributed as dist

import penstock


class Squares:
    def __len__(self):
        return 60

    def __getitem__(self, i):
        return torch.tensor([i]), torch.tensor([i**2])


dist.init_process_group("gloo")
loader = penstock.DataLoader(Squares(), batch_size=4, num_workers=1, seed=0, shuffle=True, shard="auto")
seen = [int(i) for x, _ in loader for i in torch.as_tensor(x).flatten()]
everybody = [None] * dist.get_world_size()
dist.all_gather_object(everybody, seen)
assert set(sum(everybody, [])) == set(range(60))
assert len({len(part) for part in everybody}) == 1
dist.destroy_process_group()
