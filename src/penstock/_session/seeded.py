"""The session of a loader with penstock's semantics, where a batch is a function of seed, epoch and step."""

from __future__ import annotations

import copy
import math
import operator
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

from penstock._engine.engine import Engine
from penstock._engine.turn import INSIDE
from penstock._feed import Feed, feed_of
from penstock._feed.base import AnyPlan, Begin, Run, displayed_settings
from penstock._feed.keys import refuse_samplers
from penstock._options import Options, is_int, warn_of_ranks
from penstock._resume.commits import CommittedEpochs
from penstock._resume.reading import asked, has_state, known
from penstock._resume.state import ANEW, Epochs, Progress, State, content
from penstock._schedule.onereader import OneReader
from penstock._schedule.scheduler import Scheduler
from penstock._session.foresight import Foresight, foresee
from penstock._session.reading import CommitBatches, IndexedBatches, SeedReader
from penstock._session.session import Session
from penstock._system.ending import never_ends
from penstock._system.interrupts import import_whole
from penstock._wire.task import MOST_STEPS
from penstock._wire.updates import Setting
from penstock._work.job import Job
from penstock.backends import Backend, make
from penstock.batch import Batch
from penstock.collate import default_collate
from penstock.errors import StateError
from penstock.plan import ComputedPlan, Order
from penstock.plan._blocks import WINDOW
from penstock.plan._plan import FirstOpen
from penstock.plan._seeds import draw_key
from penstock.source._dataset import is_stream, to_load_in_parallel
from penstock.source._nested import fingerprint_of

if TYPE_CHECKING:
    from penstock._session.explanation import Explanation
    from penstock._session.tuning import Tuning

S = TypeVar("S", bound=SeedReader)


class SeedSession(Session):
    """A session that also implements the `Semantics` of its loader.

    The seed, the plan and the epochs live as long as the loader. A loader that returns arrays of a library
    other than numpy, such as tensors, passes `face` (see `displayed_settings`) and `make_runner` (see `Job`).
    """

    deliver: Callable[[Any], Any] | None = None

    def __init__(
        self,
        feed: Feed,
        face: str = "penstock",
        make_runner: Callable[..., Any] | None = None,
        epochs: Epochs | None = None,
    ) -> None:
        self.feed, self.knows_end = feed, feed.knows_end
        self._face, self._make_runner = face, make_runner
        self._seed = feed.options.seed
        self._asks_for_ranks = feed.options.is_unsplit  # checked when the first epoch begins: see decision 0036
        self._length: int | None = None
        self._order: Order | None = None  # replacements for bad samples are drawn from it
        self.epochs = epochs or (CommittedEpochs() if feed.options.commit else Epochs())
        self._give_engines()

    def _give_engines(self) -> None:
        super().__init__(
            f"DataLoader({type(self.dataset).__name__})", partial(displayed_settings, self.feed, self._face)
        )
        self.skipped: list[tuple[Any, Exception]] = []  # in the latest epoch
        self.foresight: Foresight | None = None
        self._reader: weakref.ref[SeedReader] | None = None  # of the latest epoch
        self.reweighed: list[tuple[int, int]] = []  # epoch and step of each change of weights
        # No reference to the session, which would be a cycle.
        self.measures.planned = partial(_planned, self.feed, self.epochs, self.reweighed)
        self._begin_tuning()

    def __getstate__(self) -> dict[str, Any]:
        left = ("engines", "runs", "skipped", "deliver", "measures", "tuning", "foresight", "_reader", "reweighed")
        return {name: value for name, value in self.__dict__.items() if name not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # A copy made by copy.copy must not share them.
        self.epochs, self.feed = self.epochs.copy(), copy.copy(self.feed)
        self._give_engines()

    @property
    def dataset(self) -> Any:
        return self.feed.dataset

    @property
    def options(self) -> Options:
        return self.feed.options

    @property
    def seed(self) -> int:
        """The user's seed, or a random one that is drawn on first use."""
        if self._seed is None:
            self._seed = draw_key(self.options.generator)
        return self._seed

    # An epoch.

    @never_ends
    def begin(self, kind: type[S]) -> S:
        if self._asks_for_ranks:
            self._asks_for_ranks = False
            warn_of_ranks(self.dataset)
        if self.options.commit and not issubclass(kind, CommitBatches):
            raise ValueError(
                "With commit=True, only batches() hands out batches, because commit() needs to know their positions. "
                "Iterate over loader.batches() instead of the loader, and give prefetch() the method loader.batches; "
                "instead of share(), read in one thread, and commit in any."
            )
        with self.engines.changing():
            self.take_back()
            epochs = self.epochs
            epochs.check_read()
            self.measures.begin_epoch(epochs.next)
            start, about = epochs.start(), self._about()
            plan = self._plan_from(start)
            if start.begun:  # dataset and sampler may have changed since the state was loaded
                start.check({**about, "sampler": content(plan, about["length"])})
            else:
                start = start._replace(about=about)
            engine = self._take_engine(plan, about["length"])
            try:
                run, start = self._run(engine, plan, start)
                progress, scouts = epochs.progress_type(start, plan), self.measures.meter.scouts
                # Before the workers have anything to do. The foresight's threads start only after the workers forked.
                self.foresight = foresee(self.foresight, self.dataset, plan, progress, scouts)
                reader = kind(self, engine, run, progress)
                reader.start()
                if self.foresight is not None:
                    self.foresight.start()
            except BaseException:
                engine.close()
                raise
            self.engines.begun(engine)
            self._reader = weakref.ref(reader)
            self.skipped = reader.skipped
            epochs.begin(progress)
            return reader

    def _plan_from(self, start: State) -> AnyPlan | None:
        plan = self.feed.plan(self.seed)
        return plan.rest(start.consumed, start.steps) if start.begun and isinstance(plan, ComputedPlan) else plan

    def batches(self) -> IndexedBatches:
        return self.begin(CommitBatches if self.options.commit else IndexedBatches)

    def made(self, data: Any, rows: int, **about: Any) -> Batch[Any]:
        """Makes a `Batch` for `batches()`. `rows` is the number of rows in `data`. `about` holds the other fields."""
        return Batch(data, **about)

    def commit(self, batch: Batch[Any]) -> None:
        if not isinstance(self.epochs, CommittedEpochs):
            raise ValueError("commit() needs a loader with commit=True: without it, batches count when handed out.")
        if not isinstance(batch, Batch):
            raise TypeError(f"commit() takes a Batch that batches() handed out, not a {type(batch).__name__}.")
        self.epochs.commit(batch)

    @never_ends
    def explain(self, step: int, epoch: int | None) -> Explanation:
        import_whole("penstock._session.explanation")
        from penstock._session.explanation import check_dealt, explained  # late: few programs need it

        for name, value in (("step", step), ("epoch", epoch)):
            if not is_int(value, 0) and not (name == "epoch" and value is None):
                raise ValueError(f"{name} must be an integer of at least 0, got {value!r}.")
        number = self.epochs.current if epoch is None else int(epoch)
        in_use = self._plan_in_use(number, int(step))
        if in_use is not None:
            return explained(in_use, self.dataset, number, int(step))
        resumed, plan = self.epochs.resumed, self.feed.plan(self.seed)
        if resumed is not None and resumed.epoch == number and resumed.dealt is not None:
            before, consumed = resumed.dealt
            check_dealt(step, number, before)
            plan = self._plan_from(State(number, before, consumed=consumed))
        if not isinstance(plan, ComputedPlan):
            what = "a stream" if plan is None else self.feed.order_name
            raise ValueError(
                f"The samples of a step cannot be computed from its number: their order comes from {what}, which "
                "must be read. explain() needs one of penstock's orders: in sequence, shuffle=, or its samplers "
                "without a generator. The keys of a batch that was handed out are in batch.index (see batches())."
            )
        return explained(plan, self.dataset, number, int(step))

    def _plan_in_use(self, epoch: int, step: int) -> ComputedPlan | None:
        """Returns the current plan if it contains the given step, otherwise None.

        Unlike a new plan, the current plan has already computed its windows.
        """
        progress = self.epochs.progress
        plan = None if progress is None or progress.epoch != epoch else progress.plan
        return plan if isinstance(plan, ComputedPlan) and plan.first_step <= step else None

    def _take_engine(self, plan: AnyPlan | None, length: int | None) -> Engine:
        """Returns the idle engine if its workers have the current dataset and order, otherwise a new engine."""
        engine, order = self.engines.take(), self.feed.replacements(plan)
        if engine is not None:
            # A state from before the first batch has no position of the stream to return to, but the worker's copy
            # of the stream may have moved on since.
            loaded = self.epochs.loaded if self.feed.one_reader and has_state(self.dataset) else None
            read_on = loaded is not None and loaded.mark is None
            outdated = engine.backend.copies_dataset and (read_on or length != self._length)
            if outdated or engine.job.order != order:
                engine.close()
                engine = None
        self._length, self._order = length, order
        return engine or self.hire(self)

    def _run(self, engine: Engine, plan: AnyPlan | None, start: State) -> tuple[Run, State]:
        """Returns the next epoch's run and starting state. Uses the prefetched run if it is still valid."""
        epochs, feed, run = self.epochs, self.feed, engine.ahead
        if run is None or run.epoch != epochs.next or run.plan != plan or start.begun or epochs.loaded is not None:
            copied = feed.one_reader and engine.backend.copies_dataset
            # A worker that read the last epoch has this state in its dataset already, and ignores the mark.
            restores = epochs.restores() or copied
            mark = known(start.mark) if restores else None
            at = Begin(start.steps, frozenset(start.beyond), mark, epochs.restores())
            if start.mark is None and not start.begun and (epochs.are_fresh or not copied):
                # Taken now, because a stream that is read ahead moves on before the first batch is asked for.
                start = start._replace(mark=feed.beginning(is_fresh=epochs.are_fresh))
            run = feed.run(self.runs, epochs.next, self.seed, plan, at)
        return run, start

    def release(self, engine: Engine) -> None:
        stays = self.options.persistent_workers or self.options.num_workers == 0
        self.engines.put(engine) if stays else engine.close()

    def set_epoch(self, epoch: int) -> None:
        if not isinstance(epoch, SupportsIndex) or not 0 <= operator.index(epoch) < 1 << 62:
            raise ValueError(f"An epoch is an int from 0 to 2**62 - 1, got {epoch!r}.")
        self.epochs.set(operator.index(epoch))

    @never_ends
    def length(self) -> int:
        return self.feed.steps(self.epochs.next, self._plan_from(self.epochs.start()))

    # The semantics: see `Semantics`.

    @property
    def crew_size(self) -> int:
        """The number of workers, or 0 if tasks run in the calling process."""
        number = self.options.num_workers
        return min(number, 1) if self.feed.one_reader else number

    @property
    def window(self) -> int:
        return max(1, self.crew_size * (self.options.prefetch_factor or 1))

    def job(self) -> Job:
        options, batched = self.options, self.feed.batched
        is_default = batched and options.collate_fn is default_collate
        return Job(
            dataset=self.dataset,
            fetch=self.feed.fetch,
            collate_fn=None if is_default else options.collate_fn,
            worker_init_fn=options.worker_init_fn,
            num_workers=self.crew_size,
            seed=self.seed,
            drop_last=options.drop_last,
            shard=options.shard,
            batched=batched,
            batch_size=options.batch_size or 1,
            local_rows=self.feed.local_rows,
            on_error=options.on_error,
            order=self._order,
            cast=options.cast,
            make_runner=self._make_runner,
        )

    def scheduler(self) -> Scheduler:
        retries, in_order = self.options.retries, self.options.in_order
        if self.feed.one_reader and self.options.num_workers:
            return OneReader(window=self.window, retries=retries, in_order=in_order)
        size = max(1, self.crew_size)
        return Scheduler(window=self.window, workers=size, retries=retries, in_order=in_order, spacing=MOST_STEPS)

    def backend(self, job: Job) -> Backend:
        return make(self.options.backend, job, self.options.context)

    def manner(self) -> dict[str, Any]:
        options = self.options
        return {
            "retries": options.retries,
            "look_ahead": options.persistent_workers,
            # A bundle delays its steps. But a timeout limits the time of a single step, and `in_order=False` hands
            # out each step as soon as it is done.
            "bundles": options.timeout == 0 and options.in_order and not self.feed.one_reader,
            "hang": options.hang,
        }

    @property
    def timeout(self) -> float | None:
        return self.options.timeout if 0 < self.options.timeout < math.inf else None

    @property
    def max_errors(self) -> int | None:
        return self.options.max_errors

    # Resuming.

    @never_ends
    def state(self) -> dict[str, Any]:
        """Returns the position after the batches handed out so far, as JSON-serialisable data."""
        state = self.epochs.as_dict(self._about, self.feed.beginning)
        state["seed"] = self.seed
        if self.feed.history is not None:
            state["dataset"] = self.feed.history.as_dict()
        elif self.feed.keeps_state():
            state["dataset"] = asked(self.dataset, self.dataset.state_dict)
        return state

    @never_ends
    def load(self, state: Mapping[str, Any]) -> None:
        """Makes the next epoch continue from `state`.

        If `state` does not fit, raises StateError and changes nothing.
        """
        parsed, history = State.parse(state), self.feed.history
        if history is not None:
            if not isinstance(parsed.dataset, Mapping):
                raise StateError(
                    "The resume state has no history of weights, but the dataset is a mixture. Give the loader the "
                    "dataset that it had when the state was taken."
                )
            try:
                self.feed.history = history.loaded(parsed.dataset, parsed.seed or 0)
                resume = self._fitting(parsed)
            except BaseException:
                self.feed.history = history
                raise
        elif parsed.dataset is None:
            resume = self._fitting(parsed)
        else:
            if not self.feed.keeps_state():
                raise StateError(
                    f"The resume state contains a state of the dataset, but {type(self.dataset).__name__} has no "
                    "load_state_dict(). Give the loader the dataset that it had when the state was taken."
                )
            before = asked(self.dataset, self.dataset.state_dict)
            try:
                # Before the state is checked, because this may change the dataset's length.
                self.update(operator.methodcaller("load_state_dict", parsed.dataset))
                resume = self._fitting(parsed)
            except BaseException:
                self.update(operator.methodcaller("load_state_dict", before))
                raise
        if resume.seed != self._seed:
            self.engines.close()  # workers get the seed when they start
            self._seed = resume.seed
        self.epochs.load(resume)

    def _fitting(self, state: State) -> State:
        """Adapts `state` to this loader's number of ranks. Raises StateError if `state` does not fit the loader."""
        plan, about = self.feed.plan(state.seed or 0), self._about()
        if state.begun:  # or a later epoch
            about["sampler"] = content(plan, about["length"])
        state.check(about)
        if state.later and not self.options.commit:
            raise StateError(
                f"The resume state has batches of epochs {state.epoch} to {state.later[-1].epoch} that were not "
                "committed, which only a loader with commit=True hands out again. Make the loader with commit=True."
            )
        if state.seed is None:
            raise StateError(f"The resume state is damaged: 'seed' is None, but every state has one. {ANEW}")
        if self.options.seed is not None:
            state._replace(about={"seed": state.seed}).check({"seed": self.options.seed})
        later = [each.dealt_anew(plan, self.options.shard.world)._replace(about=about) for each in state.later]
        anew = state.dealt_anew(plan, self.options.shard.world)
        if state.consumed and state.about.get("world") != self.options.shard.world:
            anew = anew._replace(dealt=(anew.steps, state.consumed))
        return anew._replace(about=about, later=tuple(later))

    def _about(self) -> dict[str, Any]:
        """Describes the loader, so that the state of a different loader can be refused."""
        return {
            "kind": self.feed.name,
            "length": self.feed.length(),
            "files": fingerprint_of(self.dataset),
            "order": self.feed.order_name,
            **self._about_settings,
        }

    @cached_property
    def _about_settings(self) -> dict[str, Any]:
        options = self.options
        # Without `on_error`: a run that was stopped by a bad sample can be resumed with another value.
        return {
            "batch_size": options.batch_size,
            "last_batch": options.last_batch,
            "world": options.shard.world,
            "dtype": None if options.cast is None else options.cast.describe(),
            **options.by_length(),
        }

    # Changes to a running loader.

    @never_ends
    def update(self, change: Callable[[Any], object] | None = None, /, **attributes: Any) -> None:
        """Calls `change(dataset)`, or sets attributes of the dataset, in this process and in every worker."""
        if (change is None) == (not attributes) or not (change is None or callable(change)):
            raise TypeError("update() takes either a function that takes the dataset, or attributes to set.")
        if self.feed.history is not None and "weights" in attributes:
            if len(attributes) > 1:
                raise TypeError("update(weights=...) changes the weights of a mixture, and nothing else.")
            self._reweigh(attributes["weights"])
            return
        if self.feed.one_reader and self.options.num_workers:
            raise ValueError(
                "A stream without load() is read by a worker, which cannot read prefetched batches again. "
                f"{to_load_in_parallel(self.dataset)}; or use num_workers=0."
            )
        _check_attributes(self.dataset, attributes, ["weights"] * (self.feed.history is not None))
        self.engines.update(Setting(attributes) if change is None else change, self.dataset)
        self.feed.forget()
        self._length = self.feed.length()

    def _reweigh(self, weights: Mapping[str, float]) -> None:
        """Changes a mixture's weights, and recomputes the steps, from the first sample that can still change.

        The workers need not know the weights, because a key stands for the same sample whatever the weights are.
        """
        errors: list[Exception] = []

        def changed(held: list[Engine]) -> None:
            progress = None if self.epochs.loaded is not None else self.epochs.progress
            current = progress if progress is not None and not progress.is_over else None
            reader = self._reader_of(current, held)
            with nullcontext() if reader is None else reader.passing:
                try:
                    epoch, opened = self._first_open(current)
                    history, window = self.feed.history, self.options.window or WINDOW
                    assert history is not None
                    self.feed.history = history.changed(epoch, opened.position, weights, self.seed, window)
                except Exception as error:  # raising it here would end the engines
                    errors.append(error)
                    return
                self.reweighed.append((epoch, opened.step))
                if current is not None and reader is not None:
                    self._redraw(current, reader)

        reader = None if self._reader is None else self._reader()
        if reader is not None and reader.passing._is_owned():
            raise RuntimeError(INSIDE)
        self.engines.held(changed)
        if errors:
            raise errors.pop()

    def _reader_of(self, progress: Progress | None, held: list[Engine]) -> SeedReader | None:
        reader = None if self._reader is None else self._reader()
        if reader is None or reader.position is not progress or not any(map(reader.is_on, held)):
            return None
        return reader

    def _first_open(self, current: Progress | None) -> tuple[int, FirstOpen]:
        """Returns the epoch and the position of the first sample that can still change."""
        # The committed steps of later epochs must stay as they were.
        last = next((each for each in reversed(self.epochs.later) if each.begun), None)
        if current is not None and last is None:
            epoch, plan, (steps, beyond) = current.epoch, current.plan, current.handed_out()
        else:
            start = last or self.epochs.start()
            epoch, plan, steps, beyond = start.epoch, self._plan_from(start), start.steps, list(start.beyond)
        if not isinstance(plan, ComputedPlan):
            raise TypeError(
                "update(weights=...) needs the mixture's own order: leave out sampler= and batch_sampler=."
            )
        return epoch, plan.first_open(epoch, beyond[-1] + 1 if beyond else steps)

    def _redraw(self, progress: Progress, reader: SeedReader) -> None:
        """Recomputes the remaining steps after the order has changed."""
        before, first = progress.plan, progress.steps
        assert isinstance(before, ComputedPlan)
        # Not from the beginning of the epoch, because all windows since then would be computed again.
        place = State(progress.epoch, first, consumed=before.consumed(progress.epoch, first))
        plan = progress.plan = self._plan_from(place)
        steps, beyond = progress.handed_out()
        run = self.feed.run(self.runs, progress.epoch, self.seed, plan, Begin(steps, frozenset(beyond)))
        if self.foresight is not None:
            self.foresight.close()
            self.foresight = foresee(None, self.dataset, plan, progress, self.measures.meter.scouts)
        reader.redraw(run)
        if self.foresight is not None:
            self.foresight.start()

    def set_num_workers(self, number: int) -> None:
        """Sets the number of workers, and stops tuning it if it was "auto"."""
        now = self.options.num_workers
        if not is_int(number, 1) or not now:
            raise ValueError(
                f"num_workers is {now} and cannot be set to {number!r}: a loader that was made with workers "
                "needs at least 1, and a loader without workers stays at 0. To change this, make a new loader."
            )
        auto = tuple(name for name in self.options.auto if name != "num_workers")
        self.resize(num_workers=int(number), auto=auto, max_workers=None)
        self._begin_tuning()

    def resize(self, **settings: Any) -> None:
        def resized(held: list[Engine]) -> None:
            self.feed.options = replace(self.options, **settings)
            for engine in held:
                engine.resize(self.crew_size, self.window)

        self.engines.held(resized)

    def _begin_tuning(self) -> None:
        self.tuning: Tuning | None = None
        if self.options.auto:
            import_whole("penstock._session.tuning")
            from penstock._session.tuning import Tuning  # late: few programs need it

            self.tuning = Tuning(self.options, self.feed, self.measures)

    def tick(self, engine: Engine) -> None:
        tuning = self.tuning
        if tuning is None or not tuning.extra:
            self.measures.tick()
        self.measures.meter.due = False
        # A sampler may read another iterator of the same loader. That iterator's engine cannot be resized now.
        if tuning is None or any(each.is_used_here() for each in self.engines.all()):
            return
        change = tuning.ask(engine)
        if change is not None:
            self.resize(num_workers=change.workers, prefetch_factor=change.prefetch_factor)
            self.measures.decide(change.workers, change.prefetch_factor, change.reason)

    def close(self) -> None:
        super().close()
        foresight = self.foresight  # another thread may be replacing it
        if foresight is not None:
            foresight.close()


def _check_attributes(dataset: Any, names: Iterable[str], more: list[str]) -> None:
    kind = type(dataset)
    for name in names:
        if hasattr(dataset, name) or hasattr(kind, name):
            continue
        if name == "weights":
            raise AttributeError(
                f"update(weights=...) changes the weights of a mixture, but the dataset, {kind.__name__}, is no "
                "mixture and has no attribute 'weights'. penstock.mix makes a mixture."
            )
        from difflib import get_close_matches  # late: few programs need it

        present = [each for each in dir(dataset) if not each.startswith("_")] + more
        near = get_close_matches(name, present, 1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise AttributeError(
            f"update({name}=...) sets an attribute of the dataset, but {kind.__name__} has no attribute {name!r}. "
            f"{hint}To add an attribute, pass a function that takes the dataset."
        )


def _planned(feed: Feed, epochs: Epochs, reweighed: list[tuple[int, int]]) -> dict[str, Any]:
    import_whole("penstock._session.planned")
    from penstock._session.planned import planned  # late: few programs need it

    return planned(feed, epochs, reweighed)


def feed_for(dataset: Any, given: dict[str, Any]) -> Feed:
    """Checks a loader's arguments. Returns its feed, the object that obtains the samples."""
    options = Options.resolve(is_stream=is_stream(dataset), **given)
    refuse_samplers(dataset, given["sampler"], given["batch_sampler"])
    return feed_of(dataset, options, has_load=hasattr(dataset, "load"))
