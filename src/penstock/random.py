"""`penstock.rng()`: random numbers that belong to the sample at work, whoever works at it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from penstock._at_work import at_work

if TYPE_CHECKING:
    from numpy.random import Generator  # 15 ms, which only those pay who draw
    from numpy.typing import NDArray

__all__ = ["each", "rng"]

_T = TypeVar("_T")


def rng() -> Generator:
    """The random generator of the sample that is being made: a function of (seed, epoch, key).

    Call it inside `__getitem__` or a stream's `load`. Whoever makes the sample, in whichever backend, gets
    the same numbers; a second call for the same sample goes on drawing. Where the work is for a whole
    step (`collate_fn`, `__getitems__`, a stream's `__iter__`) it is a function of (seed, epoch, step), but
    inside a loop over `penstock.each(keys)` it is the sample's again.
    Making it takes some 8 µs, asking again less than one.

    >>> import penstock
    >>> class Dice(penstock.Dataset[int]):
    ...     def __len__(self) -> int:
    ...         return 4
    ...     def __getitem__(self, key: int) -> int:
    ...         return int(penstock.rng().integers(1, 7))
    >>> [batch.tolist() for batch in penstock.DataLoader(Dice(), batch_size=4, seed=0)]
    [[5, 2, 1, 5]]
    """
    source = at_work.source
    if source is None:
        raise RuntimeError(
            "penstock.rng() belongs to a sample or a step, and no loader is at one in this thread. Call it inside "
            "__getitem__, __getitems__, load, a stream's __iter__ or collate_fn, in the thread that the loader calls "
            "them in (what several threads draw from one generator has no order). In a loader of penstock.torch it "
            "needs seed=: without, random numbers are torch's. Elsewhere: numpy.random.default_rng()."
        )
    return source.rng()


def each(keys: Sequence[_T] | NDArray[Any]) -> Iterator[_T]:
    """The keys, one after the other; it tells the loader which sample is at work.

    For a dataset that makes all samples of a step at once, in `__getitems__(keys)` or `__gather__(keys, empty)`,
    and still treats them one by one: in the loop `penstock.rng()` gives what it gives in `__getitem__`, and an
    error names its sample. Pass the keys as they came, in their order. Outside of a loader it is `iter(keys)`.

    >>> import penstock
    >>> class Dice(penstock.Dataset[int]):
    ...     def __len__(self) -> int:
    ...         return 4
    ...     def __getitems__(self, keys: list[int]) -> list[int]:
    ...         return [int(penstock.rng().integers(1, 7)) for key in penstock.each(keys)]
    >>> [batch.tolist() for batch in penstock.DataLoader(Dice(), batch_size=4, seed=0)]
    [[5, 2, 1, 5]]
    """
    plain: Any = keys.tolist() if hasattr(keys, "tolist") else keys
    source = at_work.source
    return iter(plain) if source is None else source.each(plain)
