"""`loader.explain` and `penstock explain`: the samples of a step, before or after it ran, without reading data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import DataLoader, cli


class Unread(penstock.Dataset[int]):
    """A dataset whose samples must not be read."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, key: int) -> int:
        raise AssertionError(f"sample {key} was read")

    def __repr__(self) -> str:
        return f"Unread({self.n})"


class Named(Unread):
    """A mixture, as far as names go."""

    def names_of(self, keys: Any) -> list[str]:
        return ["even" if key % 2 == 0 else "odd" for key in keys]


class Windows:
    """Two rows: a whole document and a part of another, and the rest of that."""

    window = 4

    def count(self, epoch: int) -> int:
        return 1

    def size(self, epoch: int, number: int) -> int:
        return 2

    def table(self, epoch: int, number: int) -> Any:
        from penstock.plan._windows import ItemTable

        return ItemTable(np.array([0, 2, 3]), np.array([[0, 0, 5], [3, 0, 7], [3, 7, 9]]))


class Packed(penstock.Dataset[Any]):
    """As `penstock.pack` makes it."""

    def __init__(self, documents: Any) -> None:
        self.documents = documents

    def __windows__(self, order: Any, seed: int | None) -> Windows:
        return Windows()

    def names_of(self, keys: Any) -> list[tuple[str, ...]]:
        return [tuple(f"source {document}" for document in key[::3]) for key in keys]

    def __len__(self) -> int:
        return 2

    def __getitem__(self, key: Any) -> Any:
        raise AssertionError


def keys_of(loader: DataLoader[Any], step: int, epoch: int | None = None) -> list[list[int]]:
    return [[sample.key for sample in rank] for rank in loader.explain(step, epoch).ranks]


@settings(deadline=None, max_examples=40)
@given(
    n=st.integers(1, 30),
    size=st.integers(1, 4),
    world=st.integers(1, 3),
    shuffle=st.booleans(),
    last_batch=st.sampled_from(["keep", "drop", "pad", "rollover"]),
    epoch=st.integers(0, 2),
)
def test_every_step_is_explained_as_every_rank_gets_it(
    n: int, size: int, world: int, shuffle: bool, last_batch: Any, epoch: int
) -> None:
    ranks = [
        DataLoader(range(n), size, shuffle=shuffle, seed=3, shard=(rank, world), last_batch=last_batch)
        for rank in range(world)
    ]
    for rank in ranks:
        rank.set_epoch(epoch)
    turns = [list(rank.batches()) for rank in ranks]
    for step in range(len(turns[0])):
        found = [turn[step] for turn in turns if step < len(turn)]
        told = ranks[0].explain(step).ranks
        assert [[sample.key for sample in rank] for rank in told if rank] == [each.index.tolist() for each in found]
        assert [sum(sample.pad for sample in rank) for rank in told if rank] == [each.pad for each in found]
        assert all(ranks[-1].explain(step, epoch) == rank.explain(step) for rank in ranks)


@pytest.mark.parametrize("world", [1, 2])
def test_batches_by_length_are_explained_too(world: int) -> None:
    lengths = [key * 7 % 5 + 1 for key in range(30)]
    ranks = [
        DataLoader(range(30), batch_tokens=12, lengths=lengths, shuffle=True, seed=7, shard=(rank, world))
        for rank in range(world)
    ]
    turns = [list(rank.batches()) for rank in ranks]
    for step, batches in enumerate(zip(*turns, strict=True)):
        assert keys_of(ranks[0], step, 0) == [each.index.tolist() for each in batches]


def test_nested_datasets_are_followed_to_the_innermost_key() -> None:
    dataset = Unread(3).concat(Unread(8).select([5, 7])).repeat(2)
    loader = DataLoader(dataset, 5, shuffle=False)
    (first,), (second,) = loader.explain(0).ranks, loader.explain(1).ranks
    found = [(each.sources[0].dataset, each.sources[0].key) for each in first]
    assert found == [("Unread(3)", 0), ("Unread(3)", 1), ("Unread(3)", 2), ("Unread(8)", 5), ("Unread(8)", 7)]
    assert [each.key for each in second] == [5, 6, 7, 8, 9]
    assert [each.sources for each in second] == [each.sources for each in first]


def test_sources_have_the_names_that_the_dataset_gives() -> None:
    loader = DataLoader(Named(4).map(str), 2)
    assert str(loader.explain(1)) == (
        "epoch 0, step 1\n  sample 2: even, Unread(4), key 2\n  sample 3: odd, Unread(4), key 3"
    )


def test_a_packed_row_is_explained_by_its_documents() -> None:
    loader = DataLoader(Packed(Unread(3).concat(Unread(2))), 2)
    found = loader.explain(0)
    assert str(found).splitlines() == [
        "epoch 0, step 0",
        "  row of 2 documents or parts of documents",
        "    source 0, Unread(3), key 0, tokens 0 to 5",
        "    source 3, Unread(2), key 0, tokens 0 to 7",
        "  row of 1 documents or parts of documents",
        "    source 3, Unread(2), key 0, tokens 7 to 9",
    ]
    part = found.as_dict()["ranks"][0][1]["sources"][0]
    assert part == {"source": "source 3", "dataset": "Unread(2)", "key": 0, "begin": 7, "end": 9}
    json.dumps(found.as_dict())


def test_packed_rows_of_a_mixture_are_explained_after_a_change_of_weights() -> None:
    """The keys of documents in the rows that were made are those that were explained."""
    sources = {
        "a": [[key] * (key % 5 + 1) for key in range(7)],
        "b": [[10 + key] * (key % 3 + 1) for key in range(5)],
    }
    mixture = penstock.mix(
        {name: penstock.dataset(each).with_lengths([*map(len, each)]) for name, each in sources.items()},
        {"a": 0.7, "b": 0.3},
    )
    loader = DataLoader(penstock.pack(mixture, 6, window=20), 2, shuffle=True, seed=1)
    batches = loader.batches()
    seen = [next(batches) for _ in range(6)]
    loader.update(weights={"a": 0.1, "b": 0.9})
    seen += [next(batches) for _ in range(6)]
    for batch in seen:
        for sample, tokens in zip(loader.explain(batch.step).ranks[0], batch.data["tokens"].tolist(), strict=True):
            made = [t for each in sample.sources for t in sources[each.source or ""][each.key][each.begin : each.end]]
            assert made + [0] * (6 - len(made)) == tokens


def test_a_step_outside_of_the_epoch_is_an_error() -> None:
    loader = DataLoader(range(6), 2)
    with pytest.raises(IndexError, match="step 3 is outside epoch 0, which has 3 steps"):
        loader.explain(3)
    for wrong in (-1, 1.5, True):
        with pytest.raises(ValueError, match="step must be an integer of at least 0"):
            loader.explain(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="epoch must be an integer of at least 0"):
        loader.explain(0, -2)


def test_an_order_that_must_be_read_is_refused() -> None:
    with pytest.raises(ValueError, match=r"their order comes from list, which must be read\. explain\(\) needs"):
        DataLoader(range(6), 2, sampler=[3, 1, 2]).explain(0)
    stream: Any = penstock.dataset(iter(range(3)))
    with pytest.raises(ValueError, match=r"their order comes from a stream, which must be read"):
        DataLoader(stream, 2).explain(0)


def test_after_a_change_of_ranks_only_the_steps_of_the_new_ranks_are_explained() -> None:
    two = DataLoader(range(40), 2, shuffle=True, seed=1, shard=(0, 2))
    for _, _batch in zip(range(3), two, strict=False):
        pass
    saved = json.loads(json.dumps(two.state_dict()))
    three = [DataLoader(range(40), 2, shuffle=True, seed=1, shard=(rank, 3)) for rank in range(3)]
    for each in three:
        each.load_state_dict(saved)
    turns = [list(each.batches()) for each in three]
    first = turns[0][0].step
    again = DataLoader(range(40), 2, shuffle=True, seed=1, shard=(1, 3))
    three[0].load_state_dict(saved)
    next(iter(three[0]))
    state = three[0].state_dict()
    assert state["dealt"] == [first, 12]
    again.load_state_dict(json.loads(json.dumps(state)))
    assert again.state_dict() == state
    for loader in (three[0], three[1], again):
        for number, step in enumerate(range(first, first + 3)):
            assert keys_of(loader, step, 0) == [turn[number].index.tolist() for turn in turns]
        with pytest.raises(ValueError, match=rf"^The steps before {first} of epoch 0 were dealt to another number"):
            loader.explain(first - 1, 0)
    assert keys_of(again, 0, 1) == keys_of(DataLoader(range(40), 2, shuffle=True, seed=1, shard=(0, 3)), 0, 1)


@pytest.mark.parametrize("dealt", [3, [1], [9, 0], [0, 99], ["a", 1], [1, 2, 3]])
def test_where_the_ranks_changed_is_checked_in_a_state(dealt: Any) -> None:
    loader = DataLoader(range(40), 2, seed=1)
    next(iter(loader))
    with pytest.raises(penstock.StateError, match="damaged: 'dealt' is"):
        loader.load_state_dict({**loader.state_dict(), "dealt": dealt})


def test_the_torch_face_explains_with_a_seed() -> None:
    pytest.importorskip("torch")
    from penstock.torch import DataLoader as TorchLoader

    loader = TorchLoader(list(range(6)), 2, shuffle=True, seed=1)
    assert [keys_of(loader, step)[0] for step in range(3)] == [batch.tolist() for batch in loader]  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"explain\(\) needs seed=: without it the order comes from torch's"):
        TorchLoader(list(range(6))).explain(0)


# ---- penstock explain -----------------------------------------------------------------------------

PROGRAM = """
import penstock

class Unread(penstock.Dataset):
    def __len__(self): return 20
    def __getitem__(self, key): raise AssertionError

def make(world=2):
    return penstock.DataLoader(Unread(), 3, sampler=penstock.SubsetRandomSampler(range(20)), seed=4, shard=(0, world))

def alone():
    return make(world=1)

def needs(what):
    pass
"""


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["explain", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def saved(folder: Path, loader: DataLoader[Any], steps: int = 1) -> str:
    for _, _batch in zip(range(steps), loader, strict=False):
        pass
    path = folder / "state.json"
    path.write_text(json.dumps(loader.state_dict()))
    return str(path)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("last_batch", ["keep", "drop", "pad", "rollover"])
def test_the_state_alone_explains_a_plain_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shuffle: bool, last_batch: Any
) -> None:
    loader = DataLoader(range(20), 3, shuffle=shuffle, seed=9, shard=(0, 2), last_batch=last_batch)
    path = saved(tmp_path, loader)
    for epoch in (0, 2):
        code, out, err = said(capsys, path, "--step", "2", "--epoch", str(epoch))
        shown = [line.split()[1].rstrip(",") for line in out.splitlines() if line.startswith("  sample")]
        assert (code, err) == (0, "")
        assert shown == [str(key) for rank in keys_of(loader, 2, epoch) for key in rank]


def test_the_state_alone_explains_what_other_ranks_have_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    two, three = (DataLoader(range(40), 2, shuffle=True, seed=9, shard=(0, world)) for world in (2, 3))
    for _ in zip(range(4), two, strict=False):
        pass
    three.load_state_dict(two.state_dict())
    path = saved(tmp_path, three)
    step = json.loads(Path(path).read_text())["steps"]
    code, out, err = said(capsys, path, "--step", str(step))
    shown = [line.split()[1].rstrip(",") for line in out.splitlines() if line.startswith("  sample")]
    assert (code, err) == (0, "")
    assert shown == [str(key) for rank in keys_of(three, step) for key in rank]
    assert said(capsys, path, "--step", "0")[0] == 1


def test_the_loader_explains_other_orders_of_a_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "explained_program.py").write_text(PROGRAM)
    loader = DataLoader(range(20), 3, sampler=penstock.SubsetRandomSampler(range(20)), seed=4, shard=(0, 2))
    path = saved(tmp_path, loader)
    code, out, err = said(capsys, path, "--step", "1")
    assert (code, out) == (1, "") and "Name your loader" in err and "No data is read." in err
    code, out, err = said(capsys, path, "--step", "1", "--loader", "explained_program.py:make")
    assert (code, err) == (0, "")
    shown = [int(line.split()[1].rstrip(":")) for line in out.splitlines() if line.startswith("  sample")]
    assert shown == [key for rank in keys_of(loader, 1) for key in rank]
    for name, message in {
        "explained_program.py:alone": "The state was taken with world=2, and explained_program.py:alone has world=1.",
        "explained_program.py:needs": "is called without arguments, but needs some",
        "explained_program.py:penstock": "is not a loader, and does not make one: it is of type module.",
        "explained_program.py:none": "has no 'none'",
    }.items():
        code, out, err = said(capsys, path, "--step", "1", "--loader", name)
        assert (code, out) == (1, "") and message in err.replace("\n", " ")


def test_what_cannot_be_explained_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, DataLoader(range(6), 2, seed=1))
    assert said(capsys, path, "--step", "3") == (
        1,
        "",
        "penstock explain: step 3 is outside epoch 0, which has 3 steps.\n",
    )
    assert (
        "a state before the first batch"
        in said(capsys, saved(tmp_path, DataLoader(range(6), seed=1), 0), "--step", "0")[2]
    )
    Path(path).write_text("{}")
    assert "This is not a resume state of penstock's" in said(capsys, path, "--step", "0")[2]
    for other in (b"{", b"\x80\x02}q", b""):
        Path(path).write_bytes(other)
        code, out, err = said(capsys, path, "--step", "0")
        assert (code, out) == (1, "") and f"{path} is not a JSON file (" in err and "json.dump" in err
    assert "No such file" in said(capsys, str(tmp_path / "none.json"), "--step", "0")[2]
