# needs: pyarrow
# seconds: 120
"""Two runs with other seeds read one Parquet file at the same time, in block order."""

import os
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import penstock

FILE = "table.parquet"


def train(seed):
    data = penstock.formats.Parquet(FILE)
    loader = penstock.DataLoader(data, batch_size=64, shuffle="blocks", seed=seed, num_workers=2)
    for _ in range(2):
        seen = np.concatenate([batch["id"] for batch in loader])
        assert sorted(seen) == list(range(64_000))
    loader.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(int(sys.argv[1]))
    else:
        table = pa.table({"id": np.arange(64_000), "x": np.random.rand(64_000)})
        pq.write_table(table, FILE, row_group_size=500)
        began = time.monotonic()
        train(0)
        alone = time.monotonic() - began
        other = subprocess.Popen([sys.executable, os.path.abspath(__file__), "1"])
        began = time.monotonic()
        train(0)
        both = time.monotonic() - began
        assert other.wait() == 0
        assert both < 10 * alone + 10, f"{both:.1f} s beside another program, {alone:.1f} s alone"
        print("ok")
