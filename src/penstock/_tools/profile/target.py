"""Imports objects named on the command line, such as `module:dataset` or `train.py:dataset`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

SIZED = ("__getitem__", "__getitems__", "__iter__")
"""A dataset has at least one of these methods. A function that makes a dataset has none of them."""


class TargetError(Exception):
    """Raised if a command-line argument cannot be used. The message says what to do."""


def dataset(name: str) -> Any:
    """Returns the dataset with this name. A class or function with this name is called without arguments."""
    found = target(name)
    if isinstance(found, (type, partial)) or inspect.isroutine(found):
        check_arguments(found, name)
        try:
            found = found()
        except Exception as error:
            error.add_note(
                f"penstock profile: this was raised by {name}(), which is called without arguments. If the dataset "
                "needs some, write a function without arguments that returns the dataset, and name that function."
            )
            raise
    if not any(hasattr(found, each) for each in SIZED):
        raise TargetError(
            f"{name} is not a dataset: it is of type {type(found).__name__}, which has neither __getitem__ nor "
            "__iter__. Name the dataset, or a class or function that makes it."
        )
    return found


def check_arguments(maker: Any, name: str) -> None:
    """Raises TargetError if `maker` cannot be called without arguments."""
    try:
        signature = inspect.signature(maker)
    except ValueError:  # the signature of a class or function in C is unknown
        return
    try:
        signature.bind()
    except TypeError as error:
        raise TargetError(
            f"{name} is called without arguments, but needs some: {error}. Write a function without any "
            "that returns the object, and name that function."
        ) from None


def target(name: str) -> Any:
    """Returns the object named `module:name` or `train.py:name`. The current directory is searched first."""
    where, colon, attribute = name.rpartition(":")
    if not colon or not where or not attribute:
        raise TargetError(
            f"{name!r} does not name an object. Write module:name, as in project.data:train_set, or a file, as in "
            "train.py:train_set."
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module = _imported(where)
    found: Any = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            public = sorted(each for each in vars(module) if not each.startswith("_"))
            raise TargetError(f"{where} has no {attribute!r}. It has: {', '.join(public) or 'nothing'}.") from None
    return found


def _imported(where: str) -> ModuleType:
    try:
        return _from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name is not None and (where == error.name or where.startswith(f"{error.name}.")):
            raise TargetError(
                f"There is no module {where} in {os.getcwd()} or on Python's path (PYTHONPATH). For a file, write "
                "its path, as in train.py:train_set."
            ) from None
        raise _noted(error, where) from None
    except Exception as error:
        raise _noted(error, where) from None


def _noted(error: Exception, where: str) -> Exception:
    error.add_note(
        f"penstock: this was raised while {where} was imported. If {where} is a program, put what it runs "
        'under if __name__ == "__main__":, so that its objects can be imported.'
    )
    return error


def _from_file(path: Path) -> ModuleType:
    """Imports a file as a module of the same name, so that worker processes can import it as well."""
    if not path.is_file():
        raise TargetError(f"There is no file {path} in {os.getcwd()}.")
    folder, name = str(path.resolve().parent), path.stem
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
