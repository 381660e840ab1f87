"""Every planted bug: those of the other modules here, and some that were planted later."""

from __future__ import annotations

from tests.planted import core, files, plans, strangers, trust, wire
from tests.planted.bug import Bug

_HISTORIES = ("histories/test_histories.py::test_random_histories_find_nothing[core]",)

_MORE = [
    Bug(
        "on Windows, files are opened as text",
        "anywhere",
        "_system/platform.py",
        ' | _constant(os, "O_BINARY")',
        "",
        ("elsewhere/test_elsewhere.py::test_files_states_and_reports_work",),
        "Windows changes line ends in the bytes that are read, so samples are wrong.",
    ),
    Bug(
        "an index is kept where nobody knows who may write it",
        "anywhere",
        "_files/index.py",
        "    if not HAS_OWNERS:\n        return\n",
        "",
        ("elsewhere/test_elsewhere.py::test_files_states_and_reports_work",),
        "On Windows, another user may have written the positions of the samples.",
    ),
    Bug(
        "workers become threads in silence",
        "anywhere",
        "_options.py",
        "            _warn_of_threads()\n",
        "            pass\n",
        ("elsewhere/test_elsewhere.py::test_workers_are_threads_with_one_warning",),
        "On a Mac, augmentations that draw from numpy.random differ from run to run, and no message says why.",
    ),
    Bug(
        "a forked child takes its parent's workers for its own",
        "endings",
        "_engine/turn.py",
        "register_at_fork(after_in_child=_be_another_process)\n",
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
        "_session/engines.py",
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
        "_session/seeded.py",
        "at = Begin(start.steps, ",
        "at = Begin(start.steps + bool(start.steps), ",
        _HISTORIES,
        "The first batch after a resume is lost.",
    ),
    Bug(
        "the step of a lost worker is done twice",
        "scheduling",
        "_engine/engine.py",
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
        "_engine/engine.py",
        "            self._leases.lend(slab, outcome.root, nbytes)",
        "            self._leases.give_back(slab)",
        _HISTORIES,
        "A batch that the caller keeps changes.",
    ),
]

BUGS = [*core.BUGS, *_MORE, *files.BUGS, *plans.BUGS, *strangers.BUGS, *trust.BUGS, *wire.BUGS]
