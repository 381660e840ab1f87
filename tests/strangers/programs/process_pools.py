# launch: python SCRIPT
# launch: python -m MODULE
"""concurrent.futures ran before the loader, and is still there; the dataset is a closure."""

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np

import penstock


def square(i):
    return i * i


def main():
    with ProcessPoolExecutor(2) as processes, ThreadPoolExecutor(4) as threads:
        assert list(processes.map(square, range(8))) == list(threads.map(square, range(8)))
        table = np.arange(100)

        class Table:
            def __len__(self):
                return len(table)

            def __getitem__(self, i):
                return table[i] * 2

        got = np.concatenate(list(penstock.DataLoader(Table(), batch_size=10, num_workers=2)))
        assert (got == table * 2).all()
        assert list(processes.map(square, range(8))) == [i * i for i in range(8)]


if __name__ == "__main__":
    main()
    print("ok")
