"""Checks that a loader gives the same batches with any backend and number of workers, and after resuming."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import islice, zip_longest
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._system.platform import HAS_PROCESSES

# The settings that are compared with the plain loop, {"num_workers": 0}.
EVERYWHERE: tuple[dict[str, Any], ...] = (
    {"num_workers": 0},
    {"num_workers": 2, "backend": "thread"},
    *({"num_workers": workers} for workers in (1, 2, 3) if HAS_PROCESSES),
)

_Named = tuple[str, Any]


def assert_same_everywhere(
    make_loader: Callable[..., Any],
    settings: Iterable[Mapping[str, Any]] | None = None,
    *,
    epochs: int = 1,
    steps: int | None = None,
) -> None:
    """Asserts that a loader gives the same batches, byte for byte, with each of several settings.

    The batches are compared with those of the loader without workers. `make_loader(**settings)` must make a new
    loader on each call, and should pass `seed=` to the loader. By default, the settings are `EVERYWHERE`: a second
    run without workers, then threads, then one, two and three processes (on Linux).

    Threads share the generators of `random` and `numpy.random`, so a dataset that draws from these generators fails
    with threads, while a dataset that draws from `penstock.rng()` does not. Threads are left out if `make_loader`
    does not support them, which is the case for the loaders of penstock.torch.

    The batches of the run without workers are kept in memory for the comparison. `steps` limits the number of batches
    that are read in each epoch.

    >>> import penstock
    >>> assert_same_everywhere(lambda **settings: penstock.DataLoader(range(9), 2, seed=1, **settings))
    >>> with_threads = [setting for setting in EVERYWHERE if setting.get("backend") == "thread"]
    >>> assert_same_everywhere(lambda **given: penstock.DataLoader(range(9), 2, seed=1, **given), with_threads)
    """
    expected = list(_stream(make_loader, {"num_workers": 0}, epochs, steps))
    by = "in the same process, by a generator of the dataset's own (use penstock.rng()), a counter or a cache"
    for setting in _default_settings(make_loader) if settings is None else settings:
        given, plain = f"With {_in_words(setting)}", "in the plain run (num_workers=0)"
        if setting == {"num_workers": 0}:
            given, plain = "In a second plain run (num_workers=0)", "in the first"
        with closing(_stream(make_loader, setting, epochs, steps)) as found:
            _compare(found, expected, given, plain, by)


def _compare(found: Iterable[_Named], expected: list[_Named], given: str, plain: str, by: str) -> None:
    """Asserts that two sequences of (name, value) pairs are equal. The other arguments are used in error messages."""
    for wanted, one in zip_longest(expected, found):
        if one is None:
            raise AssertionError(f"{given}: the stream ends before {wanted[0]}.")
        if wanted is None:
            raise AssertionError(f"{given}: there is {one[0]}, which does not exist {plain}.")
        if one[0] != wanted[0]:
            raise AssertionError(f"{given}: there is {one[0]} instead of {wanted[0]} {plain}.")
        differs = difference(one[1], wanted[1])
        if differs is not None:
            where = differs if differs.startswith(":") else f", in {differs}"
            cause = f"a sample depends on earlier samples {by}; or no seed= was given"
            what = f"{given}: {one[0]} differs from that {plain}{where}"
            raise AssertionError(f"{what}.\n  The likely cause: {cause}.")


def _stream(
    make_loader: Callable[..., Any], setting: Mapping[str, Any], epochs: int, steps: int | None
) -> Generator[_Named, None, None]:
    """Yields (name, value) pairs to compare: the loader's seed, and then each batch."""
    with _opened(make_loader, setting) as loader:
        yield "loader.seed", getattr(loader, "seed", None)
        for epoch in range(epochs):
            yield from _named(islice(loader, steps), epoch)


def _named(batches: Iterable[Any], epoch: int, first: int = 0) -> Iterator[_Named]:
    return ((f"batch {step} of epoch {epoch}", batch) for step, batch in enumerate(batches, first))


def assert_resumes_everywhere(
    make_loader: Callable[..., Any],
    settings: Iterable[Mapping[str, Any]] | None = None,
    *,
    steps: int | None = None,
) -> None:
    """Asserts that a loader can be stopped and resumed anywhere in an epoch, and then gives the expected batches.

    The expected batches are those of an uninterrupted run without workers, byte for byte.

    A loader with the first of the `settings` saves its state before the first batch, after each batch and after the
    epoch. Loaders with the second setting load these states, and read to the end of the epoch. Then the second
    setting saves states and the third loads them, and so on, until the last setting saves and the first loads.
    The default settings are those of `assert_same_everywhere`. States are converted to JSON and back, unless they
    contain objects of the dataset, the sampler or the stream that JSON does not support.

    `make_loader(**settings)` must make a new loader in each call, and should pass `seed=` to the loader. The batches
    of two epochs are kept in memory for the comparison, and an epoch of n batches is read n / 2 times for each
    setting. `steps` limits the number of batches that are read in each epoch.

    >>> import penstock
    >>> assert_resumes_everywhere(lambda **settings: penstock.DataLoader(range(9), 2, seed=1, **settings))
    """
    everywhere = _default_settings(make_loader) if settings is None else list(settings)
    use = "use penstock.rng(), or define state_dict() and load_state_dict()"
    by = f"by a counter, a cache or a generator of the dataset's own ({use})"
    with _opened(make_loader, {"num_workers": 0}) as loader:
        expected = [list(_named(islice(loader, steps), epoch)) for epoch in range(2)]
    for stopped, resumed in zip(everywhere, everywhere[1:] + everywhere[:1], strict=True):
        with _opened(make_loader, stopped) as loader:
            states = list(_states(loader, steps))
        with _opened(make_loader, resumed) as loader:
            for where, epoch, done, state in states:
                loader.load_state_dict(state)
                how = f"Stopped {where} with {_in_words(stopped)}, resumed with {_in_words(resumed)}"
                rest = _named(islice(loader, None if steps is None else steps - done), epoch, done)
                _compare(rest, expected[epoch][done:], how, "in a run without a stop", by)


def _states(loader: Any, steps: int | None) -> Iterator[tuple[str, int, int, Any]]:
    """Yields (description, epoch, number of batches read in that epoch, state) before, during and after an epoch."""
    yield "before the first batch", 0, 0, _state(loader)
    done = 0
    for done, _ in enumerate(islice(loader, steps), 1):
        yield f"after batch {done - 1}", 0, done, _state(loader)
    if done != steps:
        yield "after the epoch", 1, 0, _state(loader)


def _state(loader: Any) -> Any:
    state = loader.state_dict()
    try:
        return json.loads(json.dumps(state))
    except TypeError:  # the caller must save it in another format
        return state


def _default_settings(make_loader: Callable[..., Any]) -> list[dict[str, Any]]:
    """Returns the settings in EVERYWHERE, without those for threads if the loader does not support threads."""
    try:
        with _opened(make_loader, {"num_workers": 2, "backend": "thread"}):
            return list(EVERYWHERE)
    except (TypeError, ValueError) as error:
        refused = ("unexpected keyword argument 'backend'", 'backend="thread" is not possible')
        if not any(words in str(error) for words in refused):
            raise
    return [setting for setting in EVERYWHERE if "backend" not in setting]


@contextmanager
def _opened(make_loader: Callable[..., Any], setting: Mapping[str, Any]) -> Iterator[Any]:
    with warnings.catch_warnings():  # about more workers than CPUs, or than a stream can use
        warnings.simplefilter("ignore")
        loader = make_loader(**setting)
    try:
        yield loader
    finally:
        if hasattr(loader, "close"):  # loaders of penstock.torch have none, like torch's
            loader.close()


def _in_words(setting: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in setting.items())


_Within = tuple[tuple[int, int], ...]  # the ids of pairs of objects


def difference(one: Any, other: Any, at: str = "", within: _Within = ()) -> str | None:
    """Describes the first difference between two batches, or returns None if all bytes, types and keys are the same.

    Objects of a class without a useful `__eq__` are compared by the parts that pickle would save. `at` and `within`
    are for recursive calls: `at` is the path to the compared values inside the batches, and `within` has the ids of
    the objects that contain them.

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
    if one is other or (id(one), id(other)) in within:  # an object inside itself is being compared already
        return None
    if not isinstance(one, (Mapping, list, tuple)) and not dataclasses.is_dataclass(type(one)):
        try:
            if type(one).__eq__ not in _USELESS:
                equal = bool(one == other) or (one != one and other != other)
                return None if equal else f"{at}: it is {one!r}, not {other!r}"
        except Exception:  # they contain arrays, and comparing arrays gives many results
            pass
    return _between_parts(one, other, at, (*within, (id(one), id(other))))


# __eq__ methods that compare only identities, or fail with arrays and NaN inside.
_USELESS: tuple[Any, ...] = (object.__eq__, SimpleNamespace.__eq__)


def _between_parts(one: Any, other: Any, at: str, within: _Within) -> str | None:
    try:
        (kind, ours), (_, theirs) = _parts(one), _parts(other)
    except Exception as error:
        return (
            f"{at}: it cannot be compared: {type(one).__name__} has no useful __eq__, and pickle cannot take it "
            f"apart ({type(error).__name__}: {error})"
        )
    if kind == "elements" and len(ours) != len(theirs):
        return f"{at}: it has {len(ours)} elements, not {len(theirs)}"
    names = [[name for name, path, _ in parts if path] for parts in (ours, theirs)]
    if names[0] != names[1]:
        return f"{at}: its {kind} are {names[0]}, not {names[1]}"
    pairs = zip(ours, theirs, strict=True)
    found = (difference(a, b, at + path, within) for (_, path, a), (_, _, b) in pairs)
    return next((differs for differs in found if differs is not None), None)


def _parts(whole: Any) -> tuple[str, list[tuple[Any, str, Any]]]:
    """Splits an object into parts to compare. Returns the kind of the parts, and (name, path, value) for each part.

    The kind is "keys", "elements" or "attributes". Data that pickle saves in addition to the attributes has an empty
    name and an empty path.
    """
    if isinstance(whole, Mapping):
        return "keys", [(key, f"[{key!r}]", whole[key]) for key in whole]
    if isinstance(whole, (list, tuple)):
        return "elements", [(row, f"[{row}]", part) for row, part in enumerate(whole)]
    known: dict[str, Any] = {}
    rest: list[Any] = []
    if dataclasses.is_dataclass(type(whole)):
        known = {field.name: getattr(whole, field.name) for field in dataclasses.fields(whole)}
    elif isinstance(reduced := whole.__reduce_ex__(4), str):  # the name of a global
        rest = [reduced]
    else:  # the parts that pickle would save
        made_by, args, state, items, pairs = (*reduced, None, None, None)[:5]
        if type(state) is dict:
            known, state = {name: state[name] for name in sorted(state, key=str)}, None
        rest = [made_by, args, list(items or ()), list(pairs or ()), state]
    named = [(name, f".{name}", part) for name, part in known.items()]
    return "attributes", named + [("", "", part) for part in rest]


def _between_arrays(one: NDArray[Any], other: NDArray[Any], at: str, within: _Within) -> str | None:
    if one.dtype != other.dtype or one.shape != other.shape:
        return f"{at}: it is {one.dtype} of shape {one.shape}, not {other.dtype} of shape {other.shape}"
    if one.dtype.hasobject:
        return difference(one.tolist(), other.tolist(), at, within)
    # Bytes are compared, so that NaN equals NaN, and 0.0 differs from -0.0.
    ours, theirs = one.tobytes(), other.tobytes()
    if ours == theirs:
        return None
    differ = np.frombuffer(ours, np.uint8) != np.frombuffer(theirs, np.uint8)
    first = int(differ.argmax()) // one.dtype.itemsize
    index = [int(axis) for axis in np.unravel_index(first, one.shape)]
    return f"{at}: at {index} there is {one.flat[first]!s}, not {other.flat[first]!s}"


def _of_tensor(tensor: Any) -> Any:
    try:
        return tensor.detach().numpy()
    except TypeError:  # a dtype that numpy does not have
        return np.array(tensor.tolist())
