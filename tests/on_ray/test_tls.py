"""On a cluster that uses TLS, batches are encrypted too. It is a cluster of its own, in a program of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

from certificates import environment, new_certificate

PROGRAM = """
    import numpy as np, penstock, ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=2, node_ip_address="127.0.0.2")
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        rows = np.arange(100_000).reshape(1000, 100)
        given = {"batch_size": 4, "seed": 1, "shuffle": True}
        loader = penstock.DataLoader(rows, backend="ray", num_workers=2, ray_options={"patience": 60}, **given)
        batches = iter(loader)
        assert batches._engine.backend._door._tls is not None
        for found, expected in zip(batches, penstock.DataLoader(rows, **given), strict=True):
            assert np.array_equal(found, expected)
        loader.close()
    finally:
        ray.shutdown()
        cluster.shutdown()
    print("the same")
"""


def test_a_cluster_with_tls(tmp_path: Path) -> None:
    addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; the system chooses the address that Ray uses too
        addresses.add(probe.getsockname()[0])
    tls = new_certificate(tmp_path, "127.0.0.2", *sorted(addresses))
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
    env = {**os.environ, **environment(tls)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=110)
    assert done.stdout.endswith("the same\n"), done.stderr
