"""Bugs in how programs share decoded blocks, and in where workers on Ray are replaced."""

from __future__ import annotations

from tests.planted.bug import Bug

_UNIT, _LAWS = "unit/test_shared_blocks.py", "laws/test_claim_laws.py"

BUGS: list[Bug] = [
    Bug(
        "a loader drops what other loaders need",
        "shared",
        "_cache/shared.py",
        "surplus(rows, _claims(lock.fd))",
        "surplus(rows, [claim])",
        (_UNIT, "unit/test_shared_by_programs.py"),
        "Two programs on one file decode its row groups again and again.",
    ),
    Bug(
        "the claim of a loader that was killed stays",
        "shared",
        "_cache/shared.py",
        "        if is_locked(fd, _CLAIM_LOCKS + number)\n",
        "",
        (_UNIT,),
        "The blocks of a program that was killed stay in memory for as long as others read the table.",
    ),
    Bug(
        "only the first loader is asked what it needs",
        "shared",
        "_cache/claims.py",
        "*(claim.needs for claim in claims)",
        "*(claim.needs for claim in claims[:1])",
        (_LAWS,),
        "Two programs on one file decode its row groups again and again.",
    ),
    Bug(
        "a block takes the place of one that is needed",
        "shared",
        "_cache/claims.py",
        "    others = np.flatnonzero(~_needed(rows, claims))\n",
        "    others = np.arange(len(rows))\n",
        (_UNIT, _LAWS),
        "If the windows of all programs have more blocks than there is room for, each drops those of the others.",
    ),
    Bug(
        "a block order drops the blocks of a random order",
        "shared",
        "_cache/claims.py",
        "cumsum() + coming > keep",
        "cumsum() + coming > 0",
        (_UNIT,),
        "Training in block order makes validation in random order decode a row group for each row.",
    ),
    Bug(
        "a block that is not shared is dropped at the next one",
        "shared",
        "formats/_table.py",
        "self._kept.drop(self._mapped - shared)",
        "self._kept.drop({*self._kept} - shared)",
        ("unit/test_shared_by_programs.py",),
        "With a window beyond the descriptors that a process may have, each step decodes its row groups again.",
    ),
    Bug(
        "an inventory that is being opened is overlooked",
        "shared",
        "_cache/shared.py",
        "any(opened is None for opened, _ in found)",
        "False",
        (_UNIT,),
        "Ranks that start together use two inventories, and drop the blocks of each other.",
    ),
    Bug(
        "the replacement for a worker is started on the node that was lost",
        "scheduling",
        "backends/_ray/backend.py",
        "told, self._silent_nodes())",
        "told, ())",
        (
            "faults/test_cluster_faults.py::test_a_node_that_does_not_answer_is_avoided_by_the_next_workers_for_a_minute",
        ),
        "A worker is missing for 15 seconds or more, until Ray has noticed that the node is lost.",
    ),
]
