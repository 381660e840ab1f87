"""torch's DataLoader on penstock's engine: a subclass of torch's class, and `enable()` for other torch loaders."""

from __future__ import annotations

import copy
import inspect
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, SupportsIndex, TypedDict, TypeVar

import torch.utils.data

from penstock._engine.engine import Engine
from penstock._feed.keys import refuse_samplers
from penstock._fill.cast import DTYPES, Cast
from penstock._options import BY_LENGTH, OPTIONS, Balance, Casting, LastBatch, OnError
from penstock._session.session import Session
from penstock._session.tracing import Tracing
from penstock._system.ending import never_ends
from penstock._system.platform import HAS_PROCESSES, SYSTEM
from penstock.backends import _base as backends
from penstock.batch import Batch
from penstock.source._dataset import Keyed
from penstock.source._nested import method_of
from penstock.stats import Stats
from penstock.torch import _private as private
from penstock.torch._batches import PlannedKeys, TokenBatches
from penstock.torch._core import Core, core_of
from penstock.torch._cursor import Cursor, LoadedState, check_maker, loaded, state_of
from penstock.torch._iterators import Inline, Seeded, Workers
from penstock.torch._rebuilt import DEFAULTS, Given, adopt, given_in, is_default, refusal, with_given
from penstock.torch._semantics import measures_of, sessions, stats
from penstock.torch._status import Status, begun_on_torch, status_of, warn_once

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

    from numpy.typing import ArrayLike
    from typing_extensions import TypeVar as WithDefault
    from typing_extensions import Unpack

    from penstock._session.explanation import Explanation

    T_co = WithDefault("T_co", covariant=True, default=Any)
else:
    T_co = TypeVar("T_co", covariant=True)

T = TypeVar("T")

# Settings, arguments of backends and methods that need `seed=`, and why.
_NEED_SEED = {
    **{name: option.needs_seed for name, option in OPTIONS.items() if option.needs_seed},
    **dict.fromkeys(backends.arguments(), "workers are processes of this machine, as in torch."),
    "batches()": "the semantics are torch's, which pads nothing and does not say which samples a batch has. Give "
    "seed=, or let the dataset return the key with its sample.",
    "explain()": "the order comes from torch's generators, which are not known before the epoch.",
    "commit()": "a batch is not a function of its position, so it cannot come again.",
    "set_epoch": "the order comes from torch's generators, as in torch.",
    "update()": "each worker has a copy of the dataset, as in torch, and the batches that it made ahead cannot be "
    "made again. Give seed=; or change loader.dataset between two epochs, without persistent_workers=True: the "
    "workers of the next epoch start with the dataset as it is then.",
}


# The settings that may be "auto", and the numbers that torch's constructor gets in their place.
_TUNED = {name: option.tuned for name, option in OPTIONS.items() if option.tuned}


class _Newer(TypedDict, total=False):
    """Arguments that only newer torch versions have. They are passed on, but type checkers reject them."""


class _NonDataProperty(Generic[T]):
    """A property that an instance attribute with the same name overrides, so that subclasses can use the name."""

    def __init__(self, read: Callable[[Any], T]) -> None:
        self._read = read
        self.__doc__ = read.__doc__

    def __get__(self, loader: Any, kind: type | None = None) -> T:
        return self if loader is None else self._read(loader)  # type: ignore[return-value]


class DataLoader(torch.utils.data.DataLoader[T_co]):
    """torch's DataLoader with the same arguments, the same batches and the same errors, but faster.

    It is a subclass of torch's class, so torch's constructor checks the arguments. `state_dict()` and
    `load_state_dict(state)` resume at any batch, like those of torchdata's StatefulDataLoader. A state is exact
    whatever `snapshot_every_n_steps` is. This argument only sets how often workers send the state of a stream (if the
    stream has a state).

    With `seed=`, penstock's semantics replace torch's:

    - The order, the augmentation and the batches depend only on the seed, and not on `num_workers`, which may be
      changed while the loader runs.
    - `num_workers` and `prefetch_factor` may be "auto". This and `max_workers=` are explained in penstock's loader.
    - A worker that crashes is replaced.
    - A resumed run repeats augmentations exactly.
    - `penstock.rng()`, `on_error=`, `max_errors=`, `shard=`, `last_batch=`, `hang=`, `backend="ray"`, `ray_options=`,
      `backend_options=`, `shuffle="blocks"`, `window=`, `commit=`, `commit()`, `explain()`, `batches()` and
      `update()` work as in penstock's loader.
    - `batch_tokens=`, `lengths=`, `max_length=`, `batch_multiple=`, `buckets=`, `balance=` and `accumulate=` make
      batches by the lengths of samples, as in penstock's loader. With `batch_tokens=`, `batch_size` is None and
      `batch_sampler` yields the batches.

    `dtype=` and `casting=` convert the numbers of a batch, with or without a seed. `dtype=` is a torch dtype (or its
    name, such as "bfloat16"), or a mapping from fields to dtypes.
    """

    seed: int | None
    on_error: OnError
    max_errors: int | None
    shard: tuple[int, int] | Literal["auto"] | None
    last_batch: LastBatch | None
    max_workers: int | None
    hang: float | None
    backend: Literal["process", "ray"] | None
    ray_options: Mapping[str, Any] | None
    backend_options: Any
    dtype: Any
    casting: Casting

    # Every argument of torch's and ours. `__signature__`, below, has those of the installed torch.
    def __init__(
        self,
        dataset: Keyed[Any] | Iterable[Any],
        batch_size: int | None = 1,
        shuffle: bool | Literal["blocks"] | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[Any], T_co] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], object] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | Literal["auto"] | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        snapshot_every_n_steps: int | None = 1,
        seed: int | None = None,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        shard: tuple[int, int] | Literal["auto"] | None = None,
        last_batch: LastBatch | None = None,
        max_workers: int | None = None,
        hang: float | None = None,
        backend: Literal["process", "ray"] | None = None,
        ray_options: Mapping[str, Any] | None = None,
        window: int | None = None,
        batch_tokens: int | None = None,
        lengths: ArrayLike | Callable[[Any], int] | None = None,
        max_length: int | None = None,
        batch_multiple: int = 1,
        buckets: Sequence[int] | None = None,
        balance: Balance | None = None,
        accumulate: int = 1,
        commit: bool = False,
        dtype: Any = None,
        casting: Casting = "checked",
        backend_options: Any = None,
        **newer: Unpack[_Newer],
    ) -> None:
        every, values = snapshot_every_n_steps, locals()
        ours = {name: value for name, value in values.items() if name in DEFAULTS}  # in the order of the signature
        theirs = {name: values[name] for name, default in _THEIRS.items() if values[name] is not default}
        before = given_in(timeout)
        auto = tuple(name for name in _TUNED if isinstance(values[name], str) and values[name] == "auto")
        by_blocks = isinstance(shuffle, str)
        if before is not None:  # rebuilt by a library, which may not pass on all of our arguments
            ours |= {name: one for name, one in before.arguments.items() if is_default(name, ours[name])}
            auto = (*auto, *(name for name in before.auto if num_workers and name not in auto))
            if before.by_blocks and _is_sequential(sampler, batch_sampler):
                ours["window"] = None
            else:
                by_blocks = by_blocks or before.by_blocks
            by_tokens = isinstance(batch_sampler, TokenBatches)
            if by_blocks and not by_tokens and (sampler is not None or batch_sampler is not None):
                raise ValueError(
                    'A library has made this loader from one with shuffle="blocks", with a sampler instead. Leave '
                    'shuffle="blocks" out; or let penstock split the order with shard="auto", and tell the library '
                    "not to split it (in Lightning: use_distributed_sampler=False)."
                )
            if isinstance(sampler, torch.utils.data.DistributedSampler) and _varies(dataset):
                raise ValueError(
                    f"A library has made this loader from one of {type(dataset).__name__}, with a DistributedSampler "
                    "that counts the samples once. But their number differs by epoch. Let penstock split the order "
                    'with shard="auto", and tell the library not to split it (in Lightning: '
                    "use_distributed_sampler=False)."
                )
        if isinstance(shuffle, str) and shuffle != "blocks":
            raise ValueError(f'shuffle must be True, False, None or "blocks", got {shuffle!r}.')
        # torch's constructor does not accept "blocks" or "auto".
        theirs |= {"shuffle": True} if by_blocks else {}
        if ours["seed"] is not None and before is None:
            refuse_samplers(dataset, sampler, batch_sampler)
        if ours["seed"] is not None and _has_own_order(dataset):
            theirs.pop("shuffle", None)  # it has no effect, and torch's sampler for it would ask for a length
        theirs |= {name: value for name, value in _TUNED.items() if name in auto}
        cast = Cast.of(ours["dtype"], ours["casting"], (*DTYPES, "bfloat16"))
        given = Given(
            {name: one for name, one in ours.items() if not is_default(name, one)},
            cast,
            auto,
            by_blocks,
            own_order=before.own_order if before is not None else sampler is None and batch_sampler is None,
        )
        _check(given, generator)
        unordered = method_of(dataset, "__order__") or (
            _has_own_order(dataset) and getattr(dataset, "endless", False)
        )
        if ours["seed"] is None and sampler is None and batch_sampler is None and unordered:
            raise ValueError(
                f"{type(dataset).__name__} needs seed=, because it decides the order of its samples itself, and "
                "without seed= the order is torch's. Give seed=."
            )
        if ours["batch_tokens"] is not None and before is None and batch_sampler is not None:
            raise ValueError(f"batch_tokens={batch_tokens} and batch_sampler= are mutually exclusive: leave one out.")
        if ours["batch_tokens"] is not None and batch_sampler is None:
            order = {name: values[name] for name in ("batch_size", "shuffle", "sampler", "drop_last")}
            theirs = {name: value for name, value in theirs.items() if name not in order}
            theirs["batch_sampler"] = _by_tokens(dataset, order, given, collate_fn)
        elif before is None and ours["seed"] is not None and sampler is batch_sampler and _is_planned(dataset):
            # Neither sampler is given.
            shuffles = {"shuffle": theirs.pop("shuffle", None), **given.split()[2]}
            theirs["sampler"] = PlannedKeys(dataset, shuffles, {"seed": ours["seed"]})
        if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 0):
            raise ValueError(f"snapshot_every_n_steps must be an int of at least 0, or None, got {every!r}.")
        super().__init__(dataset, **theirs, **newer)  # type: ignore[arg-type]
        self._given, self._cast = given, cast
        # Private: a subclass may use the names of our arguments for itself.
        self._ours, self._auto, self._by_blocks = given.split()
        self.timeout = timeout
        self.snapshot_every_n_steps = every
        # Frameworks read the arguments from `vars` to rebuild the loader with a sampler. `window` forbids samplers.
        for name, value in {**ours, **self._ours}.items():
            if name != "window" and not hasattr(type(self), name):
                vars(self).setdefault(name, value)
        self._saved: LoadedState | None = None
        self._cursor: Cursor | None = None  # of the epoch that was started last
        self._engine: weakref.ref[Engine] | None = None  # the engine that runs that epoch
        if given:
            _watch_iterators()
            if given.named.keys() - {"seed", "dtype", "casting"}:
                core_of(self)  # raises now, and not in the first epoch, if an argument is wrong

    if TYPE_CHECKING:  # torch's method returns an iterator of unknown items

        def __iter__(self) -> Iterator[T_co]: ...  # type: ignore[override]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "timeout" and "_given" in vars(self):
            value = with_given(value, self._given)
        if name == "num_workers" and "_ours" in vars(self) and (value != self.num_workers or name in self._auto):
            self._resize(value)
            self._auto = {one: "auto" for one in self._auto if one != name}
            self._given = replace(self._given, auto=tuple(self._auto))
            self.timeout = self.timeout  # it holds `_given`
        super().__setattr__(name, value)

    def _resize(self, num_workers: int) -> None:
        core, engine = vars(self).get("_penstock"), None if self._engine is None else self._engine()
        if core is not None and num_workers and core.options.num_workers:
            core.set_num_workers(num_workers)
            core.given = {**core.given, "num_workers": num_workers, "max_workers": None}
        elif engine is not None and not engine.closed and engine.is_ours():
            raise ValueError(
                f"num_workers cannot be set from {self.num_workers} to {num_workers!r} while workers run: without "
                "seed= the batches depend on it, as in torch, because each worker has its own steps and its own "
                "random generators. Give the loader seed=, or set num_workers when no iterator is alive."
            )
        else:
            self._iterator = None  # its workers have ended

    @never_ends
    def state_dict(self) -> dict[str, Any]:
        """Returns the current position, just after the last batch you received.

        At the end of an epoch, this is the start of the next one. The result is JSON-serialisable unless the
        `state_dict` of a dataset or sampler returns something that is not. This method can be called at any time,
        even inside a loop.
        """
        return state_of(self) if self._ours["seed"] is None else core_of(self).state()

    @never_ends
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Makes the next `iter()` continue where the state was taken.

        If the state does not fit this loader, raises a StateError that names the difference, and leaves the loader
        unchanged.
        """
        check_maker(state_dict, self._ours["seed"])
        if self._ours["seed"] is not None:
            core_of(self).load(state_dict)
            return
        # The state of a loader of DataPipes is empty, here and in torchdata.
        self._saved = loaded(self, state_dict) if state_dict != {} else None
        self._cursor = None
        self._iterator = None  # persistent workers have the seeds of another epoch

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_cursor": None, "_engine": None}
        if "_penstock" in state:
            # The batches that this loader hands out later do not move the copy.
            state |= {"_penstock": copy.copy(state["_penstock"]), "_iterator": None}
        return state

    @_NonDataProperty
    def skipped(self) -> list[tuple[Any, Exception]]:
        """The key and the exception of each sample that has failed in this epoch.

        The list is empty unless `on_error=` was given.
        """
        return [] if self._ours["seed"] is None else list(core_of(self).skipped)

    def batches(self) -> Iterator[Batch[T_co]]:
        """Returns the batches of the next `iter()`, each with its index, epoch, step and padding. This needs `seed=`.

        The index holds the keys of the batch's samples. `pad` is the number of rows that only fill up a batch
        (`last_batch="pad"`, the default with `shard=`).
        """
        return _seeded(self, "batches()").batches()

    def commit(self, batch: Batch[T_co]) -> None:
        """Records that a batch of `batches()` was used, as `penstock.DataLoader.commit` does. This needs `seed=`."""
        _seeded(self, "commit()").commit(batch)

    def explain(self, step: int, epoch: int | None = None) -> Explanation:
        """Returns the samples of a step on every rank, as `penstock.DataLoader.explain` does. This needs `seed=`."""
        return _seeded(self, "explain()").explain(step, epoch)

    def set_epoch(self, epoch: int) -> None:
        """Makes the next `iter()` begin this epoch. This needs `seed=`. Call it only to repeat or skip an epoch."""
        _seeded(self, "set_epoch").set_epoch(epoch)

    def update(self, change: Callable[[Any], object] | None = None, /, **attributes: Any) -> None:
        """Changes the dataset here and in every worker, as `penstock.DataLoader.update` does. This needs `seed=`.

        `update(size=416)` sets attributes of the dataset. If a function is given, it is called with the dataset. The
        change takes effect with the next batch that is handed out, because prefetched batches are computed again.
        """
        _seeded(self, "update()").update(change, **attributes)

    def stats(self) -> Stats:
        """Returns where the time goes: how long you waited, what each worker did, the slowest samples, and a verdict.

        The figures cover the current epoch and the loader's whole life. They are always measured, and any thread may
        ask for them.
        """
        return stats(self)

    def report(self, path: str | os.PathLike[str]) -> None:
        """Writes the figures as a single HTML page. See `penstock.DataLoader.report`."""
        measures_of(self).report(path)

    def trace(self, path: str | os.PathLike[str]) -> Tracing:
        """Records what the caller and the workers do, in a file that Perfetto can open.

        The trace ends at the end of its `with` block, or when its `close()` is called. See
        `penstock.DataLoader.trace`.
        """
        if not self.num_workers and self._ours["seed"] is None:
            raise ValueError(
                "A loader with num_workers=0 and torch's semantics has nothing to trace: torch's own loop fetches "
                "its batches. Use num_workers=1 or more, or seed=."
            )
        return measures_of(self).trace(path)

    def close(self) -> None:
        """Stops the workers. Batches that were handed out stay valid; a later `iter()` starts new workers."""
        session: Session | None = vars(self).get("_penstock") or sessions.get(self)
        if session is not None:
            session.close()
        self._iterator = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        shown = {name: getattr(self, name, None) for name in ("batch_size", "num_workers")}
        shown |= {} if "_given" not in vars(self) else self._given.shown
        given = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        return f"{type(self).__name__}({type(self.dataset).__name__}, {given})"

    @_NonDataProperty
    def _is_accelerate_prepared(self) -> bool:
        """Returns False, and warns if accelerate is about to make a loader that uses torch's engine.

        accelerate reads this attribute before it makes a torch loader from this loader.
        """
        if not enable._on and not self._given:
            warn_once(self, "accelerate makes a torch loader from it, so call penstock.torch.enable() first")
        return False

    @never_ends
    def __len__(self) -> int:
        is_torchs = all(self._ours[name] is None for name in ("shard", "last_batch", "batch_tokens"))
        if is_torchs and (self._ours["seed"] is None or not _is_planned(self.dataset)):
            return super().__len__()
        return core_of(self).length()


def _is_planned(dataset: Any) -> bool:
    """True for mixtures and packed rows."""
    return _has_own_order(dataset) or method_of(dataset, "__windows__") is not None


def _varies(dataset: Any) -> bool:
    """True if the number of samples may differ between epochs."""
    mixture = method_of(dataset, "__mixture__")
    return method_of(dataset, "__windows__") is not None or (mixture is not None and isinstance(mixture.stop, str))


def _has_own_order(dataset: Any) -> bool:
    """True for mixtures, and for rows that are packed from a mixture."""
    packed = method_of(dataset, "__windows__") is not None
    return method_of(dataset.documents if packed else dataset, "__order__") is not None


def _check(given: Given, generator: object) -> None:
    seed, backend_name = given.arguments.get("seed"), given.arguments.get("backend", "")
    number = isinstance(seed, SupportsIndex) and not isinstance(seed, bool)
    if seed is not None and not (number and 0 <= seed < 1 << 64):
        raise ValueError(f"seed must be an int from 0 to 2**64 - 1, or None (as in torch), got {seed!r}.")
    backend = backends.TABLE.get(backend_name)
    if backend is not None and backend.threads:
        raise ValueError(
            f'backend="{backend_name}" is not possible here: workers seed torch\'s global generator, which all '
            "threads of a process share. Use processes, or penstock.DataLoader."
        )
    if seed is not None and generator is not None:
        raise ValueError(
            f"seed={seed} and generator= were both given, but with seed= order and randomness depend on the seed "
            "alone: nothing would be drawn from the generator. Leave one of them out."
        )
    for name, value in given.named.items() if seed is None else ():
        if name in _NEED_SEED:
            raise ValueError(f"{name}={value!r} needs seed=: without it {_NEED_SEED[name]}")


def _by_tokens(dataset: Any, order: dict[str, Any], given: Given, collate_fn: Any) -> TokenBatches:
    """Returns the batch sampler for torch's constructor. Raises an error if the settings do not fit together."""
    names = {*BY_LENGTH, "seed", "shard", "last_batch"}
    ours, _, by_blocks = given.split()
    settings = {name: value for name, value in ours.items() if name in names}
    return TokenBatches(dataset, {**order, **by_blocks}, {**settings, "collate_fn": collate_fn})


def _is_sequential(sampler: Any, batch_sampler: Any) -> bool:
    """True if the sampler (or the batch sampler's sampler) is sequential, as in a loader for predictions."""
    within = getattr(batch_sampler, "_batch_sampler", batch_sampler)  # Lightning wraps it for predictions
    sampler = getattr(within, "sampler", None) if sampler is None else sampler
    return isinstance(sampler, torch.utils.data.SequentialSampler)


def _seeded(loader: DataLoader[Any], what: str) -> Core:
    if loader._ours["seed"] is None:
        raise ValueError(f"{what} needs seed=: without it {_NEED_SEED[what]}")
    return core_of(loader)


def _kind_of_iterator(kind: type, loader: Any) -> type:
    """Returns the class that replaces `kind`, or `kind` itself if penstock's engine cannot be used."""
    if issubclass(kind, (Inline, Workers, Seeded)):
        return kind
    if kind is private.InlineIterator:
        return Inline
    if kind is not private.WorkersIterator:
        reason = f"its iterators are of a class of their own, {kind.__name__}, which changes parts of torch's engine"
    elif isinstance(loader.dataset, private.PIPES):
        reason = "DataPipes are seeded and sharded by torch's own engine"
    elif not HAS_PROCESSES:
        reason = f"penstock's worker processes need Linux, and this is {SYSTEM}"
    else:
        return Workers
    if not isinstance(loader, DataLoader) and given_in(getattr(loader, "timeout", None)) is not None:
        raise TypeError(refusal(loader, reason))
    begun_on_torch(loader, reason)
    return kind


def _new(kind: type, *args: Any, **kwargs: Any) -> Any:
    """Replaces `__new__` of torch's iterators, so that torch loaders can get penstock's iterators.

    A torch loader gets penstock's iterators if the loader is adopted (see `adopt`), or if `enable()` is in effect.
    """
    loader: Any = args[0] if args else kwargs.get("loader")
    is_adopted = not isinstance(loader, DataLoader) and adopt(loader)
    if not is_adopted:
        return object.__new__(_kind_of_iterator(kind, loader) if enable._on else kind)
    ours = _kind_of_iterator(kind, loader)
    if loader._ours["seed"] is None:
        return object.__new__(ours)
    seeded = object.__new__(Seeded)
    if not isinstance(seeded, kind):  # Python calls the constructor only for instances of `kind`
        seeded.__init__(*args, **kwargs)  # type: ignore[misc]
    return seeded


def _watch_iterators() -> None:
    # Never undone: a class refuses constructor arguments after its `__new__` was removed.
    private.BaseIterator.__new__ = _new


def _iterate(loader: DataLoader[Any]) -> Any:
    kind = private.WorkersIterator if loader.num_workers else private.InlineIterator
    are_pipes = isinstance(loader.dataset, private.PIPES)
    if loader._ours["seed"] is not None and not (loader.num_workers and are_pipes):
        kind = Seeded
    elif loader.num_workers:
        loader.check_worker_number_rationality()
    iterator: Any = object.__new__(_kind_of_iterator(kind, loader))
    iterator.__init__(loader)
    return iterator


# The signature has the arguments of the installed torch, and ours.
_torchs, _all = (inspect.signature(kind.__init__) for kind in (torch.utils.data.DataLoader, DataLoader))
_OURS = (*DEFAULTS, "snapshot_every_n_steps")
_named = [each for name, each in _all.parameters.items() if name in _OURS and name not in _torchs.parameters]
DataLoader.__init__.__signature__ = _torchs.replace(  # type: ignore[attr-defined]
    parameters=[*_torchs.parameters.values(), *_named]
)
_THEIRS = {
    name: each.default for name, each in _all.parameters.items() if name not in ("self", "dataset", "newer", *_OURS)
}

setattr(DataLoader, private.ITERATOR_METHOD, _iterate)


class enable:
    """Makes every torch loader in this process use penstock's engine from now on.

    As a context manager, `enable()` restores the previous setting at the end of the block. A second call has no
    further effect. A loader that has its own iterator class keeps torch's engine, and one warning per loader class
    says so.

    >>> import penstock.torch
    >>> with penstock.torch.enable():
    ...     pass
    """

    _on = False

    def __init__(self) -> None:
        self._was = enable._on
        enable._on = True
        _watch_iterators()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        if not self._was:
            disable()


def disable() -> None:
    """Makes torch loaders use torch's own engine again. Existing iterators stay as they are.

    >>> import penstock.torch
    >>> penstock.torch.enable()  # doctest: +ELLIPSIS
    <...>
    >>> penstock.torch.disable()
    >>> penstock.torch.status().enabled
    False
    """
    enable._on = False


def status() -> Status:
    """Returns which loader classes have run on penstock's engine in this process, and which on torch's.

    Print the result for a summary. Loaders on torch's engine are counted only while `enable()` is in effect.
    """
    return status_of(enable._on)
