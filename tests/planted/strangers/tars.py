"""Bugs in how tars are read that people have: cut off, with keys that come twice, with members that nobody needs."""

from __future__ import annotations

from tests.planted.bug import Bug

_TAR = ("unit/test_formats_tar.py",)
_INDEXES = ("unit/test_tar_indexes.py",)
_UNCOUNTED = ("unit/test_uncounted_tar.py",)

BUGS = [
    Bug(
        "a tar that is cut off is refused as a whole",
        "tars",
        "formats/_samples.py",
        "    except TarFault:\n        fault = True\n",
        "    except TarFault:\n        raise\n",
        _TAR,
        "One broken shard of thousands stops the run before it starts, whatever on_error says.",
    ),
    Bug(
        "the last sample before a cut is served without its missing members",
        "tars",
        "formats/_tar.py",
        "return row >= self.lost or row in self.others",
        "return row > self.lost or row in self.others",
        _TAR,
        "A sample that lacks members, without an error.",
    ),
    Bug(
        "a disk that fails counts as damage of the tar",
        "tars",
        "formats/_samples.py",
        "    except TarFault:\n        fault = True\n",
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
        'Half samples with on_error="skip", without an error.',
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
    Bug(
        "an index beside tars is used whatever is in the tar",
        "tars",
        "formats/_beside.py",
        "return _header(file, self.place) == self.check",
        "return True",
        _INDEXES,
        "A shard that was written again is read at the old positions: errors, though the shard is sound.",
    ),
    Bug(
        "blocks depend on the positions of samples that a machine has found",
        "tars",
        "formats/_tar.py",
        "        if isinstance(self.indexes[number], LateIndex):  # read",
        "        if False:  # read",
        _INDEXES,
        "Ranks have different orders: samples come twice, and others never.",
    ),
    Bug(
        "an index of DALI is believed",
        "tars",
        "formats/_beside.py",
        "        if found is None or found[width < 4 :] != member[width < 4 :]:\n",
        "        if False:\n",
        _INDEXES,
        "Samples are cut at wrong places if DALI's tool was.",
    ),
    Bug(
        "samples behind a cut that wids has counted are looked for",
        "tars",
        "formats/_beside.py",
        'if missing < 0 or (missing and "fault" not in found):',
        "if missing:",
        _INDEXES,
        "One shard that is cut off loses all of its samples.",
    ),
    Bug(
        "an uncounted tar has another order after a resume",
        "tars",
        "formats/_uncounted.py",
        "np.random.default_rng(mix(key, 2, stretch))",
        "np.random.default_rng()",
        _UNCOUNTED,
        "Samples come twice after a resume, and others never.",
    ),
    Bug(
        "the last shards of an uncounted tar are left out",
        "tars",
        "formats/_uncounted.py",
        "for stretch in sorted(stretches) if group == groups - 1 else [done]:",
        "for stretch in [done] if group < groups - 1 else []:",
        _UNCOUNTED,
        "An epoch without the samples of the last window.",
    ),
]
