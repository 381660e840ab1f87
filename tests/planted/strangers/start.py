"""Bugs in how workers are started: beside threads, with thread pools, and with classes that only the program has."""

from __future__ import annotations

from tests.planted.bug import Bug

BUGS = [
    Bug(
        "a native thread in the place of OpenBLAS's is taken for it",
        "starting",
        "backends/_process/forking.py",
        "        _fork_for_trial()\n        _stayed = _others()\n",
        "        _fork_for_trial()\n        _stayed = frozenset(sorted(_others())[1:])\n",
        ("unit/test_launch.py::test_a_single_thread_forks_and_more_do_not",),
        "After a torch loader has run, workers are forked beside libgomp's threads, and hang.",
    ),
    Bug(
        "a template is forked although unpickling the dataset has started threads in it",
        "starting",
        "backends/_process/launcher.py",
        "    obstacle = forking.obstacle().encode()\n",
        '    obstacle = b""\n',
        ("unit/test_launch.py::test_a_template_that_must_not_be_forked_is_not",),
        "A dataset whose module uses JAX gives no batch, ever.",
    ),
    Bug(
        "libraries keep their thread pools in workers",
        "starting",
        "backends/_process/worker.py",
        "    limit()\n",
        "",
        ("unit/test_native_threads.py",),
        "Several workers with as many threads as processors slow each other down.",
    ),
    Bug(
        "OpenCV has one thread in the parent, too, after a worker was forked",
        "starting",
        "backends/_native_threads.py",
        "            module.setNumThreads(before)\n",
        "            pass\n",
        ("unit/test_native_threads.py::test_opencvs_threads_are_the_parents_again_after_a_fork",),
        "The program itself becomes slower with each loader that is started.",
    ),
    Bug(
        "a script in a spawned process is taken to be importable",
        "starting",
        "_wire/modules.py",
        '    if name in ("__main__", "__mp_main__"):\n        return False\n',
        '    if name == "__mp_main__":\n        return True\n',
        ("unit/test_modules.py",),
        "Workers crash in every rank that torch.multiprocessing.spawn has started.",
    ),
    Bug(
        "a module from another file is imported by its name",
        "starting",
        "_wire/modules.py",
        "    return _is_same(found.origin, ",
        "    return True or _is_same(found.origin, ",
        ("unit/test_modules.py",),
        "A worker imports another module of the same name, or crashes.",
    ),
    Bug(
        "each worker has a time of its own to write its stack",
        "starting",
        "backends/_stack.py",
        "    deadline = time.monotonic() + _PATIENCE\n",
        "    deadline = time.monotonic() + _PATIENCE * len(processes)\n",
        ("faults/test_timeouts.py::test_all_workers_are_asked_for_their_stacks_at_once",),
        "With 8 stopped workers a timeout of half a second raises after 4.5 s.",
    ),
    Bug(
        "a lock that was held during a fork is told as a slow sample",
        "starting",
        "backends/_process/launcher.py",
        "forking.threads_beside() if forked else 0",
        "0",
        ("faults/test_timeouts.py::test_a_lock_that_was_held_during_a_fork_is_named_as_the_cause",),
        "The user looks at samples instead of the start method.",
    ),
    Bug(
        "penstock.torch forks beside JAX",
        "starting",
        "torch/_iterators.py",
        'if context == "fork" and breaks_in_child():',
        'if context == "fork" and breaks_in_child() and False:',
        ("parity/test_contexts.py::test_beside_jax_workers_are_not_forked_from_the_program_unless_nothing_else_works",),
        "JAX warns of a deadlock at each fork, and numba ends the worker.",
    ),
]
