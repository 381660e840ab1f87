"""`DataLoader` for JAX: penstock's loader, with batches that are pytrees of `jax.Array`s."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import jax
import ml_dtypes
import numpy as np

import penstock.loader
from penstock._fill.cast import DTYPES, Cast
from penstock._options import Balance, Casting, LastBatch, OnError, Options, is_int, is_order
from penstock._session.seeded import feed_for
from penstock.backends import _base as backends
from penstock.backends._process.methods import choose_method
from penstock.jax._arrays import KNOWN, DevicePlacer
from penstock.jax._batch import Batch
from penstock.jax._rows import checked, local_rows, parts
from penstock.jax._session import JaxSession
from penstock.source._dataset import Keyed, is_stream

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

    from numpy.typing import ArrayLike
    from typing_extensions import TypeVar as WithDefault

    _T_co = WithDefault("_T_co", covariant=True, default=Any)
else:
    _T_co = TypeVar("_T_co", covariant=True)

__all__ = ["DataLoader"]


class DataLoader(penstock.loader.DataLoader[_T_co]):
    """penstock's `DataLoader` for JAX: batches are pytrees of `jax.Array`s, already on the device.

        >>> import numpy as np, penstock.jax
        >>> loader = penstock.jax.DataLoader(np.arange(6), batch_size=4)
        >>> for batch in loader.batches():
        ...     print(batch.data, batch.mask)
        [0 1 2 3] [ True  True  True  True]
        [4 5 0 1] [ True  True False False]

    All arguments and methods of `penstock.DataLoader` have the same meaning here, with two differences:

    - `last_batch`: the default is "pad", wherever the end is known in advance, so that all batches have one shape.
      `Batch.mask` is False for the rows that only fill up the last batch.
    - `dtype`: also "bfloat16" and the other dtypes of ml_dtypes that JAX knows. Without `jax_enable_x64`, 64-bit
      numbers become 32-bit numbers in the workers. A value that does not fit raises.

    And there are two more arguments:

    - `sharding`: a `jax.sharding.Sharding` of the global batch. `batch_size` is then the number of rows of the global
      batch. Each process loads only the rows that its devices hold. An array with fewer axes than the sharding is
      split along those that it has. Without a sharding, arrays are on the default device.
    - `ahead`: how many batches are put on the device before they are asked for, if workers have finished them.
      Without workers, there are none. A resume state counts only the batches that you received.
    """

    def __init__(
        self,
        dataset: Keyed[Any] | Iterable[Any],
        batch_size: int | None = 1,
        shuffle: bool | Literal["blocks"] | None = False,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: np.random.Generator | None = None,
        *,
        sharding: jax.sharding.Sharding | None = None,
        ahead: int = 2,
        prefetch_factor: int | Literal["auto"] | None = None,
        persistent_workers: bool | None = None,
        pin_memory_device: str = "",
        in_order: bool = True,
        backend: Literal["process", "thread", "ray"] | None = None,
        ray_options: Mapping[str, Any] | None = None,
        seed: int | None = None,
        retries: int = 2,
        hang: float | None = None,
        shard: tuple[int, int] | Literal["auto"] | None = None,
        last_batch: LastBatch | None = None,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        dtype: Any = None,
        casting: Casting = "checked",
        max_workers: int | None = None,
        window: int | None = None,
        batch_tokens: int | None = None,
        lengths: ArrayLike | Callable[[Any], int] | None = None,
        max_length: int | None = None,
        batch_multiple: int = 1,
        buckets: Sequence[int] | None = None,
        balance: Balance | None = None,
        accumulate: int = 1,
        commit: bool = False,
        backend_options: Any = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name not in _APART}
        if not is_int(ahead, 0):
            raise ValueError(f"ahead must be an integer of at least 0 (batches on the device), got {ahead!r}.")
        given["dtype"] = cast = _cast(dtype, casting)
        given["shard"] = _shard(shard, checked(sharding))
        given["last_batch"] = _last_batch(dataset, given, sharding)
        given["multiprocessing_context"] = _start_method(given)
        feed = feed_for(dataset, given)
        batch_size = None  # of all processes together, if there are others
        if sharding is not None:
            options = feed.options
            _check_sharded(sharding, options)
            rows = None if options.batch_size is None else local_rows(sharding, options.batch_size)
            if not sharding.is_fully_addressable:
                _check_processes(options, feed.batched, has_all=rows is None)
                batch_size = options.batch_size
            # In each process, one reader reads a stream without load(), and makes whole batches.
            feed.local_rows = None if feed.one_reader else rows
        placer = DevicePlacer(sharding, batch_size, feed.local_rows, cast)
        self._session: JaxSession = JaxSession(feed, placer, int(ahead))
        self._dtype = dtype

    if TYPE_CHECKING:

        def batches(self) -> Iterator[Batch[_T_co]]: ...

    @property
    def sharding(self) -> jax.sharding.Sharding | None:
        """The sharding of the global batch."""
        return self._session.placer.sharding

    @property
    def ahead(self) -> int:
        """How many batches are put on the device before they are asked for."""
        return self._session.ahead

    @property
    def dtype(self) -> Any:
        """The argument `dtype`."""
        return self._dtype


# What is not an argument of `penstock.DataLoader`.
_APART = ("self", "dataset", "sharding", "ahead", "__class__")

# What numbers without a dtype= become where JAX has no 64-bit numbers.
_NARROWER = (("int64", "int32"), ("uint64", "uint32"), ("float64", "float32"))
_WHY = 'JAX has 64-bit numbers only after jax.config.update("jax_enable_x64", True), so they become 32-bit numbers.'


def _cast(dtype: Any, casting: str) -> Cast | None:
    """Returns how workers convert numbers, which includes narrowing 64-bit numbers unless JAX has them.

    JAX itself would cut off numbers that do not fit, and only after all bytes were moved.
    """
    others = () if jax.dtypes.canonicalize_dtype(np.int64) == np.int64 else _NARROWER
    extra = {
        name: np.dtype(kind) for name, kind in vars(ml_dtypes).items() if isinstance(kind, type) and _is_dtype(kind)
    }
    names = *DTYPES, "int16", "uint16", "uint32", "uint64", *extra
    cast = Cast.of(dtype, casting, names, others=others, why=_WHY)
    if cast is None:
        return None
    used = {name for _, name in cast.fields if name is not None}
    wide = sorted(used.intersection(name for name, _ in others))
    if wide:
        narrower = dict(others)[wide[0]]
        raise ValueError(f'dtype="{wide[0]}" is not possible: {_WHY} Set it, or use dtype="{narrower}".')
    return replace(cast, dtypes=tuple(extra[name] for name in sorted(used & extra.keys())))


def _is_dtype(kind: type) -> bool:
    return issubclass(kind, np.generic) and KNOWN[np.dtype(kind)]


def _shard(shard: Any, sharding: Any) -> Any:
    if sharding is not None:
        if shard is not None:
            raise ValueError(
                f"shard={shard!r} and sharding= were both given, but the sharding says already which rows each "
                "process loads. Leave out shard=, and let batch_size be the number of rows of the global batch."
            )
        return 0, 1  # each process has the plan of the global batches
    if shard == "auto" and jax.process_count() > 1:
        return jax.process_index(), jax.process_count()
    return shard


def _last_batch(dataset: Any, given: dict[str, Any], sharding: Any) -> Any:
    """Returns `last_batch`, or the default if `last_batch` is None.

    The default is "pad" if the epoch's end is known in advance, and `batch_size` is given without `drop_last`,
    `batch_sampler` and `batch_tokens`. With "pad", all batches have the same shape.
    """
    choice, by_size = given["last_batch"], given["batch_size"] is not None
    others = given["drop_last"], given["batch_sampler"] is not None, given["batch_tokens"] is not None
    if choice is not None or not by_size or any(others):
        return choice
    if not is_stream(dataset) and is_order(given["sampler"]):
        return "pad"
    if sharding is None or parts(sharding) == 1:
        return None
    what = "a stream" if is_stream(dataset) else "a sampler of your own"
    raise ValueError(
        f"With sharding= and {what}, the loader cannot fill up the last batch, because its size is known only at the "
        'end. Choose last_batch="drop" (every batch has batch_size rows), or "keep", if the last batch can be split '
        f"into {parts(sharding)} parts."
    )


def _start_method(given: dict[str, Any]) -> Any:
    """Returns `multiprocessing_context`. If it is None and the default is "fork", returns "forkserver"."""
    context, name = given["multiprocessing_context"], given["backend"] or backends.DEFAULT
    takes_it = name in backends.known() and backends.registered(name).argument == "multiprocessing_context"
    if not takes_it or not given["num_workers"] or choose_method(context) != "fork":
        return context
    if context is None:  # set by multiprocessing.set_start_method
        return "forkserver"
    raise ValueError(
        'multiprocessing_context="fork" is not possible here, because this process runs JAX, whose threads and locks '
        'do not survive a fork. Leave it out (workers are then started by "forkserver"), or use "spawn".'
    )


def _check_sharded(sharding: Any, options: Options) -> None:
    number, multiple = parts(sharding), options.batch_multiple
    if options.batch_tokens is not None and multiple % number:
        raise ValueError(
            f"batch_tokens={options.batch_tokens} makes batches of any number of rows, but the sharding splits them "
            f"into {number} parts. Use batch_multiple={number}, or a multiple of it."
        )


def _check_processes(options: Options, batched: bool, has_all: bool) -> None:
    """Raises ValueError unless each process can make its part of a global batch on its own."""
    where = "a sharding over several processes"
    if options.seed is None:
        raise ValueError(f"With {where}, give seed=, the same number in every process: their orders would differ.")
    other = None
    if not batched or options.batch_size is None:
        other = "batch_tokens=" if options.batch_tokens is not None else "batch_sampler="
        other = other if batched else "batch_size=None"
    elif options.balance is not None:
        other = "balance="
    if other is not None:
        raise ValueError(
            f"{other} is not possible with {where}, because each process must know the shape of the global batch. "
            "Use batch_size=, the number of rows of the global batch."
        )
    if options.last_batch == "keep":
        raise ValueError(
            f'last_batch="keep" is not possible with {where}, because the shape of the last batch would be another. '
            'Use "pad", "drop" or "rollover" ("drop" for a stream, or for a sampler of your own).'
        )
    if options.on_error == "skip":
        raise ValueError(
            f'on_error="skip" is not possible with {where}, because every process must have all its rows. Use '
            '"replace".'
        )
    pad = options.padding
    if pad is not None and not has_all and (pad.ragged or len(pad.buckets) != 1):
        raise ValueError(
            f"With {where}, penstock.pad must pad every batch to one length, because each process sees only its own "
            "rows. Use penstock.pad(buckets=[n]), with the length of the longest sample."
        )
