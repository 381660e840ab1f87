"""Bugs in what other libraries, type checkers and new users see of the loaders."""

from __future__ import annotations

from tests.planted.bug import Bug

_REBUILT = ("parity/test_rebuilt.py",)
_STATES = ("parity/test_state_of_generators.py",)
_ANSWERS = ("parity/test_answers.py", "unit/test_answers.py")
_RANKS = ("unit/test_ranks.py",)

BUGS = [
    Bug(
        "a loader that accelerate makes drops the arguments of penstock's",
        "faces",
        "torch/_rebuilt.py",
        "    number.given = given\n    return number\n",
        "    return timeout\n",
        _REBUILT,
        "After prepare() the seed is gone, and each run has another order.",
    ),
    Bug(
        "a loader that is made again keeps a generator of the library's",
        "faces",
        "torch/_rebuilt.py",
        "                sampler.generator = None\n",
        "                pass\n",
        _REBUILT,
        "The order of accelerate's ranks does not come from the seed.",
    ),
    Bug(
        "a library and shard= both split the data",
        "faces",
        "torch/_rebuilt.py",
        "if shard.world > 1:",
        "if shard.world > 9:",
        _REBUILT,
        "Each rank reads a part of its part, and most samples are never seen.",
    ),
    Bug(
        "an iterator class of a library's own drops the arguments",
        "faces",
        "torch/_loader.py",
        "        raise TypeError(refusal(loader, reason))\n",
        "        pass\n",
        _REBUILT,
        "A StatefulDataLoader that was made from ours ignores the seed.",
    ),
    Bug(
        "what load_state_dict sets in a generator is undone",
        "faces",
        "torch/_sampling.py",
        "            loan._before |= states\n",
        "            pass\n",
        _STATES,
        "A resumed stream draws other samples than the run that it continues.",
    ),
    Bug(
        "a state before an epoch does not have what the epoch is drawn from",
        "faces",
        "torch/_cursor.py",
        '"ahead": _ahead(loader, cursor),',
        '"ahead": {},',
        _STATES,
        "The epoch after a resume has another order than the one that followed the state.",
    ),
    Bug(
        "generators that the caller restored stay behind",
        "faces",
        "torch/_sampling.py",
        "return None if take_states(plain) == dict(plain) else cls(parse_states(plain))",
        "return cls(parse_states(plain))",
        ("parity/test_state.py",),
        "The second epoch after a resume is the first again.",
    ),
    Bug(
        "batches that a patched constructor has skipped are not counted",
        "faces",
        "torch/_iterators.py",
        "self._num_yielded += cursor.progress.steps",
        "self._num_yielded = cursor.progress.steps",
        ("parity/test_patched.py",),
        "SpeechBrain's second checkpoint of a recovered epoch repeats batches.",
    ),
    Bug(
        "text that dtype= names stays text",
        "faces",
        "_fill/cast.py",
        "        if spec.kind is list and spec.children is None and not self._children:\n",
        "        if False:\n",
        _ANSWERS,
        "dtype= is ignored for the field.",
    ),
    Bug(
        "an error of torch's collate names no field",
        "faces",
        "torch/_collate.py",
        "        error.add_note(str(found))\n",
        "        pass\n",
        _ANSWERS,
        "Nobody finds the sample among twenty fields.",
    ),
    Bug(
        "ranks that read the same are not told",
        "faces",
        "_options.py",
        "if world > 1 and not splits(dataset):",
        "if False:",
        _RANKS,
        "Two ranks train on the same batches.",
    ),
    Bug(
        "a sampler that splits is not seen inside a batch sampler",
        "faces",
        "_options.py",
        'sampler = getattr(sampler, "sampler", None) if inner is None else inner',
        "sampler = None",
        _RANKS,
        "A right program is warned of ranks that read the same.",
    ),
    Bug(
        "the columns of a table are taken for samples",
        "faces",
        "_feed/keys.py",
        'if not given and hasattr(type(self.dataset), "__dataframe__"):',
        "if False:",
        ("unit/test_answers.py::test_a_table_is_no_dataset_because_its_first_item_is_a_column",),
        "A square table trains on its columns, and no error says so.",
    ),
    Bug(
        "penstock.torch is missing until it is imported",
        "faces",
        "__init__.py",
        '"testing", *_GUESTS)',
        '"testing")',
        ("unit/test_answers.py::test_penstock_torch_is_there_without_an_import_of_its_own",),
        "import penstock; penstock.torch.DataLoader raises AttributeError.",
    ),
]
