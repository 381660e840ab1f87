"""Bugs of what is measured, judged and shown."""

from __future__ import annotations

from tests.planted.bug import Bug

BUGS = [
    Bug(
        "how long a worker had no processor is not added up with what others counted in its seat",
        "verdicts",
        "_measure/gauges.py",
        "_ADDED = Counts._fields[7:]",
        '_ADDED = tuple(name for name in Counts._fields[7:] if name != "delayed")',
        ("stats/test_verdicts_last.py",),
        "In a second epoch a busy machine is taken for slow files.",
    ),
    Bug(
        "a worker does not count how long it had no processor",
        "verdicts",
        "_measure/gauges.py",
        "            self._delayed += max(0, delay - self._delay)",
        "            self._delayed += 0",
        ("stats/test_verdicts_last.py",),
        "On a busy machine the verdict says that samples wait for files.",
    ),
    Bug(
        "throttling counts while the loader is not read",
        "verdicts",
        "_epoch/measures.py",
        "        if self._strain is None or any(crew.open_answer() is not None for crew in self._crews()):",
        "        if True:",
        ("stats/test_verdicts_last.py",),
        "What a program does after its epoch changes the verdict on the epoch.",
    ),
    Bug(
        "the tile of waiting is of the loader's life",
        "verdicts",
        "stats/_panels.py",
        "share(found.waiting if found.enough else period.waiting)",
        "share(stats.life.waiting)",
        ("stats/test_shown.py",),
        "The report says two different shares of waiting.",
    ),
    Bug(
        "a caller that waits does not look whether a store is silent",
        "verdicts",
        "_epoch/engine.py",
        "        if outage is not None and outage.is_long:",
        "        if False:",
        ("remote/test_outages.py",),
        "In an outage of the store nothing is printed for minutes.",
    ),
    Bug(
        "a request that was answered is shown as waiting for ever",
        "verdicts",
        "_measure/cached.py",
        "        self._counts.answered(self)",
        "        pass",
        ("remote/test_outages.py",),
        "After one short outage the verdict blames the store for the rest of the run.",
    ),
    Bug(
        "a malformed page is shown",
        "verdicts",
        "_top.py",
        "        except Exception:  # another version's, or no page at all: one process cannot break the list",
        "        except ValueError:",
        ("unit/test_top.py",),
        "One process with a strange page breaks `penstock top` for all.",
    ),
    Bug(
        "the epochs of a torch loader begin at 0 with each iterator",
        "verdicts",
        "torch/_iterators.py",
        "        self._runs = measured(loader).runs",
        "        import itertools\n\n        self._runs = itertools.count()",
        ("stats/test_shown.py",),
        "Without persistent workers every epoch is epoch 0.",
    ),
]
