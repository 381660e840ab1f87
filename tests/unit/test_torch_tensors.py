"""Tensors in slabs: what arrives is what was sent, and the slab is lent for as long as anything looks into it."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_layout import Box, slab, travel

from penstock import DataLoader
from penstock._memory.layout import Layout, Writer
from penstock._memory.slabs import Leases
from penstock._wire.pickling import dumps

torch = pytest.importorskip("torch")
tensors = pytest.importorskip("penstock.torch._tensors")

QUANTISED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
DTYPES = sorted({d for d in vars(torch).values() if isinstance(d, torch.dtype)} - QUANTISED, key=str)


def bits(tensor: Any) -> bytes:
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
    flat = tensor.view(integers[tensor.itemsize]).reshape(-1).contiguous()
    return bytes(flat.numpy().tobytes())


def alike(one: Any, other: Any) -> bool:
    return (
        type(one) is type(other)
        and one.dtype is other.dtype
        and one.shape == other.shape
        and one.requires_grad == other.requires_grad
        and bits(one) == bits(other)
    )


def random(dtype: Any, shape: tuple[int, ...], seed: int = 0) -> Any:
    """Any bits at all: also those of NaNs and of numbers that are not in their normal form."""
    size = prod(shape)
    data = np.random.default_rng(seed).integers(0, 256, (size + 1) * dtype.itemsize, np.uint8)
    if dtype is torch.bool:
        data %= 2
    return torch.from_numpy(data).view(dtype)[:size].reshape(shape)


def lies_in(root: Any, tensor: Any) -> bool:
    return Writer(root).find(tensor.data_ptr(), tensor.nbytes) is not None


def opened(tensor: Any) -> tuple[Leases, Any]:
    """A tensor that looks into a slab, and the leases, which know slab 7."""
    leases, root = Leases(), slab()
    leases.lend(7, root)
    return leases, travel([tensor], root)[0]


LOOKS: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda t: t,
    "transposed": lambda t: t.permute(tuple(reversed(range(t.ndim)))),
    "every second": lambda t: t[..., ::2] if t.ndim else t,
    "one column": lambda t: t[..., 0] if t.ndim and t.shape[-1] else t,
    "expanded": lambda t: t.expand(3, *t.shape),
    "a window": lambda t: t.unfold(0, 2, 1) if t.ndim and len(t) > 2 else t,
    "in a larger storage": lambda t: t[1:] if t.ndim and len(t) else t,
}
looks = st.sampled_from(sorted(LOOKS))
shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(DTYPES), shapes, looks, st.booleans(), st.integers(0, 9))
def test_a_tensor_arrives_as_it_was(dtype: Any, shape: tuple[int, ...], look: str, boxed: bool, seed: int) -> None:
    root = slab()
    sent = LOOKS[look](random(dtype, shape, seed))
    got = travel(Box(sent), root).value if boxed else travel([sent, "x"], root)[0]
    assert alike(sent, got)
    assert lies_in(root, got) or not got.numel()


@settings(max_examples=100, deadline=None)
@given(shapes, looks)
def test_a_tensor_without_gaps_keeps_its_strides(shape: tuple[int, ...], look: str) -> None:
    sent = LOOKS[look](random(torch.float32, shape))
    got = travel([sent], slab())[0]
    steps = [(size, step) for size, step in zip(sent.shape, sent.stride(), strict=True) if size > 1]
    if sent.numel() > 0 and 1 + sum((size - 1) * step for size, step in steps) <= sent.numel():
        assert [step for size, step in zip(got.shape, got.stride(), strict=True) if size > 1] == [
            step for _, step in steps
        ]
    else:
        assert got.is_contiguous()


@pytest.mark.parametrize("sent", [torch.ones(2, 3), torch.ones(3, 2).T, torch.ones(2).bfloat16()])
def test_to_autograd_a_tensor_is_a_view_of_no_other(sent: Any) -> None:
    got = travel([sent], slab())[0]
    assert got.detach_() is got  # "Can't detach views in-place"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_of_every_dtype_can_be_written_to(dtype: Any) -> None:
    root = slab()
    got = travel([random(dtype, (3,))], root)[0]
    root[...] = 1
    assert bits(got) == b"\1" * got.nbytes
    got.untyped_storage().fill_(0)
    assert bits(got) == bytes(got.nbytes)
    assert root.sum() == len(root) - got.nbytes


def test_each_tensor_has_a_storage_of_its_own() -> None:
    one, other = travel([torch.zeros(4), torch.zeros(4, dtype=torch.bfloat16)], slab())
    assert one.untyped_storage().nbytes() == 16
    assert other.untyped_storage().nbytes() == 8


def test_a_change_in_place_of_one_tensor_is_none_of_its_neighbours_to_autograd() -> None:
    one, other = travel([torch.ones(4), torch.ones(4)], slab())
    weight = torch.ones(4, requires_grad=True)
    product = (one * weight).sum()
    other.add_(1)
    product.backward()
    assert weight.grad.tolist() == [1.0] * 4


def test_a_tensor_in_the_slab_is_not_copied() -> None:
    root = slab()
    writer = Writer(root, used=8)
    tensor = tensors.blank((2, 3), torch.float32, writer.empty)
    used = writer.used
    _, ((make, shape, dtype, at),), rest = writer.place(tensor)
    assert (shape, dtype, at, rest) == ((2, 3), np.float32, 64, [])
    assert writer.used == used
    assert make(shape, dtype, root, at).data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_blank_tensor_is_in_the_memory_given(dtype: Any) -> None:
    root = slab()
    blank = tensors.blank((2, 3), dtype, Writer(root).empty)
    assert blank.dtype is dtype and blank.shape == (2, 3)
    assert lies_in(root, blank)


def test_a_part_of_a_tensor_in_the_slab_that_has_gaps_is_copied() -> None:
    root = slab()
    writer = Writer(root)
    tensor = tensors.blank((4, 4), torch.int64, writer.empty)
    tensor[...] = torch.arange(16).reshape(4, 4)
    spec, spots, rest = writer.place(tensor[:, 1])
    assert Layout(spec, spots).open(root, rest).tolist() == [1, 5, 9, 13]


def test_a_tensor_that_does_not_fit_makes_an_overflow() -> None:
    writer = Writer(slab()[:128])
    writer.place([torch.zeros(64)])
    assert writer.overflow
    assert writer.used == 256


# ---- what travels in a pickle -------------------------------------------------------------------------


def quantised() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "are deprecated and will be removed"
        return torch.quantize_per_tensor(torch.arange(4.0), 0.5, 1, torch.qint8)


def nested() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "the PyTorch API of nested tensors is in prototype stage"
        return torch.nested.nested_tensor([torch.arange(2.0), torch.arange(3.0)])


def compressed(kind: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "Sparse CSR tensor support is in beta state"
        size = {"blocksize": (2, 2)} if "bs" in kind else {}
        return getattr(torch.eye(4), f"to_sparse_{kind}")(**size)


def uncoalesced() -> Any:
    return torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (3, 3), check_invariants=False)


def all_of(sparse: Any) -> Any:
    flags = sparse.is_coalesced() if sparse.layout is torch.sparse_coo else None
    return sparse.layout, sparse.requires_grad, flags, sparse.to_dense().tolist()


class Marked(torch.Tensor):  # type: ignore[misc, name-defined]
    pass


def with_attribute() -> Any:
    tensor = torch.ones(3)
    tensor.note = "mine"
    return tensor


UNUSUAL: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "requires_grad": (lambda: torch.ones(3, requires_grad=True), lambda t: (t.tolist(), t.requires_grad)),
    "parameter": (
        lambda: torch.nn.Parameter(torch.ones(3)),
        lambda t: (t.tolist(), t.requires_grad),
    ),
    "sparse": (lambda: torch.eye(3).to_sparse(), all_of),
    "sparse with a gradient": (lambda: torch.eye(3).to_sparse().requires_grad_(), all_of),
    "sparse and not coalesced": (uncoalesced, all_of),
    **{f"sparse {kind}": (partial(compressed, kind), all_of) for kind in ("csr", "csc", "bsr", "bsc")},
    "quantised": (quantised, lambda t: (t.dtype, t.q_scale(), t.q_zero_point(), t.int_repr().tolist())),
    "nested": (nested, lambda t: (t.is_nested, [part.tolist() for part in t.unbind()])),
    "conjugated": (lambda: torch.tensor([1 + 2j]).conj(), lambda t: (t.is_conj(), t.tolist())),
    "negated": (lambda: torch.tensor([1 + 2j]).conj().imag, lambda t: (t.is_neg(), t.tolist())),
    "meta": (lambda: torch.empty(2, 3, device="meta"), lambda t: (t.device, t.shape)),
    "of a subclass": (lambda: torch.ones(3).as_subclass(Marked), lambda t: t.tolist()),
    "with attributes": (with_attribute, lambda t: (t.note, t.tolist())),
}


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")  # torch's own pickling of quantised ones
@pytest.mark.parametrize("boxed", [False, True], ids=["a leaf", "in an object"])
@pytest.mark.parametrize("name", UNUSUAL)
def test_a_tensor_of_an_unusual_kind_arrives_as_it_was(name: str, boxed: bool) -> None:
    make, facts = UNUSUAL[name]
    sent = make()
    got = travel(Box(sent), slab()).value if boxed else travel({"a": sent, "b": np.arange(3)}, slab())["a"]
    assert type(got) is type(sent)
    assert facts(got) == facts(sent)


@pytest.mark.parametrize("wrap", [list, Box], ids=["leaves", "in an object"])
def test_tensors_that_share_their_memory_do_so_afterwards(wrap: Any) -> None:
    whole = torch.arange(6)
    got = travel(wrap([whole[2:], whole, whole[3:5], whole]), slab())
    late, all_of_it, middle, again = got.value if wrap is Box else got
    assert all_of_it is again
    assert late.tolist() == [2, 3, 4, 5] and middle.tolist() == [3, 4]
    middle.zero_()
    assert all_of_it.tolist() == [0, 1, 2, 0, 0, 5] and late.tolist() == [2, 0, 0, 5]


def test_rows_of_one_tensor_are_leaves_like_others() -> None:
    rows = torch.arange(6).reshape(3, 2)
    _, spots, rest = Writer(slab()).place([rows[2], rows[0], rows[1]])
    assert not rest and None not in spots


def test_a_small_part_of_a_large_storage_takes_little() -> None:
    part = torch.zeros(1 << 20)[5:8]
    travel([part, Box(part)], slab())  # of 64 KB


@dataclass
class Record:
    tensor: Any
    array: Any
    text: str


def test_a_packed_sequence_travels_in_the_slab() -> None:
    root = slab()
    sent = torch.nn.utils.rnn.pack_sequence([torch.arange(3.0), torch.arange(2.0)])
    got = travel([sent], root)[0]
    assert type(got) is type(sent)
    assert got.data.tolist() == sent.data.tolist() and got.batch_sizes.tolist() == [2, 2, 1]
    assert lies_in(root, got.data)


def test_the_pickle_of_an_object_holds_none_of_its_tensors_bytes() -> None:
    buffers: list[pickle.PickleBuffer] = []
    data = dumps(Box([torch.zeros(9999), np.zeros(9999), torch.zeros(99, 99).T]), buffers)
    assert len(buffers) == 3
    assert len(data) < 1000


# ---- the lease ----------------------------------------------------------------------------------------

DERIVED: dict[str, Callable[[Any], Any]] = {
    "itself": lambda t: t,
    "a slice": lambda t: t[1:2],
    "an array": lambda t: t.numpy(),
    "a part of an array": lambda t: t.numpy()[1:],
    "an array by DLPack": lambda t: np.from_dlpack(t),
    "a tensor by DLPack": lambda t: torch.from_dlpack(t),
    "a capsule": lambda t: t.__dlpack__(),
    "in-place": lambda t: t.add_(1),
    "transposed": lambda t: t.T,
    "detached": lambda t: t.detach(),
    "its storage": lambda t: t.untyped_storage(),
    "a memoryview": lambda t: memoryview(t.numpy()),
    "what autograd keeps": lambda t: (t * torch.ones(3, requires_grad=True)).sum(),
    "a shallow copy": lambda t: copy.copy(t),
    "with a gradient": lambda t: t.requires_grad_(),
}


@pytest.mark.parametrize("name", DERIVED)
def test_the_slab_is_lent_while_anything_looks_into_it(name: str) -> None:
    leases, tensor = opened(torch.ones(3, 3))
    derived = DERIVED[name](tensor)
    del tensor
    assert leases.collect() == []
    del derived
    assert leases.collect() == [7]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2, torch.complex32], ids=str)
def test_a_dtype_that_numpy_lacks_keeps_the_lease_too(dtype: Any) -> None:
    leases, tensor = opened(random(dtype, (4, 4)))
    part = tensor[1:]
    del tensor
    assert leases.collect() == []
    del part
    assert leases.collect() == [7]


def test_a_tensor_with_axes_in_another_order_keeps_the_lease() -> None:
    leases, tensor = opened(torch.ones(2, 3).T)
    assert leases.collect() == []
    del tensor
    assert leases.collect() == [7]


def test_a_tensor_in_an_object_keeps_the_lease() -> None:
    leases, root = Leases(), slab()
    leases.lend(7, root)
    box = travel(Box({"a": torch.ones(3)}), root)
    del root
    tensor = box.value["a"]
    del box
    assert leases.collect() == []
    del tensor
    assert leases.collect() == [7]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("name", UNUSUAL)
def test_nobody_keeps_a_tensor_of_an_unusual_kind(name: str) -> None:
    leases, tensor = opened(UNUSUAL[name][0]())
    del tensor
    assert leases.collect() == [7]


def test_a_tensor_moved_to_shared_memory_lets_go_of_the_slab() -> None:
    root = slab()
    tensor = travel([torch.arange(5)], root)[0]
    tensor.share_memory_()
    root[...] = 255
    assert tensor.tolist() == [0, 1, 2, 3, 4]


IN_A_QUEUE = """
import numpy as np, torch, torch.multiprocessing as mp
from penstock._memory.layout import Layout, Writer
from penstock._memory.slabs import Leases

def answer(questions, answers):
    answers.put((questions.get() + 1).tolist())

if __name__ == "__main__":
    context = mp.get_context("fork")
    questions, answers = context.SimpleQueue(), context.SimpleQueue()
    process = context.Process(target=answer, args=(questions, answers))
    process.start()  # first: what is lent at a fork does not come back
    leases, root = Leases(), np.zeros(4096, np.uint8)
    leases.lend(7, root)
    spec, spots, rest = Writer(root).place([torch.arange(5)])
    [tensor] = Layout(spec, spots).open(root, rest)
    questions.put(tensor)
    root[...] = 255  # the tensor has moved to memory that both processes have
    print(answers.get(), tensor.tolist())
    process.join()
    del root, tensor
    print(leases.collect())
"""


def test_a_tensor_put_into_a_queue_arrives_in_another_process() -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_QUEUE], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout == "[1, 2, 3, 4, 5] [0, 1, 2, 3, 4]\n[7]\n"


# ---- through a loader ---------------------------------------------------------------------------------


def collate_records(samples: list[int]) -> Any:
    row = torch.tensor(samples, dtype=torch.bfloat16)
    return {"x": row, "record": Box(Record(row.double(), np.array(samples), "text")), "n": len(samples)}


def test_tensors_of_a_worker_process_are_views_of_its_slabs() -> None:
    with DataLoader(
        range(64), batch_size=4, num_workers=2, multiprocessing_context="fork", collate_fn=collate_records
    ) as loader:
        kept = list(loader)
    for step, batch in enumerate(kept):
        expected = list(range(4 * step, 4 * step + 4))
        record = batch["record"].value
        assert batch["x"].dtype is torch.bfloat16
        assert batch["x"].tolist() == record.tensor.tolist() == record.array.tolist() == expected
        batch["x"].add_(1)
        record.tensor.add_(1)
        record.array += 1


def collate_large(samples: list[int]) -> Any:
    return [torch.full((1 << 20,), samples[0]), torch.full((9,), samples[0]).to(torch.bfloat16)]


def test_tensors_larger_than_the_slab_arrive_too() -> None:
    def grow(samples: list[int]) -> Any:
        return collate_large(samples) if samples[0] > 3 else torch.zeros(3)

    with DataLoader(
        range(8),
        batch_size=1,
        num_workers=1,
        multiprocessing_context="fork",
        collate_fn=grow,
        # The threads of the parent's torch are not there in a forked child, which would wait for them.
        worker_init_fn=lambda seat: torch.set_num_threads(1),
    ) as loader:
        batches = list(loader)
    assert [int(batch[0].sum() >> 20) for batch in batches[4:]] == [4, 5, 6, 7]
    assert [float(batch[1][0]) for batch in batches[4:]] == [4.0, 5.0, 6.0, 7.0]
