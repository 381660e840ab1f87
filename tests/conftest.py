"""What every test is held to: nothing is left behind (law 6). And the tests that `make wide` and `make quiet` run."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from penstock._measure import cached
from penstock.backends._process import methods
from tests.programs import Begin, forge, programs

# pytest has the tracebacks of crashes written to its own output, past every capture. Workers that a test crashes are
# forked, and must not write theirs there: "Fatal Python error" has no place in the output of a run that passes.
LINUX = sys.platform == "linux"  # elsewhere, only tests of tests/elsewhere/core.py run
if LINUX:
    os.register_at_fork(after_in_child=faulthandler.disable)

DEEP = not {"PENSTOCK_DEEP", "PENSTOCK_WIDE"}.isdisjoint(os.environ)

# Laws that say nothing else try 25 examples in `make test`, 40 in `make deep`, and 100 in `make wide` and where bugs
# are planted.
# The examples are the same in each run of CI (hypothesis does that), and others in each run elsewhere.
if find_spec("hypothesis") is not None:  # the environments of whole programs have none
    from hypothesis import settings

    _examples = int(os.environ.get("PENSTOCK_EXAMPLES", 100 if "PENSTOCK_WIDE" in os.environ else 40 if DEEP else 25))
    settings.register_profile("penstock", settings(), max_examples=_examples)
    settings.load_profile("penstock")

# A shell that starts us in the background, or nohup, has us ignore these, and so would the programs that tests end.
for _name, _handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    _number = getattr(signal, _name, signal.SIGINT)  # Windows has no SIGHUP
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


# A loader that has run for a second has one, for `penstock top`, until it is closed or gone. On a busy machine,
# that is any loader to which the test, or an error that it caught, still refers. tests/unit/test_page.py tests pages.
PAGE = "memfd:penstock-loader"


def descriptors() -> Counter[str]:
    """What this process has open that a loader might have opened, by kind."""
    found: Counter[str] = Counter()
    for entry in os.scandir("/proc/self/fd"):
        try:
            target = os.readlink(entry.path)
        except FileNotFoundError:
            continue
        if PAGE in target:
            continue
        kind = target.split(":")[0]
        if kind in ("pipe", "socket", "anon_inode") or "memfd" in target:
            found["memfd" if "memfd" in target else target if kind == "anon_inode" else kind] += 1
        elif is_shared_memory_with_a_name(target):
            found["/dev/shm"] += 1
    return found


def children() -> list[str]:
    """The child processes of this one, zombies included."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []  # almost always: it is not worth reading a file for each thread
    pids: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        try:
            pids += (task / "children").read_text().split()
        except FileNotFoundError:
            continue
    return pids


def is_shared_memory_with_a_name(path: str) -> bool:
    """But for that of torch, and of Python, which is not ours."""
    name = path.removeprefix("/dev/shm/")
    return name != path and not name.startswith(("sem.mp-", "torch_", "psm_"))


_counted = ("", 0)


def mappings() -> int:
    """How many pieces of shared memory are mapped here that penstock may have made."""
    global _counted
    # To read the list of all mappings takes longer than most tests: it is read only if their size has changed.
    with open("/proc/self/statm") as file:
        size = file.read().split()[0]
    if size != _counted[0]:
        maps = Path("/proc/self/maps").read_text()
        named = [line for line in maps.splitlines() if "/dev/shm/" in line] if "/dev/shm/" in maps else []
        paths = [line[line.index("/dev/shm/") :] for line in named]
        slabs = maps.count("memfd:penstock") - maps.count(PAGE)
        _counted = size, slabs + sum(map(is_shared_memory_with_a_name, paths))
    return _counted[1]


def names() -> set[str]:
    """Names in /dev/shm that are ours, except those of the fuzzer and of hostile neighbours, which may run beside."""
    found = (name for name in os.listdir("/dev/shm") if "penstock" in name)
    return {name for name in found if not name.startswith("penstock-fuzz-") and not name.endswith("-stranger")}


def belongings() -> tuple[Counter[str], set[str], int, set[str]]:
    return descriptors(), set(children()), mappings(), names()


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    if not LINUX:
        yield
        return
    before = belongings()
    yield
    after = belongings()
    if after != before:
        gc.collect()  # only now: it costs more than most tests
        after = belongings()
    assert not after[0] - before[0], "open file descriptors"
    assert not after[1] - before[1], "child processes"
    assert after[2] <= before[2], "mapped shared memory"
    assert not after[3] - before[3], "names in /dev/shm"


@pytest.fixture(autouse=True)
def the_runners_threads_do_not_count() -> None:
    """pytest's watchdog and xdist's receiver are threads: beside them, no loader would fork unless told to."""
    if not LINUX:
        return
    before = set(os.listdir("/proc/self/task"))
    methods.survives_fork = lambda: set(os.listdir("/proc/self/task")) <= before  # until the next test


class ModuleOfTests(pytest.Module):
    """A module of tests, which is skipped as a whole if it imports torch and torch is not installed."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            cause: BaseException | None = error
            while cause is not None:
                if isinstance(cause, ModuleNotFoundError) and str(cause.name).split(".")[0] == "torch":
                    pytest.skip("torch is not installed", allow_module_level=True)
                cause = cause.__cause__
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return ModuleOfTests.from_parent(parent, path=module_path)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [name for name in ("wide", "quiet") if f"PENSTOCK_{name.upper()}" not in os.environ]
    left_out += [] if DEEP else ["deep"]
    others = {item: None for item in items if any(item.get_closest_marker(name) for name in left_out)}
    config.hook.pytest_deselected(items=list(others))
    items[:] = [item for item in items if item not in others]
    # Last, what imports torch: a process that has not imported it forks in half the time. And mypy: `make lint` runs
    # at the same time, and has filled its cache by then.
    late = {item for item in items if item.get_closest_marker("imports_torch") or imports_torch(item)}
    items.sort(key=lambda item: (item.path.parent.name == "typing", item in late))
    if find_spec("torch") is None:
        for item in items:
            if item.get_closest_marker("imports_torch"):
                item.add_marker(pytest.mark.skip("torch is not installed"))


def imports_torch(item: pytest.Item) -> bool:
    """Whether the function of a test has `import torch` or `importorskip("torch")` in it."""
    function = getattr(item, "function", None)
    inner = getattr(getattr(function, "hypothesis", None), "inner_test", function)
    code = getattr(inner, "__code__", None)
    return code is not None and not {"torch", "penstock.torch"}.isdisjoint((*code.co_names, *code.co_consts))


def pytest_collection_finish(session: pytest.Session) -> None:
    # By value: else each fresh interpreter imports the test's module for a dataset, and pytest with it. Those in
    # `sources` travel by reference, as a user's do.
    modules = {item.module for item in session.items if isinstance(item, pytest.Function)}
    for module in modules:
        if Path(module.__file__).parent.name in ("conformance", "faults", "on_ray"):
            cloudpickle.register_pickle_by_value(module)
    set_aside()
    if LINUX:
        use_huge_pages()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Without torch, a test that has imported penstock.torch by its name is skipped there."""
    try:
        return (yield)
    except ImportError as error:
        if find_spec("torch") is None and str(error).startswith("penstock.torch needs torch"):
            pytest.skip("torch is not installed")
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    result = yield
    if nextitem is None or nextitem.path != item.path:
        set_aside()
    return result


def set_aside() -> None:
    """What is there now stays: no collection of garbage, here or in a forked worker, looks at it again.

    Without this, a collection takes longer with each test that has run, up to half a second.
    """
    gc.collect()
    gc.freeze()


def use_huge_pages() -> None:
    """Puts the memory of this process in pages of 2 MB where the system can: a fork then copies far fewer entries."""
    madvise, collapse = ctypes.CDLL(None).madvise, 25  # MADV_COLLAPSE
    for line in Path("/proc/self/maps").read_text().splitlines():
        where, access, *_, inode = line.split()[:5]
        if access == "rw-p" and inode == "0":
            start, end = (int(number, 16) >> 21 for number in where.split("-"))
            for page in range(start + 1, end):
                madvise(ctypes.c_void_p(page << 21), ctypes.c_size_t(1 << 21), collapse)


@pytest.fixture(scope="session")
def penstock_forge() -> Iterator[socket.socket]:
    with forge("import penstock") as control:
        yield control


@pytest.fixture(scope="session")
def torch_forge() -> Iterator[socket.socket]:
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    with forge("import torch, penstock.torch") as control:
        yield control


@pytest.fixture
def begin(penstock_forge: socket.socket, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Begin]:
    """Begins programs that have imported penstock, and start with the PREAMBLE of the test's module if it has one."""
    with programs(penstock_forge, tmp_path, getattr(request.module, "PREAMBLE", "")) as begins:
        yield begins


@pytest.fixture
def begin_torch(torch_forge: socket.socket, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Begin]:
    """Like `begin`, and they have imported penstock.torch too."""
    with programs(torch_forge, tmp_path, getattr(request.module, "PREAMBLE", "")) as begins:
        yield begins


@pytest.fixture(scope="session")
def warmed_up() -> None:
    """The forkserver of the stand-in for Ray, which stays until the tests end: no test has left it behind."""
    import standin

    standin.warm_up()


@pytest.fixture
def cluster(warmed_up: None) -> Iterator[Any]:
    """A stand-in for a Ray cluster: see standin.py."""
    import standin

    cluster = standin.LocalCluster()
    with standin.standing_in(cluster) as cluster.made:
        yield cluster


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> cached.CacheCounts:
    """What the test has counted of caches and stores, outside of loaders."""
    counts = cached.CacheCounts()
    monkeypatch.setattr(cached, "outside", counts)
    return counts
