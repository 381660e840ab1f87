"""`penstock.rng()`, whose random numbers depend on the sample, and not on the worker that loads the sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from penstock._at_work import at_work

if TYPE_CHECKING:
    from numpy.random import Generator  # the import takes 15 ms, so only programs that draw numbers do it
    from numpy.typing import NDArray

__all__ = ["each", "rng"]

_T = TypeVar("_T")


def rng() -> Generator:
    """Returns the random generator of the current sample, which depends only on (seed, epoch, key).

    Call it inside `__getitem__` or a stream's `load`. The numbers are the same in every worker and backend. A second
    call for the same sample returns the same generator, which continues its sequence. In code that runs once for a
    whole step (`collate_fn`, `__getitems__`, a stream's `__iter__`), the generator depends on (seed, epoch, step)
    instead. Inside a loop over `penstock.each(keys)`, each sample has its own generator.

    The first call for a sample takes about 8 µs, and each further call less than 1 µs.

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
            "penstock.rng() belongs to a sample or a step, and no loader computes one in this thread. Call it inside "
            "__getitem__, __getitems__, load, a stream's __iter__ or collate_fn, in the thread in which the loader "
            "calls them (the order in which several threads draw from one generator is not fixed). With a loader of "
            "penstock.torch it needs seed=: without a seed, random numbers are torch's. Elsewhere, use "
            "numpy.random.default_rng()."
        )
    return source.rng()


def each(keys: Sequence[_T] | NDArray[Any]) -> Iterator[_T]:
    """Iterates over the keys, and tells the loader which sample is being computed.

    Use it in a dataset that gets all keys of a step in one call, `__getitems__(keys)` or `__gather__(keys, empty)`,
    but computes the samples one after the other. Inside the loop, `penstock.rng()` returns the same generator as in
    `__getitem__`, and an error names its sample. Pass the keys unchanged and in their original order. Outside of a
    loader, this function returns `iter(keys)`.

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
