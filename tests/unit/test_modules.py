"""Modules that a fresh interpreter cannot import: what they define is sent by value, and keeps its identity."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import types
from pathlib import Path

import cloudpickle
import pytest

from penstock._wire.modules import is_importable
from penstock._wire.pickling import dumps

FURTHER = """
OFFSET = 100

class Thing:
    def __init__(self, value):
        self.value = value

class Wrong(Exception):
    pass

def thing(key):
    if key == 7:
        raise Wrong(key)
    return Thing(key + OFFSET)
"""

PROGRAM = """
import importlib.util, multiprocessing, os, sys, types, xml
import penstock

class Key(int):
    pass

class Data:
    def __init__(self, modules):
        self.modules, self.makers = modules, [module.thing for module in modules]

    def __getitem__(self, key):
        return key, self.makers[key](int(key)), self.modules[key].Thing(int(key) + 100)

def load(folder):
    assert Data.__module__ == "__mp_main__"
    path = os.path.join(folder, "further.py")
    modules = []
    for name in ("further", "colorsys", "xml.further"):  # colorsys: also the name of a module that can be imported
        spec = importlib.util.spec_from_file_location(name, path)
        modules.append(importlib.util.module_from_spec(spec))
        sys.modules[name] = modules[-1]
        spec.loader.exec_module(modules[-1])
    modules.append(types.ModuleType("made"))
    sys.modules["made"] = modules[-1]
    with open(path) as file:
        exec(file.read(), modules[-1].__dict__)
    data = Data(modules)
    keys = [Key(key) for key in range(len(modules))]
    with penstock.DataLoader(
        data, batch_size=1, sampler=keys, num_workers=1, collate_fn=list, multiprocessing_context=METHOD, timeout=60
    ) as loader:
        found = [sample for batch in loader for sample in batch]
    assert [key for key, *_ in found] == keys and {type(key) for key, *_ in found} == {Key}
    for module, (key, *things) in zip(modules, found):
        assert [type(one) is module.Thing for one in things] == [True, True], module
        assert [one.value for one in things] == [key + 100, key + 100]
    data.makers = [lambda key, thing=data.makers[0]: thing(7)]
    with penstock.DataLoader(data, sampler=[0], num_workers=1, multiprocessing_context=METHOD) as loader:
        try:
            list(loader)
        except modules[0].Wrong:
            print("loaded", flush=True)

METHOD = sys.argv[2]
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=load, args=(sys.argv[1],))
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_have_what_only_the_program_has(tmp_path: Path, method: str) -> None:
    """In a process that multiprocessing has spawned, as for DDP: there its script is `__mp_main__`."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "further.py").write_text(FURTHER)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, str(program), str(folder), method],
        capture_output=True,
        text=True,
        cwd="/",
        env=environment,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "loaded\n", "")


def test_modules_on_the_path_are_importable_and_no_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("json", "json.decoder", "os.path", "sys", "_frozen_importlib", "numpy.random.mtrand", __name__):
        assert is_importable(name), name
    for name in ("__main__", "__mp_main__", "made", "made.inner"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        assert not is_importable(name)
    assert not is_importable("no_such_module")
    made_by_its_package = types.ModuleType("json.made")
    monkeypatch.setitem(sys.modules, "json.made", made_by_its_package)
    assert is_importable("json.made")
    (tmp_path / "placed.py").write_text("")
    spec = importlib.util.spec_from_file_location("placed", tmp_path / "placed.py")
    assert spec is not None
    monkeypatch.setitem(sys.modules, "placed", importlib.util.module_from_spec(spec))
    assert not is_importable("placed")
    monkeypatch.syspath_prepend(tmp_path)
    assert is_importable("placed")


def test_cloudpickles_own_list_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    made = types.ModuleType("made")
    exec("def function():\n    return 1", made.__dict__)
    monkeypatch.setitem(sys.modules, "made", made)
    before = cloudpickle.list_registry_pickle_by_value()
    sent = dumps([made.function, made], by_value=True, fresh=True)
    assert cloudpickle.list_registry_pickle_by_value() == before
    monkeypatch.delitem(sys.modules, "made")
    function, module = cloudpickle.loads(sent)
    assert function() == module.function() == 1
