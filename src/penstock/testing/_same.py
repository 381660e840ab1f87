"""Asserts that a loader gives the same batches with every backend and number of workers."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

# The settings that are compared with {"num_workers": 0}, the plain loop.
EVERYWHERE: tuple[dict[str, Any], ...] = (
    {"num_workers": 0},
    {"num_workers": 2, "backend": "thread"},
    {"num_workers": 1},
    {"num_workers": 2},
    {"num_workers": 3},
)


def assert_same_everywhere(
    make_loader: Callable[..., Any],
    settings: Iterable[Mapping[str, Any]] | None = None,
    *,
    epochs: int = 1,
    steps: int | None = None,
) -> None:
    """Asserts that the batches are those of the plain loop, byte for byte, with all these settings.

    `make_loader(**settings)` makes a new loader in each call; it should pass `seed=`. The settings are by default
    `EVERYWHERE`: a second time without workers, with threads, and with one, two and three processes. Threads share
    the generators of `random` and `numpy.random`, so a dataset that draws from these fails with threads; one that
    draws from `penstock.rng()` does not. Threads are left out if `make_loader` takes no `backend`, as with loaders of
    penstock.torch.

    The batches of the plain loop are kept for the comparison: `steps` limits how many of each epoch are read.

    >>> import penstock
    >>> assert_same_everywhere(lambda **settings: penstock.DataLoader(range(9), 2, seed=1, **settings))
    """
    expected = list(_stream(make_loader, {"num_workers": 0}, epochs, steps))
    for setting in default_settings(make_loader) if settings is None else settings:
        given, plain = f"With {in_words(setting)}", "in the plain run (num_workers=0)"
        if setting == {"num_workers": 0}:
            given, plain = "In a second plain run (num_workers=0)", "in the first"
        with closing(_stream(make_loader, setting, epochs, steps)) as found:
            count = 0
            for wanted, (label, value) in zip(expected, found, strict=False):
                _compare(label, value, wanted, given, plain)
                count += 1
            more = next(found, None)
        if count < len(expected):
            raise AssertionError(f"{given}: the stream ends before {expected[count][0]}.")
        if more is not None:
            raise AssertionError(f"{given}: there is {more[0]}, which does not exist {plain}.")


def _compare(label: str, value: Any, wanted: tuple[str, Any], given: str, plain: str) -> None:
    if label != wanted[0]:
        raise AssertionError(f"{given}: there is {label} instead of {wanted[0]} {plain}.")
    differs = difference(value, wanted[1])
    if differs is not None:
        raise AssertionError(f"{given}: {label} differs from that {plain}{in_sentence(differs)}.{_ADVICE}")


def in_sentence(differs: str) -> str:
    """The text of `difference`, in the form that follows a sentence about the batch."""
    return differs if differs.startswith(":") else f", in {differs}"


_ADVICE = (
    "\n  The likely cause: a sample depends on earlier samples in the same process, by a generator of the dataset's "
    "own (use penstock.rng()), a counter or a cache; or no seed= was given."
)


def _stream(
    make_loader: Callable[..., Any], setting: Mapping[str, Any], epochs: int, steps: int | None
) -> Generator[tuple[str, Any], None, None]:
    """The values to compare, each with its name: the seed, then each batch."""
    with opened(make_loader, setting) as loader:
        yield "loader.seed", getattr(loader, "seed", None)
        for epoch in range(epochs):
            for step, batch in enumerate(loader):
                if step == steps:
                    break
                yield f"batch {step} of epoch {epoch}", batch


def default_settings(make_loader: Callable[..., Any]) -> list[dict[str, Any]]:
    """The default settings; those with a `backend` only if the loader takes one."""
    everywhere = list(EVERYWHERE)
    try:
        with opened(make_loader, {"num_workers": 2, "backend": "thread"}):
            return everywhere
    except TypeError as error:
        if "unexpected keyword argument 'backend'" not in str(error):
            raise
    return [setting for setting in everywhere if "backend" not in setting]


@contextmanager
def opened(make_loader: Callable[..., Any], setting: Mapping[str, Any]) -> Iterator[Any]:
    """A loader with these settings, which is closed afterwards."""
    with warnings.catch_warnings():  # about more workers than CPUs, or than a stream can use
        warnings.simplefilter("ignore")
        loader = make_loader(**setting)
    try:
        yield loader
    finally:
        if hasattr(loader, "close"):  # loaders of penstock.torch have none, like torch's
            loader.close()


def in_words(setting: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in setting.items())


_Within = tuple[tuple[int, int], ...]  # pairs of ids of objects


def difference(one: Any, other: Any, at: str = "", within: _Within = ()) -> str | None:
    """The first difference between two batches, in words; None if all their bytes, types and keys are the same.

    Objects of a class without a useful `__eq__` are compared by what pickle would save of them. `at` is the path to
    what is compared, and `within` are the objects that contain it.

    >>> difference({"x": np.array([1, 2, 3])}, {"x": np.array([1, 5, 3])})
    "['x']: at [1] there is 2, not 5"
    """
    if type(one) is not type(other):
        return f"{at}: it is of type {type(one).__name__}, not {type(other).__name__}"
    if isinstance(one, (np.ndarray, np.generic)):
        return _between_arrays(np.asarray(one), np.asarray(other), at, within)
    if hasattr(one, "detach") and hasattr(one, "dtype"):  # a tensor
        if one.dtype != other.dtype:
            return f"{at}: it is {one.dtype}, not {other.dtype}"
        return _between_arrays(_of_tensor(one), _of_tensor(other), at, within)
    if isinstance(one, Mapping):
        if list(one) != list(other):
            return f"{at}: its keys are {list(one)}, not {list(other)}"
        return _first(((one[key], other[key], f"{at}[{key!r}]") for key in one), within)
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return f"{at}: it has {len(one)} elements, not {len(other)}"
        rows = enumerate(zip(one, other, strict=True))
        return _first(((a, b, f"{at}[{row}]") for row, (a, b) in rows), within)
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        names = [field.name for field in dataclasses.fields(one)]
        return _first(((getattr(one, name), getattr(other, name), f"{at}.{name}") for name in names), within)
    if one is other:
        return None
    if type(one).__eq__ in _USELESS:
        return _between_objects(one, other, at, within)
    try:
        if bool(one == other) or (one != one and other != other):
            return None
    except Exception:  # arrays inside, whose comparison has no single answer
        return _between_objects(one, other, at, within)
    return f"{at}: it is {one!r}, not {other!r}"


# __eq__ methods that compare only identities, or fail with arrays and NaN inside.
_USELESS: tuple[Any, ...] = (object.__eq__, SimpleNamespace.__eq__)


def _first(parts: Iterable[tuple[Any, Any, str]], within: _Within) -> str | None:
    return next((found for part in parts if (found := difference(*part, within)) is not None), None)


def _between_objects(one: Any, other: Any, at: str, within: _Within) -> str | None:
    if (id(one), id(other)) in within:  # an object inside itself, which is being compared already
        return None
    try:
        ours, theirs = _parts(one), _parts(other)
    except Exception as error:
        return (
            f"{at}: it cannot be compared: {type(one).__name__} has no useful __eq__, and pickle cannot take it "
            f"apart ({type(error).__name__}: {error})"
        )
    named = [name for name, _ in ours], [name for name, _ in theirs]
    if named[0] != named[1]:
        return f"{at}: its attributes are {_attributes(named[0])}, not {_attributes(named[1])}"
    pairs = zip(ours, theirs, strict=True)
    return _first(((a, b, at + name) for (name, a), (_, b) in pairs), (*within, (id(one), id(other))))


def _parts(whole: Any) -> list[tuple[str, Any]]:
    """The parts that pickle would save, each with its name, or "" if it has none."""
    reduced = whole.__reduce_ex__(4)
    if isinstance(reduced, str):  # the name of a global
        return [("", reduced)]
    made_by, args, state, items, pairs = (*reduced, None, None, None)[:5]
    known = state if type(state) is dict else {}
    rest = [made_by, args, list(items or ()), list(pairs or ()), None if known else state]
    return [(f".{name}", known[name]) for name in sorted(known, key=str)] + [("", part) for part in rest]


def _attributes(names: list[str]) -> list[str]:
    return [name[1:] for name in names if name]


def _between_arrays(
    one: np.ndarray[Any, Any], other: np.ndarray[Any, Any], at: str, within: _Within
) -> str | None:
    if one.dtype != other.dtype or one.shape != other.shape:
        return f"{at}: it is {one.dtype} of shape {one.shape}, not {other.dtype} of shape {other.shape}"
    if one.dtype.hasobject:
        return difference(one.tolist(), other.tolist(), at, within)
    # Compared by their bytes: NaN equals NaN, and 0.0 differs from -0.0.
    ours, theirs = one.tobytes(), other.tobytes()
    if ours == theirs:
        return None
    differ = np.frombuffer(ours, np.uint8) != np.frombuffer(theirs, np.uint8)
    first = int(differ.argmax()) // one.dtype.itemsize
    index = [int(axis) for axis in np.unravel_index(first, one.shape)]
    return f"{at}: at {index} there is {one.flat[first]!s}, not {other.flat[first]!s}"


def _of_tensor(tensor: Any) -> np.ndarray[Any, Any]:
    try:
        array: np.ndarray[Any, Any] = tensor.detach().numpy()
    except TypeError:  # a dtype that numpy does not have
        array = np.array(tensor.tolist())
    return array
