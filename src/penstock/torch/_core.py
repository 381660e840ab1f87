"""The session of a torch loader that has a seed: penstock's semantics, with tensors in the batches."""

from __future__ import annotations

import inspect
import warnings
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch.utils import data as theirs
from torch.utils.data import RandomSampler, default_collate

import penstock
from penstock._feed import feed_of
from penstock._fill.cast import Empty
from penstock._options import BY_LENGTH, OPTIONS, Face, Options
from penstock._session.seeded import S, SeedSession
from penstock._wire.failure import dict_of
from penstock._wire.task import Task
from penstock._wire.updates import Change
from penstock._work.generators import Generators
from penstock._work.job import Job
from penstock._work.runner import Runner
from penstock._work.seeding import Borrowed, GeneratorLoan, Lending
from penstock.backends import _base as backends
from penstock.backends._process.methods import configured_method
from penstock.source._dataset import is_stream
from penstock.torch import _private as private
from penstock.torch._batches import Planned, PlannedKeys, TokenBatches, planned_in
from penstock.torch._collate import collate, explain, explained, with_tensors
from penstock.torch._gather import TensorGather, is_closed


class Stacked:
    """torch's default_collate, with a method `into` that writes the batch into memory provided by the caller."""

    __call__ = staticmethod(explained)

    def into(self, samples: Any, empty: Any) -> Any:
        try:
            return collate(samples, empty)
        except Exception as error:
            rows = [row for row in range(1, len(samples)) if not _fit(samples[0], samples[row])]
            dict_of(error)["rows"] = tuple(rows)  # the class may define a __setattr__ that raises
            explain(error, samples)
            raise


def _fit(first: Any, other: Any) -> bool:
    with suppress(Exception):
        default_collate([first, other])
        return True
    return False


_STACKED = Stacked()


class _TorchGenerators(Generators):
    """`Generators` that include torch's global generator."""

    def seed(self, epoch: int, number: int) -> int:
        state = super().seed(epoch, number)
        torch.default_generator.manual_seed(state)
        return state

    def allow(self) -> None:
        super().allow()
        self._borrow = _BorrowedWithTorch


class SeededRunner(Runner):
    """Runs the tasks of datasets that may use torch's worker info or torch's global generator."""

    make_generators = _TorchGenerators

    def __init__(self, job: Job, who: str) -> None:
        super().__init__(job, who)
        self._gathers = job.batched and isinstance(job.collate_fn, Stacked) and not is_stream(job.dataset)
        self._tensors = self._new_gather()

    def _new_gather(self) -> TensorGather | None:
        return TensorGather(self._job, seeded=True, late=self._focus.alone) if self._gathers else None

    def begin(self, seat: int, *, alone: bool) -> None:
        job = self._job
        private.set_worker_info(seat, job.num_workers, job.seed + seat, job.dataset)
        super().begin(seat, alone=alone)
        self._prepare()

    def change(self, changes: Iterable[Change]) -> None:
        super().change(changes)
        self._prepare()

    def look_up(self) -> None:
        super().look_up()
        self._prepare()

    def _prepare(self) -> None:
        """Discards what is known about the dataset. Called at the start and after each change to the dataset."""
        self._tensors = self._new_gather()
        if self._tensors is not None:
            # Seeding three generators takes 16 us. A batch without the user's code does not need it.
            self._focus.seeds = self._focus.alone and not is_closed(self._job.dataset)

    def _gather(self, task: Task, empty: Empty) -> tuple[object, int] | None:
        if self._tensors is None:
            return super()._gather(task, empty)
        self._focus.doing("__gather__ of samples ", task.keys)
        gathered = self._tensors(task.keys, empty)
        if gathered is None:
            self._focus.doing("", None)
            if self._tensors.has_run or (self._focus.alone and not self._focus.seeds):
                self._focus.draw_for(self._job.number(task.step))
        return gathered


class _BorrowedWithTorch(Borrowed):
    """A `Borrowed` that includes torch's global generator."""

    def __init__(self, *of: int) -> None:
        super().__init__(*of)
        self._torch = GeneratorLoan()

    def begin(self) -> int:
        _lending.begin(self._torch)
        state = super().begin()
        torch.default_generator.manual_seed(state)
        return state

    def end(self) -> None:
        super().end()
        _lending.end(self._torch)


class _TorchState:
    _torch: torch.Tensor | None = None

    def take(self) -> None:
        self._torch = torch.get_rng_state()

    def put_back(self) -> None:
        if self._torch is not None:
            torch.set_rng_state(self._torch)


_lending = Lending(_TorchState)


class Core(SeedSession):
    """The session of a torch loader with a seed. Continues at the epoch that the session `before` has reached."""

    def __init__(self, settings: dict[str, Any], before: Core | None = None) -> None:
        given = {**_DEFAULTS, **settings, "sampler": _seedable(settings.get("sampler"))}
        dataset = given.pop("dataset")
        with warnings.catch_warnings():  # torch's constructor has warned already
            warnings.filterwarnings("ignore", "num_workers=.* is more than the")
            options = Options.resolve(is_stream=is_stream(dataset), **given)
            # A torch dataset may have a method of this name for another purpose.
            has_load = isinstance(dataset, penstock.IterableDataset) and hasattr(dataset, "load")
            feed = feed_of(dataset, options, has_load, _BorrowedWithTorch)
        super().__init__(feed, "penstock.torch", SeededRunner, None if before is None else before.epochs)
        then, now = None if before is None else before.feed.history, self.feed.history
        if then is not None and now is not None and then.mixture is now.mixture:
            self.feed.history = then
        self.given = settings
        self.face: Callable[[], Any] = type(None)  # a weak reference to the torch loader
        self.planned: Planned | None = None  # the sampler that frameworks see in place of the plan

    def begin(self, kind: type[S]) -> S:
        reader = super().begin(kind)
        if self.planned is not None:
            self.planned.set_epoch(self.epochs.next)
        return reader

    def resize(self, **settings: Any) -> None:
        super().resize(**settings)
        self.show_numbers()

    def show_numbers(self) -> None:
        """Copies the current values of automatically tuned settings to the torch loader."""
        loader = self.face()
        for name in self.options.auto if loader is not None else ():
            loader.__dict__[name] = getattr(self.options, name)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "face": type(None)}


# Defaults of penstock's loader, for the arguments that a torch loader does not have.
_DEFAULTS = {
    name: each.default
    for name, each in inspect.signature(penstock.DataLoader).parameters.items()
    if each.default is not each.empty
}


def core_of(loader: Any) -> Core:
    """Returns the loader's session, which is stored on the loader and replaced when a setting has changed."""
    core: Core | None = loader.__dict__.get("_penstock")
    settings = _settings(loader)
    if core is None or not _fits(core, settings):  # some settings may change between two epochs, as in torch
        core = Core(settings, core)
        object.__setattr__(loader, "_penstock", core)
    core.face, core.deliver, core.planned = weakref.ref(loader), None, planned_in(loader)
    core.show_numbers()
    if loader.pin_memory and torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator()
        core.deliver = partial(private.pin, device=None if device is None else device.type)
    return core


def _fits(core: Core, settings: dict[str, Any]) -> bool:
    """True if the core has these settings. The number of workers may differ while another thread is changing it."""
    if core.given == settings:
        return True
    # A thread that sets `num_workers` changes the core before the loader. Another thread may look in between.
    given, others = core.given, settings.keys() - {"num_workers", "max_workers"}
    runs = bool(given.get("num_workers") and settings.get("num_workers"))
    return runs and given.keys() == settings.keys() and all(given[name] == settings[name] for name in others)


def _settings(loader: Any) -> dict[str, Any]:
    order = _order(loader)
    settings = {**loader._ours, "dtype": loader._cast, **order, **loader._by_blocks}
    if settings["batch_tokens"] is not None and "batch_sampler" in order:
        # A framework has wrapped the loader's `TokenBatches`, which makes batches by these settings.
        settings |= {name: OPTIONS[name].default for name in BY_LENGTH}
    settings |= {name: getattr(loader, name) for name in _passed(loader.num_workers)} | loader._auto
    if "num_workers" not in loader._auto:
        # A framework that rebuilds a tuned loader passes the current number together with `max_workers`, which is
        # allowed only with "auto".
        settings["max_workers"] = None
    if loader.collate_fn is default_collate:
        settings["collate_fn"] = _STACKED
    elif "collate_fn" in settings:
        settings["collate_fn"] = with_tensors(settings["collate_fn"])
    argument = backends.registered(loader._ours["backend"] or backends.PROCESS).argument
    if loader.num_workers and argument == _CONTEXT and loader.multiprocessing_context is None:
        # torch's default, not ours: a program that works with torch's loader works here without changes.
        settings[_CONTEXT] = configured_method()
    return settings


_CONTEXT = "multiprocessing_context"


def _passed(workers: int) -> list[str]:
    names = [name for name, option in OPTIONS.items() if option.face is Face.PASSED]
    if workers:
        return ["dataset", _CONTEXT, *names]
    # Without workers, the other attributes are None or left over from a time with workers. (A timeout is passed on,
    # and refused.)
    return ["dataset", *(name for name in names if OPTIONS[name].unset is None or name == "timeout")]


def _order(loader: Any) -> dict[str, Any]:
    """Returns penstock's arguments for the loader's order. torch's usual samplers are replaced with `shuffle=`."""
    batched, batch_sampler = private.is_batched(loader), loader.batch_sampler
    if isinstance(batch_sampler, TokenBatches):
        return batch_sampler.order
    if batched and type(batch_sampler) is not theirs.BatchSampler:
        return {"batch_sampler": batch_sampler}
    given = batch_sampler if batched else loader
    order: dict[str, Any] = {"batch_size": given.batch_size, "drop_last": given.drop_last}
    if private.is_stream(loader):
        return order
    sampler = given.sampler
    if isinstance(sampler, PlannedKeys):
        return {**order, **sampler.order}
    if type(sampler) is theirs.SequentialSampler and sampler.data_source is loader.dataset:
        return order
    plain = type(sampler) is RandomSampler and not sampler.replacement
    if plain and sampler.data_source is loader.dataset and sampler.num_samples == len(loader.dataset):
        return {**order, "shuffle": True}
    return {**order, "sampler": sampler}


def _seedable(sampler: Any) -> Any:
    """Returns penstock's equivalent of a torch sampler, or the sampler itself if penstock has no equivalent."""
    if type(sampler) is RandomSampler:
        return penstock.RandomSampler(sampler.data_source, sampler.replacement, sampler.num_samples)
    if type(sampler) is theirs.SubsetRandomSampler:
        return penstock.SubsetRandomSampler(torch.as_tensor(sampler.indices).tolist())
    if type(sampler) is theirs.WeightedRandomSampler:
        weights = sampler.weights.tolist()
        return penstock.WeightedRandomSampler(weights, sampler.num_samples, sampler.replacement)
    return sampler
