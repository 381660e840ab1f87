"""The bugs of `before`, planted in the working tree, where the same decisions are made in other places.

Names, areas, reasons and tests are those of `before`, unless a change below names others. The bugs of `files` and
`strangers` follow.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.planted import before, files, strangers
from tests.planted.bug import Bug

COMMIT: str | None = None

TESTS_FROM_HERE: tuple[str, ...] = ()

# Files that have another name, or whose code is in another one, by their name in `before`.
_FILES = {
    "_crew.py": "_epoch/engines.py",
    "_engine.py": "_epoch/engine.py",
    "_memory/arena.py": "_memory/slabs.py",
    "_memory/lease.py": "_memory/slabs.py",
    "_memory/mapping.py": "_memory/slabs.py",
    "_memory/pool.py": "_memory/slabs.py",
    "_readers.py": "_epoch/readers.py",
    "_run.py": "_feed/base.py",
    "_work/loop.py": "backends/_desk.py",
    "_work/runner.py": "_feed/stream.py",
    "backends/board.py": "backends/_process/board.py",
    "backends/launch.py": "backends/_process/launcher.py",
    "backends/processes.py": "backends/_process/backend.py",
    "backends/reply.py": "_wire/reply.py",
    "backends/template.py": "backends/_process/process.py",
    "backends/threads.py": "backends/_local.py",
    "checkpoint.py": "_resume/state.py",
    "plan/plan.py": "plan/_plan.py",
    "plan/reading.py": "_resume/reading.py",
    "share.py": "_epoch/share.py",
    "torch/core.py": "torch/_core.py",
    "torch/iterators.py": "torch/_iterators.py",
    "torch/order.py": "torch/_sampling.py",
    "torch/place.py": "torch/_cursor.py",
    "torch/tensors.py": "torch/_tensors.py",
    "torch/worker.py": "torch/_worker.py",
}

# What else is different, by name. A bug that is not here has the old text, in the file above.
_CHANGES: dict[str, dict[str, Any]] = {
    "a batch that a forked child of the program has too is overwritten": {
        "old": "            if back.forks:",
        "new": "            if False:",
    },
    "torch uses all cores in every worker": {
        "file": "backends/_native_threads.py",
        "old": "    for setter in _setters:\n        setter(most)\n    guests.limit_threads(most)\n",
        "new": "",
        "tests": ("unit/test_native_threads.py::test_torch_has_one_thread_in_workers_of_every_loader",),
    },
    "a shared epoch counts batches that still wait for their consumer": {
        "old": "            call.item = _Item(self._steps, batch)\n",
        "new": "            for step, mark in self._steps:\n"
        "                self._told.passed(step, mark)\n"
        "            call.item = _Item([], batch)\n",
    },
    "the mark of a step is taken before the step is read": {
        "old": "        mark = None if self._reading is None else taken(self._reading.source, self._reading.mark)\n",
        "new": "        mark, self._read = (\n"
        "            getattr(self, '_read', None),\n"
        "            None if self._reading is None else taken(self._reading.source, self._reading.mark),\n"
        "        )\n",
    },
    "a resumed order forgets the position that it was dealt from": {
        "old": "return min(max(0, begin + (step - self.first_step) * self._stride), self.order.size(epoch))",
        "new": "return min(max(0, (step - self.first_step) * self._stride), self.order.size(epoch))",
    },
    "a slab that is too small is not made larger": {
        "old": "            if region.capacity >= wanted:\n                return region\n",
        "new": "            return region\n",
    },
    "a state that is refused leaves the dataset changed": {
        "old": '                self.update(operator.methodcaller("load_state_dict", before))\n',
        "new": "",
    },
    "batches since a worker's last mark are not forgotten when a new one comes": {
        "old": "self.mark, self.more = mark, 0",
        "new": "self.mark = mark",
    },
    "the state of a sampler is that of the last prefetched step": {
        "old": "return self._marks.pop(step, None)",
        "new": "return self._marks.get(max(self._marks, default=step))",
    },
    "a worker in a long call outlives a killed parent": {
        "old": "    return _arm(lifeline)\n",
        "new": "    return os.dup(lifeline)\n",
    },
    "what a program has not printed yet is printed by its workers again": {
        "old": "    _flush()  # else both processes print what is still buffered\n",
        "new": "",
    },
    "a resumed loader seeds its workers from a new draw": {
        "old": "self.base_seed = iterator._base_seed if self.base_seed is None else self.base_seed",
        "new": "self.base_seed = iterator._base_seed",
    },
    # ---- scheduling ----------------------------------------------------------------------------------------
    "of a bundle whose worker died the first step is blamed": {
        "old": "guilty = None if event.at is None else seq + event.at",
        "new": "guilty = None if event.at is None else seq",
    },
    "a step that was done does not clear the count of deaths of its seat": {
        "file": "_schedule/crew.py",
        "old": "self.losses.pop(self.seats[worker], None)",
        "new": "pass",
    },
    "a seat whose workers die at birth is filled for ever": {
        "file": "_schedule/crew.py",
        "old": "if losses > self._retries + 1]",
        "new": "if losses < 0]",
    },
    "steps on the board stay there when the last worker is gone for good": {
        "old": "step._replace(worker=event.worker)\n                    out.append(Rescind(seq))\n",
        "new": "step._replace(worker=event.worker)\n",
    },
    "out of order a lost step is never reported": {
        "old": "        self._steps[seq] = step._replace(state=LOST)\n"
        "        if not self._in_order:\n"
        "            self._arrived[seq] = None\n",
        "new": "        self._steps[seq] = step._replace(state=LOST)\n",
    },
    "the rest of a bundle is dropped by update()": {
        "file": "_schedule/course.py",
        "old": "again = [task for task, _ in self.ready]",
        "new": "again = []",
    },
    "after update() what was prefetched of the next epoch comes in this one": {
        "file": "_schedule/course.py",
        "old": "self._again.extend(task for task in again if task.run == run.number)",
        "new": "self._again.extend(again)",
    },
    "a second update() does steps twice that the first had put back": {
        "file": "_schedule/course.py",
        "old": "        self._out.clear()\n        self._again.clear()\n",
        "new": "        self._out.clear()\n",
    },
    "steps are redone in reverse order after update()": {
        "file": "_schedule/course.py",
        "old": "self._again.popleft()._replace(seq=seq)",
        "new": "self._again.pop()._replace(seq=seq)",
    },
    "the prefetched next epoch is used although the order has changed": {
        "old": "run.epoch != epochs.next or run.plan != plan or epochs.loaded",
        "new": "run.epoch != epochs.next or epochs.loaded",
    },
    "the epoch ends with the first worker whose own stream has ended": {
        "old": "if len(self._ended) == self._seats:",
        "new": "if self._ended:",
    },
    # ---- memory --------------------------------------------------------------------------------------------
    "the slab of a bundle is lent for its first batch only": {
        "old": "self._leases.lend(slab, outcome.root, nbytes)",
        "new": 'first = (*getattr(outcome, "steps", ()), outcome)[0]\n'
        '            self._leases.lend(slab, getattr(first, "root", outcome.root), nbytes)',
    },
    "no lease is taken for a delivered batch": {
        "old": "self._leases.lend(slab, outcome.root, nbytes)",
        "new": "self._leases.give_back(slab)",
    },
    "the slab of a failed step never comes back": {"old": "self._leases.give_back(slab)", "new": "pass"},
    "neighbouring slabs overlap": {"new": "for start in range(0, length - capacity + 1, mmap.PAGESIZE))"},
    "cold slabs keep their pages": {"old": "self.backend.cool(command.slab)", "new": "pass"},
    "the free slab that was used last is the one that is cooled": {
        "file": "_schedule/slabs.py",
        "old": "coldest = self.warm.popleft()",
        "new": "coldest = self.warm.pop()",
    },
    "an abandoned step frees its slab while a worker still writes to it": {
        "old": "self._abandoned[seq] = step._replace(state=ABANDONED)\n",
        "new": "self._abandoned[seq] = step._replace(state=ABANDONED)\n"
        "                self._slabs.free(step.slab, out)\n",
    },
    "memory is unmapped while batches look into it": {
        "old": "mapped(self.fd, region.length, region.extent)\n",
        "new": "mapped(self.fd, region.length, region.extent)\n"
        "            address = np.frombuffer(buffer, np.uint8).ctypes.data\n"
        "            weakref.finalize(self, _libc.munmap, address, region.length)\n",
    },
    # ---- wire ----------------------------------------------------------------------------------------------
    "pickled keys are taken for raw integers": {
        "file": "_wire/task.py",
        "old": "np.frombuffer(data, np.uint8), -len(data)",
        "new": "np.frombuffer(data, np.uint8), len(data)",
    },
    "raw keys are overwritten by the batch while they are used": {
        "old": "used, gauge = max(0, notice.keys), self._gauge",
        "new": "used, gauge = 0, self._gauge",
    },
    "a token of a task that was taken back claims the task now in its slot": {
        "old": "            if notice.seq != seq:\n                return None\n",
        "new": "",
    },
    "strays are received only when their reply is": {
        "old": "            self._strays.receive()\n",
        "new": "            pass\n",
    },
    "the descriptor of a received stray stays open": {
        "file": "_wire/reply.py",
        "old": "        self._close((seq, worker))\n",
        "new": "        self._received.pop((seq, worker))\n",
    },
    "exceptions of skipped samples arrive as bytes": {"file": "_wire/reply.py"},
    "a failure in a bundle is looked for at the beginning of the slab": {
        "old": "self._replier.failed(head, failure, writer, runner.mark)",
        "new": "self._replier.failed((task.seq, 0, head[2]), failure, writer, runner.mark)",
    },
    "workers do not catch up with changes of the dataset": {
        "old": "step, size, count, self._log.end, *region)",
        "new": "step, size, count, 0, *region)",
    },
    "a forked replacement makes changes again that its copy has already": {
        "file": "backends/_process/worker.py",
        "old": '    board = Board(fds["board"])\n',
        "new": '    board = Board(fds["board"])\n    job.log.end = 0\n',
    },
    "workers are told of a change before it is made here": {
        "old": "                change(dataset)\n"
        "                for engine, encoded in engines:\n"
        "                    engine.update(encoded)\n",
        "new": "                for engine, encoded in engines:\n"
        "                    engine.update(encoded)\n"
        "                change(dataset)\n",
    },
    # ---- resume --------------------------------------------------------------------------------------------
    "the end of a stream leaves nothing to the next epoch": {
        "file": "loader.py",
        "old": "restores = epochs.restores() or copied",
        "new": "restores = epochs.restores()",
    },
    "the mark of a delivered step is not kept for a replacement": {
        "old": "self._position = task.run, outcome.mark",
        "new": "self._position = None",
    },
    "a batch that raised is not counted as read": {
        "old": "            taken = list(through(islice(self._items, size)))\n",
        "new": "            self.read -= 1\n"
        "            taken = list(through(islice(self._items, size)))\n"
        "            self.read += 1\n",
    },
    "workers keep the old seed when a state with another is loaded": {
        "old": "            self._engines.close()  # workers have the seed from the beginning\n",
    },
    "steps handed out early are not counted when the gap before them closes": {
        "old": "        while beyond and steps in beyond:\n",
        "new": "        if beyond and steps in beyond:\n",
    },
    "set_epoch does not forget a loaded state": {
        "file": "_resume/state.py",
        "old": "self.progress = self.loaded = None",
        "new": "self.progress = None",
    },
    "batches of a stream that are passed over are read with the wrong random numbers": {
        "old": "                self._runner.reseed(task.epoch, number)\n",
        "new": "                pass\n",
    },
    # ---- endings -------------------------------------------------------------------------------------------
    "close waits for a worker that is in the middle of a step": {
        "old": "            process.kill()\n        for worker, process in list",
        "new": "            process.join()\n        for worker, process in list",
    },
    "a forked child ends its parent's workers": {
        "old": "        if os.getpid() == self._pid:\n            with interrupts_deferred():\n",
        "new": "        if self._pid:\n            with interrupts_deferred():\n",
        "tests": ("unit/test_process_backend.py::test_close_in_a_forked_child_closes_no_file_of_the_child",),
    },
    "a forked child of the program keeps the workers' lifeline open": {
        "old": 'close_in_child(self.own["lifeline"], self._parents_end)',
        "new": "pass",
    },
    "a forked worker keeps all descriptors of its siblings": {
        "file": "_descriptors.py",
        "old": "_birth.keep = frozenset(fds)",
        "new": "_birth.keep = frozenset(_kept_from_children)",
    },
    "an interrupt while the workers are ended leaves them alive": {
        "old": "        self._scheduler.handle(events.Closed())\n",
        "new": "        self._scheduler.handle(events.Closed())\n        self._finalizer.detach()\n",
        "tests": (
            "conformance/test_planted.py::test_workers_end_with_a_loader_whose_close_was_interrupted_again",
        ),
    },
    "workers hear Ctrl-C themselves": {
        "old": "signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "new": "signal.signal(signal.SIGINT, signal.default_int_handler)",
    },
    "the template process is left behind": {
        "old": "            self.template.release()\n        close(",
        "new": "            pass\n        close(",
    },
    "a thread that waits for a batch is not woken by close": {
        "file": "_epoch/held.py",
        "old": "self.backend.wake()",
        "new": "pass",
    },
    "a reader freed during close puts a closed crew back": {
        "old": "        with interrupts_deferred():\n            for engine in self.all():\n"
        "                engine.close()\n        self._idle = None",
        "new": "        self._idle = None\n        with interrupts_deferred():\n"
        "            for engine in self.all():\n                engine.close()",
    },
    "a start that fails leaves descriptors open": {
        "old": "        for backend in made:\n            backend.close()\n        raise\n",
        "new": "        raise\n",
    },
    "worker threads are not told to end": {"old": "self._permits.put(False)", "new": "pass"},
    "strays that nobody claimed stay open after close": {"old": "self._strays.close()", "new": "pass"},
    # ---- torch parity --------------------------------------------------------------------------------------
    "with a seed torch's generator is not set for the step": {
        "old": "        state = super().seed(epoch, number)\n        torch.default_generator.manual_seed(state)\n",
        "new": "        state = super().seed(epoch, number)\n",
    },
    "workers that are not persistent live on after their epoch": {
        "old": "self._engines.put(engine) if stays else engine.close()",
        "new": "self._engines.put(engine)",
    },
    "beginning an epoch with persistent workers draws a base seed again": {
        "old": "            self._cursor = Cursor(",
        "new": "            import torch\n"
        "            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)\n"
        "            self._cursor = Cursor(",
    },
    "a reset does not wait for the steps of persistent workers": {
        "old": "while self._scheduler.must_settle and not",
        "new": "while False and not",
    },
    "prefetched steps of torch workers are taken back": {
        "old": "_rescinds = False",
        "new": "_rescinds = True",
    },
    "an error of the sampler comes with the first batch instead of iter()": {
        "old": "        error, run.error = run.error, None\n        if error is not None:\n            try:\n",
        "new": "        error = None\n        if error is not None:\n            try:\n",
    },
    "drop_last is forgotten for the workers' own streams": {
        "old": "if not samples or (stream.ended and self._job.drop_last and self._job.batched):",
    },
}

# No bug of `before` has become impossible by construction, but two need more than before to do harm:
#
# - "a forked child ends its parent's workers": the engine closes no backend in a forked child any more. So
#   the bug in the backend shows only if the backend is closed there directly, which a test does. The bug
#   below breaks the rule of the engine.
# - "an interrupt while the workers are ended leaves them alive": the engine repeats a close that was
#   interrupted, so one interrupt does no harm. A test interrupts it again.
_HISTORIES = ("histories/test_histories.py::test_random_histories_find_nothing[core]",)

_MORE = [
    Bug(
        "a forked child takes its parent's workers for its own",
        "endings",
        "_epoch/turn.py",
        "os.register_at_fork(after_in_child=_be_another_process)\n",
        "",
        (
            "faults/test_endings.py::test_a_forked_child_leaves_the_parents_workers_alone",
            "faults/test_torch_endings.py::test_a_forked_child_uses_the_loader_and_leaves_the_parents_workers_alone",
        ),
        "A child that the program forks has the loader too, and must start workers of its own.",
    ),
    Bug(
        "an engine that weak references have forgotten is used again",
        "endings",
        "_epoch/engines.py",
        "if engine.reference() is None:",
        "if False:",
        ("conformance/test_found.py::test_an_iterator_that_the_garbage_collector_frees_leaves_its_loader_sound",),
        "The garbage collector clears weak references before it calls finalizers: updates would miss the engine.",
    ),
    # These are for the random histories, which must find each of them too.
    Bug(
        "an update loses the steps of a bundle that waited to be handed out",
        "scheduling",
        "_schedule/course.py",
        "        again = [task for task, _ in self.ready]\n",
        "        again = []\n",
        _HISTORIES,
        "Batches that were prefetched together with the last one never come.",
    ),
    Bug(
        "a loaded state continues one step too late",
        "resume",
        "loader.py",
        "at = Begin(start.steps, ",
        "at = Begin(start.steps + bool(start.steps), ",
        _HISTORIES,
        "The first batch after a resume is lost.",
    ),
    Bug(
        "the step of a lost worker is done twice",
        "scheduling",
        "_epoch/engine.py",
        "        self._losses[worker] = loss\n        self.stopwatch.lost",
        "        self._losses[worker] = loss\n        self._course._again.extend(steps)\n        self.stopwatch.lost",
        _HISTORIES,
        "A batch comes twice if its worker was killed.",
    ),
    Bug(
        "the descriptors of a worker stay open after close",
        "endings",
        "backends/_process/backend.py",
        "            process.release()\n            del self._workers[worker]",
        "            del self._workers[worker]",
        _HISTORIES,
        "A program that makes many loaders runs out of descriptors.",
    ),
    Bug(
        "a batch that was handed out is overwritten",
        "memory",
        "_epoch/engine.py",
        "            self._leases.lend(slab, outcome.root, nbytes)",
        "            self._leases.give_back(slab)",
        _HISTORIES,
        "A batch that the caller keeps changes.",
    ),
]

BUGS = [
    *(
        replace(bug, **{"file": _FILES.get(bug.file, bug.file), **_CHANGES.get(bug.name, {})})
        for bug in before.BUGS
    ),
    *_MORE,
    *files.BUGS,
    *strangers.BUGS,
]

if unknown := _CHANGES.keys() - {bug.name for bug in before.BUGS}:
    raise ValueError(f"no bug of `before` has the name {', '.join(sorted(unknown))}")
