# quick
"""Two threads of a server, each with its own epoch of one loader; and inline loaders that use random numbers."""

import random
import threading

import numpy as np

import penstock

shared = penstock.DataLoader(np.arange(3000), batch_size=3, num_workers=2, seed=1)
failures = []


class Random:
    def __len__(self):
        return 40

    def __getitem__(self, i):
        return np.random.random() + random.random()


def serve():
    try:
        for _ in range(3):
            assert sum(int(batch.sum()) for batch in shared) == sum(range(3000))
        for _ in penstock.DataLoader(Random(), batch_size=4, seed=0):
            pass
    except BaseException as error:
        failures.append(error)


random.seed(5), np.random.seed(5)
threads = [threading.Thread(target=serve) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not failures, failures
drawn = random.random(), np.random.random()
random.seed(5), np.random.seed(5)
assert drawn == (random.random(), np.random.random()), "the loaders have moved my generators"
print("ok")
