"""Without the GIL: importing penstock does not turn the GIL on, and the whole of it works that way."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import subprocess
import sys
import sysconfig

import pytest

import penstock

FREE = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
pytestmark = pytest.mark.skipif(not FREE, reason="needs Python without the GIL: make group NAME=free")

PUBLIC = sorted(
    module.name
    for module in pkgutil.walk_packages(penstock.__path__, "penstock.")
    if "._" not in module.name and module.name != "penstock.__main__"
)
# The libraries that have no wheel for this Python, and the modules that import them.
NEED = {"penstock.torch": "torch", "penstock.image": "cv2"}

_IMPORT = """
import importlib, sys
assert not sys._is_gil_enabled(), "this Python was started with the GIL"
importlib.import_module(sys.argv[1])
assert not sys._is_gil_enabled(), "the import has turned the GIL on"
"""


@pytest.mark.parametrize("name", ["penstock", *PUBLIC])
def test_no_import_of_penstock_turns_the_gil_on(name: str) -> None:
    if name in NEED and importlib.util.find_spec(NEED[name]) is None:
        pytest.skip(f"{NEED[name]} is not installed")
    # A warning says so, too, and would be an error.
    done = subprocess.run([sys.executable, "-W", "error", "-c", _IMPORT, name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


_EPOCHS = """
import sys
import penstock
assert __name__ == "__main__"
for settings in ({}, {"num_workers": 2, "backend": "thread"}, {"num_workers": 2, "backend": "process"}):
    loader = penstock.DataLoader(range(1000), batch_size=10, shuffle=True, seed=1, **settings)
    print([batch.tolist() for batch in loader] == [batch.tolist() for batch in loader], sum(map(len, loader)))
    str(loader.stats())
    loader.close()
assert not sys._is_gil_enabled()
"""


def test_nothing_that_a_loader_imports_later_turns_the_gil_on() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", _EPOCHS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "1000"] * 3  # another order in each epoch


def test_the_tests_run_without_the_gil() -> None:
    assert not sys._is_gil_enabled()
