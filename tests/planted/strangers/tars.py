"""Bugs in how tars are read that people have: cut off, with keys that come twice, with members that nobody needs."""

from __future__ import annotations

from tests.planted.bug import Bug

_TAR = ("unit/test_formats_tar.py",)

BUGS = [
    Bug(
        "a tar that is cut off is refused as a whole",
        "tars",
        "formats/_samples.py",
        "    except Fault:\n        fault = True\n",
        "    except Fault:\n        raise\n",
        _TAR,
        "One broken shard of thousands stops the run before it starts, whatever on_error says.",
    ),
    Bug(
        "the last sample before a cut is served without its missing members",
        "tars",
        "formats/_tar.py",
        "return row >= self._lost or row in self.others",
        "return row > self._lost or row in self.others",
        _TAR,
        "A sample that lacks members, without an error.",
    ),
    Bug(
        "a disk that fails counts as damage of the tar",
        "tars",
        "formats/_samples.py",
        "    except Fault:\n        fault = True\n",
        "    except FormatError:\n        fault = True\n",
        _TAR,
        "After one failed read, the rest of a sound shard is never read again: the index is kept.",
    ),
    Bug(
        "the first part of a sample whose members are apart is served",
        "tars",
        "formats/_samples.py",
        "            self._apart.extend((other, row))\n",
        "            pass\n",
        _TAR,
        "Half samples with on_error=\"skip\", without an error.",
    ),
    Bug(
        "members that are not among the fields are decoded",
        "tars",
        "formats/_tar.py",
        "if read is not None and field not in read:",
        "if False:",
        _TAR,
        "Two members of a name that is not needed make a sample bad.",
    ),
    Bug(
        "a function for jpeg does not apply to jpg",
        "tars",
        "formats/_decoders.py",
        "            given.setdefault(other, given[end])\n",
        "            pass\n",
        _TAR,
        "Images are decoded by the default instead of the function that was given.",
    ),
]
