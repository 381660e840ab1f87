"""Bugs of endings: of the interpreter, of an epoch, and of what threads share."""

from __future__ import annotations

from tests.planted.bug import Bug

_EXIT = ("faults/test_exit.py",)
_LAST = ("conformance/test_last_batch.py",)
_SHARED = ("unit/test_shared_globals.py",)

BUGS = [
    Bug(
        "the exit does not wait for a thread that computes",
        "endings",
        "_system/threads.py",
        "        said = _wait(thread, said)\n",
        "",
        _EXIT,
        "A thread inside of torch is cut off, and the process aborts with code 134.",
    ),
    Bug(
        "the exit waits for ever for a thread that is blocked",
        "endings",
        "_system/threads.py",
        "    while thread.is_alive() and time.monotonic() < since + PATIENCE:",
        "    while thread.is_alive():",
        _EXIT,
        "A program whose sample waits for a dead server never ends.",
    ),
    Bug(
        "finalizers run while modules are being cleared",
        "endings",
        "_system/interrupts.py",
        "        if over:\n            return\n",
        "",
        _EXIT,
        "\"Exception ignored ... 'NoneType' object has no attribute\" at the end of a program.",
    ),
    Bug(
        "a signal that comes while workers are ended at exit is handled too late",
        "endings",
        "_system/exit.py",
        "    with interrupts_deferred():\n        for one in reversed(list(_open)):\n            one.at_exit()\n",
        "    for one in reversed(list(_open)):\n        one.at_exit()\n",
        _EXIT,
        '"Signal 17 ignored due to race condition" at the end of a program.',
    ),
    Bug(
        "a daemon thread is told that its loader was closed by the exit",
        "endings",
        "_engine/engine.py",
        "                rest_if_over()\n",
        "",
        ("faults/test_exit.py::test_a_daemon_thread_that_reads_a_loader_is_not_disturbed",),
        "A traceback at the end of a program with a reader in the background.",
    ),
    Bug(
        "an iterator that was not asked for its end keeps its workers",
        "endings",
        "_session/session.py",
        "        free = self.engines.taken_back() if self.knows_end else []\n",
        "        free: list[Engine] = []\n",
        _LAST,
        "Loops of a fixed number of batches start a second crew, which stays.",
    ),
    Bug(
        "closing an iterator cancels the epoch that has taken its workers",
        "endings",
        "_engine/engine.py",
        "        if self.closed or _has_left(run):",
        "        if self.closed:",
        _LAST,
        "The next epoch ends in the middle, or hangs.",
    ),
    Bug(
        "an iterator without workers takes batches of the next epoch",
        "endings",
        "_engine/engine.py",
        "            if run is not None and run.is_left:\n                return _END\n",
        "",
        _LAST,
        "Two iterators divide one epoch between them.",
    ),
    Bug(
        "of two threads that borrow the generators, the last restores the first one's",
        "threads",
        "_work/seeding.py",
        "            if me in self._open or not self._open:\n",
        "            if True:\n",
        _SHARED,
        "The program's own random numbers depend on the timing of two loaders.",
    ),
    Bug(
        "answers that come while others are added up are lost",
        "threads",
        "_measure/meter.py",
        "                    for number in counted:\n                        del self._kept[number]\n",
        "                    self._kept.clear()\n",
        _SHARED,
        "Two threads that read one loader: figures are too small.",
    ),
    Bug(
        "each step out of order copies the others",
        "resume",
        "_resume/state.py",
        "            beyond[step] = mark\n            return\n",
        "            self._beyond = {**beyond, step: mark}\n            return\n",
        _SHARED,
        "Past a slow step, each batch takes longer than the one before.",
    ),
    Bug(
        "an empty stream cannot be resumed",
        "resume",
        "_resume/reading.py",
        'None, "fresh" not in mark.kept',
        "None, True",
        ("conformance/test_resume.py::test_an_empty_stream_is_empty_when_it_is_resumed",),
        "A rank whose files are empty today raises StateError.",
    ),
    Bug(
        "a handler may run in the middle of a late import",
        "starting",
        "_system/interrupts.py",
        "        with interrupts_deferred():\n            importlib.import_module(name)\n",
        "        importlib.import_module(name)\n",
        ("faults/test_first_iter.py",),
        "A timer's handler that reads a loader raises a circular ImportError.",
    ),
]
