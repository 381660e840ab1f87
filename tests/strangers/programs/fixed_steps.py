# quick
"""A training loop by steps: a new iterator whenever the old one has given its len(loader) batches."""

import multiprocessing

import numpy as np

import penstock

loader = penstock.DataLoader(np.arange(40), batch_size=4, shuffle=True, num_workers=2, seed=3)
steps = len(loader)
workers = set()
for epoch in range(3):
    batches = iter(loader)
    seen = [int(i) for _ in range(steps) for i in next(batches)]
    assert sorted(seen) == list(range(40))
    workers |= {child.pid for child in multiprocessing.active_children()}
assert len(workers) == 2, f"{len(workers)} workers for num_workers=2"
print("ok")
