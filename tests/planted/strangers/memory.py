"""Bugs of memory: what stays mapped, open or out of use for good."""

from __future__ import annotations

from tests.planted.bug import Bug

BUGS = [
    Bug(
        "memory is unmapped only if the array's base outlives the array's weak references",
        "memory",
        "_memory/mapping.py",
        "        free_at_end(array, partial(unmap, address, length))",
        "        from penstock._system.interrupts import call_at_end\n\n"
        "        call_at_end(array, partial(unmap, address, length))",
        ("unit/test_slabs.py::test_memory_is_unmapped_with_its_last_view",),
        "With numpy 2.5 every loader leaks all of its memory.",
    ),
    Bug(
        "what a forked child had too is never used again",
        "memory",
        "_memory/slabs.py",
        "            if all(fork.is_over() for fork in lease.forks):",
        "            if False:",
        ("conformance/test_found.py",),
        "One fork in each epoch while a batch is held: memory grows by a batch each time.",
    ),
    Bug(
        "a closed loader keeps what it needs to know of forks",
        "memory",
        "_engine/engine.py",
        "            self._leases.close()\n",
        "",
        ("conformance/test_found.py::test_a_closed_loader_keeps_no_descriptor_for_a_fork",),
        "After close(), a descriptor stays open for each fork, as long as an iterator of the loader is referenced.",
    ),
    Bug(
        "the memory of a worker that died before its reply stays",
        "memory",
        "_wire/reply.py",
        "        self._strays.forget(worker)\n",
        "",
        ("conformance/test_memory.py",),
        "Each retry after the out-of-memory killer keeps one more batch.",
    ),
]
