"""`penstock.pack`: what documents may be, what rows have, and what its errors say."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import StateError
from penstock.plan._windows import WindowPlan

DOCS = [[1, 2, 3], [4, 5, 6, 7, 8, 9], [], [10]]


def lists(rows: Any, field: str = "tokens") -> list[list[int]]:
    return [row[field].tolist() for row in rows]


# Overflow and eos.


@pytest.mark.parametrize(
    ("overflow", "expected"),
    [
        ("split", [[1, 2, 3, 10], [4, 5, 6, 7], [8, 9, 0, 0]]),
        ("truncate", [[1, 2, 3, 10], [4, 5, 6, 7]]),
        ("drop", [[1, 2, 3, 10]]),
    ],
)
def test_a_long_document_is_split_truncated_or_dropped(overflow: Any, expected: list[list[int]]) -> None:
    assert lists(penstock.pack(DOCS, 4, len, overflow=overflow)) == expected


def test_a_long_document_is_an_error_that_names_its_key_and_the_remedy() -> None:
    rows = penstock.pack(DOCS, 4, len, overflow="error", eos=0)
    message = r"document 1 has a length of 7, 1 of them appended to it, but a row has room for 4\. Raise length="
    with pytest.raises(ValueError, match=message):
        len(rows)


def test_concat_cuts_documents_where_a_row_is_full() -> None:
    rows = penstock.pack(DOCS, 4, len, "concat")
    assert lists(rows) == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 0, 0]]
    assert lists(rows, "positions") == [[0, 1, 2, 0], [0, 1, 2, 3], [0, 0, 0, 0]]
    assert lists(rows, "segments") == [[1, 1, 1, 2], [1, 1, 1, 1], [1, 2, 0, 0]]
    assert lists(rows, "documents") == [[0, 0, 0, 1], [1, 1, 1, 1], [1, 3, -1, -1]]


def test_concat_without_splitting_begins_a_row_with_a_document_that_does_not_fit() -> None:
    assert lists(penstock.pack(DOCS, 4, len, "concat", "truncate")) == [[1, 2, 3, 0], [4, 5, 6, 7], [10, 0, 0, 0]]


def test_eos_comes_at_the_end_of_a_document_and_not_of_its_parts() -> None:
    rows = penstock.pack(DOCS, 4, len, eos=99)
    assert lists(rows) == [[1, 2, 3, 99], [4, 5, 6, 7], [8, 9, 99, 0], [10, 99, 0, 0]]
    assert rows.parts_of(2) == [(1, 4, 7)]
    cut = penstock.pack(DOCS, 4, len, overflow="truncate", eos=99)
    assert [4, 5, 6, 7] in lists(cut)


def test_eos_that_does_not_fit_into_the_tokens_is_an_error() -> None:
    rows = penstock.pack([np.array([1, 2], np.uint8)], 4, len, eos=300)
    with pytest.raises(ValueError, match=r"eos=300 does not fit into the dtype of the tokens of document 0, uint8"):
        rows[0]


def test_nothing_is_lost_silently() -> None:
    figures = penstock.pack(DOCS, 4, len, overflow="truncate").figures()
    assert (figures.documents, figures.empty, figures.truncated, figures.truncated_tokens) == (4, 1, 1, 2)
    assert (figures.rows, figures.tokens, figures.padding, figures.fill) == (2, 8, 0, 1.0)
    assert penstock.pack(DOCS, 4, len, overflow="drop").figures().dropped_tokens == 6
    assert penstock.pack(DOCS, 4, len).figures().split == 1


def test_stats_show_how_the_rows_around_the_batch_are_filled() -> None:
    loader = penstock.DataLoader(penstock.pack([*DOCS, [1] * 9], 4, len, overflow="truncate", window=4), batch_size=1)
    batches = iter(loader)
    next(batches)
    packing = loader.stats().packing
    assert packing is not None and (packing.documents, packing.rows, packing.fill) == (4, 2, 1.0)
    assert "100.00% of the rows filled, 4 documents in 2 rows, 2 tokens left out" in str(loader.stats())
    next(batches), next(batches)
    packing = loader.stats().packing
    assert packing is not None and (packing.truncated, packing.truncated_tokens) == (1, 5)
    assert penstock.DataLoader(DOCS).stats().packing is None


# Documents.


def test_tokens_keep_their_dtype_and_other_fields_follow_them() -> None:
    def document(n: int) -> dict[str, Any]:
        ids = np.arange(n, dtype=np.uint16)
        return {
            "id": n,
            "loss_mask": ids > 0,
            "input_ids": ids,
            "logits": np.ones((n, 2), np.float32),
            "text": "x" * n,
        }

    row = penstock.pack([document(2), document(1)], 4, lambda sample: len(sample["input_ids"]))[0]
    assert sorted(row) == ["documents", "logits", "loss_mask", "positions", "segments", "tokens"]
    assert row["tokens"].dtype == np.uint16 and row["logits"].dtype == np.float32
    assert row["loss_mask"].tolist() == [False, True, False, False]
    assert row["logits"].tolist() == [[1, 1], [1, 1], [1, 1], [0, 0]]


def test_the_first_field_of_integers_is_the_tokens_if_none_is_named_so() -> None:
    row = penstock.pack([{"n": 1, "weights": [0.5, 0.5], "ids": [7, 8]}], 3, [2])[0]
    assert row["tokens"].tolist() == [7, 8, 0] and row["weights"].tolist() == [0.5, 0.5, 0]


@pytest.mark.parametrize(
    ("document", "what"),
    [
        ("text", "a str"),
        (np.ones((2, 2)), r"an array of float64 of shape \(2, 2\)"),
        ({"text": "abc"}, r"a dict with the fields \['text'\]"),
    ],
)
def test_a_document_without_tokens_is_an_error_that_says_what_it_is(document: Any, what: str) -> None:
    with pytest.raises(TypeError, match=rf"document 0 is {what}\. Convert it before pack"):
        penstock.pack([document], 4, [2])[0]


def test_a_document_whose_length_changed_is_an_error_with_both_lengths() -> None:
    rows = penstock.pack([[1, 2], [3]], 4, [2, 2])
    with pytest.raises(ValueError, match=r"document 1 has 1 element in 'tokens', but its length is given as 2"):
        rows[0]


def test_an_error_in_a_row_of_many_documents_lists_only_the_first() -> None:
    rows = penstock.pack([[1, 2]] * 4_000, 1_000, [1] * 4_000)
    shown = "(0, 0, 1, 1, 0, 1, ... 3000 in all)"
    with pytest.raises(ValueError, match="its length is given as 1") as raised:
        next(iter(penstock.DataLoader(rows, batch_size=2)))
    notes = "\n".join(raised.value.__notes__)
    assert shown in notes and len(notes) < 500
    with pytest.warns(RuntimeWarning) as warned:
        list(penstock.DataLoader(rows, batch_size=2, on_error="skip"))
    assert shown in str(warned[0].message) and len(str(warned[0].message)) < 800


def test_a_field_with_a_name_that_pack_needs_is_an_error() -> None:
    rows = penstock.pack([{"tokens": [1, 2], "segments": [1, 1]}], 4, [2])
    with pytest.raises(ValueError, match="'segments' is a field that pack adds to rows"):
        rows[0]


def with_mask(tokens: list[int], mask: Any) -> dict[str, Any]:
    return {"input_ids": tokens} if mask is None else {"input_ids": tokens, "loss_mask": mask}


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (None, "no array 'loss_mask'"),
        ([1], "1 element in 'loss_mask'"),
        ([], "0 elements in 'loss_mask'"),
        ([1, 1, 1], "3 elements in 'loss_mask'"),
    ],
)
@pytest.mark.parametrize("good", [[1, 0], [1]])
@pytest.mark.parametrize("length", [4, 2])
@pytest.mark.parametrize("convert", [list, np.array])
def test_a_document_without_a_mask_is_an_error_beside_one_that_has_it(
    mask: Any, said: str, good: list[int], length: int, convert: Callable[[Any], Any]
) -> None:
    if mask == [1] and good == [1]:
        return  # the next test
    documents = [with_mask(good, good), with_mask([8, 9], mask)]
    documents = [{name: convert(values) for name, values in each.items()} for each in documents]
    rows = penstock.pack(documents, length, [len(good), 2])
    message = f"document 1 has {said} for its 2 tokens, but document 0, .* has {len(good)} for {len(good)}\\."
    with pytest.raises(ValueError, match=message):
        next(iter(penstock.DataLoader(rows, batch_size=2)))


def test_a_field_with_one_element_in_each_document_is_no_field_of_tokens() -> None:
    rows = penstock.pack([with_mask([1], [7]), with_mask([8, 9], [7])], 2, [1, 2])
    (batch,) = penstock.DataLoader(rows, batch_size=2)
    assert sorted(batch) == ["documents", "positions", "segments", "tokens"]


# Several kinds of cost.


def test_rows_have_room_for_all_kinds_of_cost() -> None:
    def document(tokens: int, images: int) -> dict[str, Any]:
        return {"tokens": np.full(tokens, tokens), "images": np.full((images, 2), images, np.float32)}

    sizes = [(3, 2), (2, 1), (2, 0), (1, 1)]
    rows = penstock.pack(
        [document(*size) for size in sizes],
        {"text": 6, "images": 2},
        {"text": [t for t, _ in sizes], "images": [i for _, i in sizes]},
        overflow="drop",
    )
    assert lists(rows) == [[3, 3, 3, 2, 2, 0], [2, 2, 1, 0, 0, 0]]
    first, second = rows
    assert first["images"].tolist() == [[2, 2], [2, 2]] and first["images_segments"].tolist() == [1, 1]
    assert second["images"].tolist() == [[1, 1], [1, 1]] and second["images_segments"].tolist() == [1, 2]


def test_several_kinds_of_cost_need_an_overflow_that_cuts_nothing() -> None:
    lengths: Any = {"text": [3], "images": [9]}
    with pytest.raises(ValueError, match="overflow='split' needs one kind of length, but there are 2"):
        penstock.pack([[1, 2, 3]], {"text": 4, "images": 8}, lengths)
    rows = penstock.pack([[1, 2, 3]], {"text": 4, "images": 8}, lengths, overflow="error")
    with pytest.raises(ValueError, match=r"document 0 has lengths of 3 and 9, but a row has room for 4 and 8"):
        len(rows)
    with pytest.raises(ValueError, match=r"lengths= has the kinds \['text'\], but length= has"):
        penstock.pack([[1]], {"text": 4, "images": 8}, {"text": [1]}, overflow="drop")
    with pytest.raises(ValueError, match="lengths= must be a dict with the same names"):
        penstock.pack([[1]], {"text": 4, "images": 8}, [1], overflow="drop")


# Options.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length must be a positive integer"),
        ({"length": {}}, "names no kind of length"),
        ({"method": "worst_fit"}, "method must be one of 'best_fit', 'concat', got 'worst_fit'"),
        ({"overflow": "cut"}, "overflow must be one of 'split', 'truncate', 'drop', 'error'"),
        ({"window": 0}, "window must be a positive integer"),
        ({"lengths": [1, 2]}, "one length for each sample"),
    ],
)
def test_a_wrong_option_is_an_error_that_names_it(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        penstock.pack(DOCS, **{"length": 4, "lengths": len, **options})


def test_unknown_lengths_and_streams_are_errors_with_a_remedy() -> None:
    with pytest.raises(TypeError, match=r"does not know them\. Pass lengths=, an array, or a function"):
        penstock.pack(DOCS, 4)
    with pytest.raises(TypeError, match="is a stream"):
        penstock.pack(iter(DOCS), 4, len)
    with pytest.raises(TypeError, match="eos must be the id of a token"):
        penstock.pack(DOCS, 4, len, eos="</s>")  # type: ignore[arg-type]


def test_lengths_come_from_the_dataset_through_its_stages() -> None:
    data = penstock.dataset(DOCS).with_lengths(len).select([3, 0]).shuffle(1)
    assert sorted(lists(penstock.pack(data, 4))[0]) == [1, 2, 3, 10]


# Rows as samples.


def test_rows_are_found_by_number_slice_and_key() -> None:
    rows = penstock.pack(DOCS, 4, len)
    assert rows[-1]["tokens"].tolist() == rows[2]["tokens"].tolist() == rows[(1, 4, 6)]["tokens"].tolist()
    assert lists(rows[1:]) == lists(rows)[1:]
    with pytest.raises(IndexError, match="row 3 is not in a dataset with 3 rows"):
        rows[3]


class Once(penstock.Dataset[Any]):
    """Records the keys of each call of `__getitems__`."""

    def __init__(self) -> None:
        self.asked: list[Sequence[int]] = []

    def __len__(self) -> int:
        return len(DOCS)

    def __getitems__(self, keys: Sequence[int]) -> list[Any]:
        self.asked.append(list(keys))
        return [DOCS[key] for key in keys]

    def __getitem__(self, key: int) -> Any:
        raise AssertionError("one by one")


def test_the_documents_of_a_batch_are_read_once_by_one_call() -> None:
    data = Once()
    rows = penstock.pack(data, 4, [3, 6, 0, 1])
    (batch,) = penstock.DataLoader(rows, batch_size=3)
    assert batch["tokens"].tolist() == lists(rows)
    assert data.asked[0] == [0, 3, 1]


def test_rows_can_be_mapped_and_an_error_names_the_parts() -> None:
    rows = penstock.pack(DOCS, 4, len)
    double = rows.map(lambda row: {**row, "tokens": row["tokens"] * 2})
    (batch,) = penstock.DataLoader(double, batch_size=3)
    assert batch["tokens"].tolist() == (np.array(lists(rows)) * 2).tolist()
    bad = rows.map(lambda row: 1 // (int(row["tokens"][0]) - 8))
    with pytest.raises(ZeroDivisionError) as caught:
        list(penstock.DataLoader(bad, batch_size=3))
    assert "of sample (1, 4, 6) of pack(list(4 samples), length=4)" in "".join(caught.value.__notes__)


def test_a_bad_document_costs_only_its_rows() -> None:
    def read(tokens: list[int]) -> list[int]:
        if tokens == [10]:
            raise OSError("gone")
        return tokens

    rows = penstock.pack(penstock.dataset(DOCS).map(read), 4, [3, 6, 0, 1])
    batches = list(penstock.DataLoader(rows, batch_size=3, on_error="skip").batches())
    assert batches[0].data["tokens"].tolist() == [[4, 5, 6, 7], [8, 9, 0, 0]]
    assert [key for key, _ in batches[0].skipped] == [(0, 0, 3, 3, 0, 1)]


def test_a_mixture_of_dtypes_is_promoted_within_a_row_as_numpy_does() -> None:
    row = penstock.pack([np.array([1], np.uint8), np.array([2], np.int32)], 2, len)[0]
    assert row["tokens"].dtype == np.int32 and row["tokens"].tolist() == [1, 2]


def test_gathered_numbers_are_converted_by_dtype() -> None:
    rows = penstock.pack([np.array([1, 2], np.uint16)], 4, len)
    (batch,) = penstock.DataLoader(rows, dtype={"tokens": "int64", "segments": "int64"})
    assert batch["tokens"].dtype == batch["segments"].dtype == np.int64
    assert batch["tokens"].tolist() == [[1, 2, 0, 0]]


# Endless documents, and what is passed through.


def test_documents_that_are_repeated_without_end_are_packed_pass_by_pass() -> None:
    rows = penstock.pack(penstock.dataset([[1, 2], [3]]).repeat(), 4, [2, 1], window=3)
    assert rows.endless
    with pytest.raises(TypeError, match="has no end, and so no len"):
        len(rows)
    with pytest.raises(TypeError, match="has no end, so its rows cannot be counted"):
        rows.figures()
    assert [rows.parts_of(number) for number in range(3)] == [
        [(0, 0, 2), (1, 0, 1)],  # 2 is a copy of 0
        [(2, 0, 2)],
        [(3, 0, 1), (4, 0, 2), (5, 0, 1)],  # to part the copies, one row more would be needed
    ]
    loader = penstock.DataLoader(rows, batch_size=2, shuffle=True, seed=1)
    batches = iter(loader)
    assert [next(batches)["tokens"].shape for _ in range(4)] == [(2, 4)] * 4


class Named(penstock.Dataset[Any]):
    """A dataset that has what a mixture has."""

    def __init__(self) -> None:
        self.state: Any = {"stages": []}

    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: int) -> Any:
        return DOCS[key]

    def names_of(self, keys: Sequence[int]) -> list[str]:
        return ["code" if key % 2 else "web" for key in keys]

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def test_the_names_and_the_state_of_the_documents_are_passed_through() -> None:
    rows = penstock.pack(Named(), 4, [3, 6, 0, 1])
    assert rows.names_of([(0, 0, 3, 3, 0, 1), 1]) == [("web", "code"), ("code",)]
    rows.load_state_dict({"stages": [1]})
    assert rows.state_dict() == rows.documents.state == {"stages": [1]}
    plain = penstock.pack(DOCS, 4, len)
    assert not any(hasattr(plain, name) for name in ("names_of", "state_dict", "load_state_dict", "__mixture__"))
    assert not plain.endless


@pytest.mark.parametrize(
    "other",
    [
        {"length": 8},
        {"method": "concat"},
        {"overflow": "drop"},
        {"window": 2},
        {"eos": 0},
        {"lengths": [3, 6, 0, 2]},
    ],
)
def test_a_state_of_rows_that_were_packed_otherwise_is_refused(other: dict[str, Any]) -> None:
    def loader(**options: Any) -> penstock.DataLoader[Any]:
        given = {"length": 4, "lengths": [3, 6, 0, 1], **options}
        return penstock.DataLoader(penstock.pack(DOCS, **given), batch_size=2)

    first = loader()
    next(iter(first))
    loader().load_state_dict(first.state_dict())
    with pytest.raises(StateError, match="packed with length=4, lengths"):
        loader(**other).load_state_dict(first.state_dict())


def test_rows_and_their_plans_can_be_sent_to_other_processes() -> None:
    rows = penstock.pack(DOCS, 4, [3, 6, 0, 1], eos=0)
    assert lists(pickle.loads(pickle.dumps(rows))) == lists(rows)
    assert repr(rows) == "pack(list(4 samples), length=4, eos=0)"
    plan = WindowPlan(rows.__windows__(rows._plan.windows.order, None), 2)  # type: ignore[attr-defined]
    assert pickle.loads(pickle.dumps(plan)) == plan


# Lengths that formats know.


def test_arrow_knows_lengths_from_its_offsets_and_parquet_measures_them(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    from penstock.formats import Arrow, Parquet

    table = pa.table({"mask": [[1.0]] * 3, "input_ids": [[1, 2], None, []], "tokens": [[1], [], [2, 3]]})
    with pa.ipc.new_file(str(tmp_path / "x.arrow"), table.schema) as writer:
        for start in range(3):
            writer.write_table(table.slice(start, 1))
    for data in (Arrow(tmp_path / "x.arrow"), Arrow(table), Arrow(table.slice(1)), penstock.dataset(Arrow(table))):
        assert penstock.dataset(data).__lengths__().tolist() == [len(row["tokens"]) for row in data]
    assert Arrow(table, columns=["mask", "input_ids"]).__lengths__().tolist() == [2, 0, 0]
    assert not hasattr(Arrow(table, columns=["mask"]), "__lengths__")
    pq.write_table(table, tmp_path / "x.parquet")
    data = Parquet(tmp_path / "x.parquet", columns=["tokens"])
    with pytest.raises(TypeError, match="does not know them"):
        penstock.pack(data, 4)
    assert lists(penstock.pack(data, 4, lambda row: len(row["tokens"]))) == [[1, 2, 3, 0]]


def test_compressed_arrow_does_not_know_lengths_without_reading(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from penstock.formats import Arrow

    table = pa.table({"tokens": [[1] * 1000]})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(str(tmp_path / "x.arrow"), table.schema, options=options) as writer:
        writer.write_table(table)
    assert not hasattr(Arrow(tmp_path / "x.arrow"), "__lengths__")


def test_tokens_knows_its_lengths(tmp_path: Path) -> None:
    from penstock.formats import Tokens

    np.arange(10, dtype=np.uint16).tofile(tmp_path / "x.bin")
    rows = penstock.pack(Tokens(tmp_path / "x.bin", "uint16", length=3), 6)
    assert lists(rows) == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 0, 0, 0]]


# Boundaries.


def test_cu_seqlens_of_tensors_are_tensors() -> None:
    torch = pytest.importorskip("torch")
    edges, longest = penstock.cu_seqlens(torch.tensor([[1, 1, 2], [1, 0, 0]]))
    assert edges.dtype == torch.int32 and edges.tolist() == [0, 2, 3, 4, 6] and longest == 2


def test_cu_seqlens_takes_one_row_or_a_batch_only() -> None:
    assert penstock.cu_seqlens(np.array([1, 2, 2, 0]))[0].tolist() == [0, 1, 3, 4]
    assert penstock.cu_seqlens(np.empty((0, 4), np.int32))[0].tolist() == [0]
    with pytest.raises(ValueError, match=r"segments have one axis, or two in a batch"):
        penstock.cu_seqlens(np.zeros((1, 2, 3)))
