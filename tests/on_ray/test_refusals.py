"""What a user is told if there is no cluster, no room, or something is missing on a node."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import penstock
from penstock.backends._ray.door import Door
from penstock.errors import WorkerLost
from penstock.testing._laws import same

from .conftest import Nodes, until


def on(dataset: Any, *args: Any, **given: Any) -> Any:
    return penstock.DataLoader(dataset, *args, **{"backend": "ray", "num_workers": 2, "seed": 1} | given)


def run(program: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_ray_init_an_error_says_so_and_no_cluster_is_started() -> None:
    said = run("""
        import penstock
        try:
            iter(penstock.DataLoader(range(9), num_workers=1, backend="ray"))
        except RuntimeError as error:
            print(error)
        import ray
        print(ray.is_initialized())
    """)
    assert "call ray.init(address=...) before" in said and said.endswith("False\n")


def test_after_ray_shutdown_an_error_says_so_and_no_cluster_is_started(nodes: Nodes) -> None:
    said = run(f"""
        import time, penstock, ray
        ray.init(address={nodes.cluster.address!r}, log_to_driver=False, logging_level="error")
        loader = penstock.DataLoader(range(10**6), num_workers=2, backend="ray")
        batches = iter(loader)
        next(batches)
        ray.shutdown()
        began = time.monotonic()
        try:
            for batch in batches:
                pass
        except RuntimeError as error:
            print(error)
        print("told" if time.monotonic() - began < 5 else "late")
        try:
            iter(loader)
        except RuntimeError as error:
            print(error)
        began = time.monotonic()
        loader.close()
        print("closed" if time.monotonic() - began < 2 else "late")
        print(ray.is_initialized())
    """)
    assert "Ray was shut down" in said and "\ntold\n" in said, said
    assert "call ray.init(address=...) before" in said and said.endswith("closed\nFalse\n"), said


def test_if_no_worker_has_room_the_error_names_what_is_wanted_and_free(nodes: Nodes) -> None:
    options = {"num_cpus": 2, "resources": {"unicorns": 1, "head": 1}, "patience": 1}
    with on(range(9), ray_options=options) as loader:
        began = time.monotonic()
        with pytest.raises(RuntimeError) as caught:
            next(iter(loader))
        assert 1 <= time.monotonic() - began < 5
    said = str(caught.value)
    assert "No worker has started on the cluster within 1 s. 2 workers wait for a place" in said
    assert "each needs 2 CPU, 1 unicorns, 1 head. Ray says that 12 of 12 CPU, 0 of 0 unicorns, 100 of 100 " in said
    assert "Use fewer workers" in said


def test_if_some_workers_have_room_there_is_one_warning_and_these_work(nodes: Nodes) -> None:
    options = {"resources": {"second": 60}, "patience": 3}
    with on(np.arange(50), 2, ray_options=options) as loader, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        expected = [batch.tolist() for batch in penstock.DataLoader(np.arange(50), 2)]
        until(lambda: [batch.tolist() for batch in loader] == expected and said, "it is warned")
        assert [batch.tolist() for batch in loader] == expected
    assert len(said) == 1
    text = str(said[0].message)
    assert "1 of 2 workers have not started" in text and "1 worker waits for a place: each needs 1 CPU, 60" in text


class Missing:
    """Its module is not on the nodes."""

    def __init__(self) -> None:
        self.here = os.getpid()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, key: int) -> int:
        return key

    def __setstate__(self, state: Any) -> None:
        if state["here"] != os.getpid():
            import no_such_module  # noqa: F401
        self.__dict__.update(state)


@pytest.mark.parametrize("given", [{}, {"on_error": "skip", "retries": 9}], ids=["", "with on_error and retries"])
def test_a_node_that_lacks_a_module_is_named_and_not_tried_again(nodes: Nodes, given: Any) -> None:
    with on(Missing(), ray_options={"patience": 30}, **given) as loader:
        began = time.monotonic()
        with pytest.raises(ModuleNotFoundError, match="no_such_module") as caught:
            list(loader)
        assert time.monotonic() - began < 5
        assert any("was started on node 1" in note for note in caught.value.__notes__)


def test_a_node_without_penstock_is_named(nodes: Nodes, tmp_path: Path) -> None:
    (tmp_path / "penstock").mkdir()
    (tmp_path / "penstock" / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'penstock'\")\n")
    options = {"runtime_env": {"env_vars": {"PYTHONPATH": str(tmp_path)}}, "patience": 30}
    with on(range(9), ray_options=options) as loader:
        with pytest.raises(ModuleNotFoundError, match="No module named 'penstock'") as caught:
            list(loader)
        assert any("was started on node 1" in note for note in caught.value.__notes__), caught.value.__notes__


def test_a_node_that_cannot_reach_the_driver_is_named(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Door, "address", property(lambda door: (ray.util.get_node_ip_address(), 1)))
    said = r"cannot reach the driver at [\d.]+, port 1 \(.*refused"
    with on(range(9), ray_options={"patience": 30}) as loader, pytest.raises(ConnectionError, match=said):
        list(loader)


def test_a_step_that_kills_its_actors_names_worker_node_samples_and_what_ray_says(nodes: Nodes) -> None:
    def sample(key: int) -> int:
        if key == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        return key

    with on(penstock.testing._sources.FunctionDataset(8, sample), 2, retries=1) as loader:
        batches = iter(loader)
        assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(WorkerLost, match=r"worker \d \(pid \d+ on [\d.]+\) died while filling step 2") as caught:
            next(batches)
        print(caught.value)
        assert "Samples in the step: [4, 5]" in str(caught.value)
        assert next(batches).tolist() == [6, 7]


def test_who_does_not_have_the_token_is_dropped_and_counted(nodes: Nodes) -> None:
    with on(np.arange(40)) as loader:
        batches: Any = iter(loader)
        backend = batches._engine.backend
        host, port = backend._door.address
        assert host == ray.util.get_node_ip_address()
        with socket.create_connection((host, port), 10) as sock:
            sock.sendall(b"x" * 32)
            assert sock.recv(1) == b""
        until(lambda: backend._door.refused == 1, "it is counted")
        assert len(list(batches)) == 40


def test_options_are_those_of_actors(nodes: Nodes) -> None:
    options = {"resources": {"second": 1}, "runtime_env": {"env_vars": {"PENSTOCK_FLAVOUR": "salty"}}, "patience": 60}
    dataset = penstock.testing._sources.FunctionDataset(4, lambda key: os.environ.get("PENSTOCK_FLAVOUR", "none"))
    with on(dataset, batch_size=None, ray_options=options) as loader:
        assert list(loader) == ["salty"] * 4
        assert {worker.node for worker in loader.workers if worker.node} == {"127.0.0.2"}


def test_the_torch_face(nodes: Nodes) -> None:
    torch = pytest.importorskip("torch")
    from penstock.torch import DataLoader

    data = torch.arange(40).reshape(20, 2)
    expected = [batch.tolist() for batch in DataLoader(data, 3, shuffle=True, seed=5)]
    options = {"patience": 60}
    loader = DataLoader(data, 3, shuffle=True, seed=5, num_workers=2, backend="ray", ray_options=options)
    batches = list(loader)
    assert [batch.tolist() for batch in batches] == expected
    batches[0][:] = 0  # writable, as always
    assert {worker.node for worker in loader.stats().epoch.workers if worker.node}
    with pytest.raises(ValueError, match="backend='ray' needs seed=: without it workers are processes of this"):
        DataLoader(data, num_workers=2, backend="ray")
    del loader, batches


def test_a_number_of_workers_that_is_found_stays_within_the_cluster(nodes: Nodes) -> None:
    def sample(key: int) -> int:
        time.sleep(0.004)
        return key

    options = {"resources": {"head": 30}, "patience": 60}
    dataset = penstock.testing._sources.FunctionDataset(1500, sample)
    with on(dataset, 4, num_workers="auto", ray_options=options) as loader:
        same([batch.tolist() for batch in loader], [[4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3] for i in range(375)])
        assert 2 <= loader.num_workers <= 3  # 100 heads
        assert max(decision.workers for decision in loader.stats().decisions) == 3
