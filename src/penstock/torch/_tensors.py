"""Support for torch tensors in batches: how they are stored in slabs, pickled, converted, copied and pinned.

penstock's core does not import torch; it calls torch only through `GUEST`.

A tensor in a slab (shared memory for one batch) is opened through numpy: its storage refers to an array over the
tensor's own bytes, and that array refers to the slab's root array. Everything that shares the storage (slices,
`.numpy()`, DLPack) therefore keeps the slab in use. An operation that moves the storage (`share_memory_()`)
releases the slab. Each tensor has its own storage, so saving one tensor does not save its neighbours, and autograd
does not mistake a change to one tensor for a change to another tensor.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.multiprocessing import reductions

from penstock._memory.guests import Handler

if TYPE_CHECKING:
    from penstock._fill.cast import Empty, FieldCast
    from penstock._memory.guests import Guest, MakeLeaf, Reduce, Spot
    from penstock._memory.layout import Writer

Shape = tuple[int, ...]

NATIVE: dict[torch.dtype, np.dtype[Any]] = {
    getattr(torch, name): np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
    if hasattr(torch, name)
}
"""The torch dtypes that numpy also has. Tensors of other dtypes are stored as integers of the same size."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

_IN_BAND = 1024  # bytes: copying a smaller buffer is faster than looking it up


def blank(shape: Shape, dtype: torch.dtype, empty: Empty) -> torch.Tensor:
    """Does the same as `torch.empty`, but in memory allocated by `empty`. Quantised dtypes are not supported."""
    known = NATIVE.get(dtype)
    if known is not None:
        return torch.from_numpy(empty(shape, known))
    return torch.from_numpy(empty(shape, NATIVE[_INTEGERS[dtype.itemsize]])).view(dtype)


_from_numpy, _ndarray = torch.from_numpy, np.ndarray  # looked up once: a leaf of a batch takes 1.1 us instead of 1.3


def native(shape: Shape, dtype: np.dtype[Any], root: Any, at: int) -> torch.Tensor:
    """Returns a tensor view of `root` starting at byte `at`, with a dtype that numpy has."""
    tensor = _from_numpy(_ndarray(shape, dtype, root, at))
    # `root` is shared memory, but `Tensor.is_shared()` knows only memory that torch itself has mapped. An attribute
    # of the storage, which all views of the tensor have in common, hides torch's method. It costs 0.4 us.
    tensor.untyped_storage().is_shared = _is_shared  # type: ignore[method-assign]
    return tensor


def _is_shared() -> bool:
    return True


def reinterpreted(shape: Shape, dtype: torch.dtype, root: Any, at: int) -> torch.Tensor:
    """Returns a tensor view of `root` starting at byte `at`, with a dtype that numpy lacks."""
    return native(shape, NATIVE[_INTEGERS[dtype.itemsize]], root, at).view(dtype)


def strided(shape: Shape, how: tuple[MakeLeaf, Any, int, Shape], root: Any, at: int) -> torch.Tensor:
    """Returns a tensor view of `root` starting at byte `at`, with permuted axes or repeated rows."""
    make, dtype, span, stride = how
    view: torch.Tensor = make((span,), dtype, root, at)
    return view.as_strided(shape, stride).detach()


def store(tensor: torch.Tensor, writer: Writer) -> Spot | None:
    """Writes a tensor into the batch's memory. Returns its location, or None if only torch can pickle it."""
    described = _describe(tensor)
    if described is None:
        return None
    make, shape, how, source = described
    nbytes = source.nbytes
    start = writer.find(source.data_ptr(), nbytes)
    if start is None or not source.is_contiguous():
        if tensor.__dict__:  # the user has set attributes, which would be lost
            return None
        source = source.contiguous()
        start = writer.copy(source.data_ptr(), nbytes, source)
    return make, shape, how, start


def reduce(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Reduces a tensor inside another object, like `__reduce_ex__`. The tensor's bytes are pickled out of band."""
    described = None if tensor.__dict__ else _describe(tensor)
    if described is None:
        if tensor.requires_grad and not tensor.is_leaf:
            raise RuntimeError(
                "A batch holds a tensor that was computed with gradients. Its autograd graph is in the worker and "
                "cannot be sent with it: detach() the tensor in the dataset or in collate_fn."
            )
        if tensor.is_quantized:
            return _quietly, (pickle.loads, _quietly(pickle.dumps, tensor, 5))
        # Pickled by torch, a tensor keeps its layout, flags and attributes, at the cost of copies.
        pickled: tuple[Any, ...] = tensor.__reduce_ex__(5)  # type: ignore[no-untyped-call]
        if tensor.layout is not torch.strided and not tensor.__dict__:
            return rebuild_sparse, (*pickled[1], tensor.requires_grad)
        return pickled
    make, shape, how, source = described
    array: Any = source.contiguous().numpy()
    return make, (shape, how, pickle.PickleBuffer(array), 0)


def _quietly(function: Callable[..., Any], *arguments: Any) -> Any:
    with warnings.catch_warnings():  # torch warns about a deprecated class that it uses itself
        warnings.simplefilter("ignore", UserWarning)
        return function(*arguments)


def cast(tensor: torch.Tensor, field: FieldCast, empty: Empty) -> torch.Tensor:
    """Converts the tensor to the field's dtype, if any. Uses memory allocated by `empty` where possible."""
    known = NATIVE.get(tensor.dtype)
    kind = "f" if tensor.is_floating_point() else "" if known is None else known.kind
    name = field.wanted(kind, "a tensor of ", tensor.dtype)
    if name is None or tensor.layout is not torch.strided:
        return tensor
    dtype: torch.dtype = getattr(torch, name)
    if dtype is tensor.dtype:
        return tensor
    shape, plain = tuple(tensor.shape), tensor.is_cpu and not tensor.requires_grad and not tensor.is_neg()
    if plain and known is not None and dtype in NATIVE:
        out = empty(shape, NATIVE[dtype])
        field.write(out, tensor.numpy())
        return torch.from_numpy(out)
    made = blank(shape, dtype, empty).copy_(tensor) if plain else tensor.to(dtype)
    if field.checked:
        whole = not dtype.is_floating_point
        lost = made.to(tensor.dtype) != tensor if whole else made.isinf() & tensor.isfinite()
        if lost.any():
            first = lost.nonzero()[0].tolist()
            field.lose(tensor[tuple(first)].item(), name, first[0] if first else 0)
    return made


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy in pinned memory, which torch recycles, or a normal copy if the tensor cannot be pinned."""
    # Not pin_memory(), which does not copy a tensor that is pinned already.
    can = tensor.is_cpu and tensor.layout is torch.strided
    return torch.empty_like(tensor, pin_memory=True).copy_(tensor) if can else tensor.clone()


def _storage_reducer() -> Reduce:
    """Returns a reducer for a single pickle. Memory shared by several tensors is pickled only once, out of band."""
    of_memory: dict[int, Any] = {}

    def reduce_storage(storage: Any) -> Any:
        memory = storage._untyped_storage  # the public `untyped()` warns that typed storages are deprecated
        if memory.is_shared():  # it stays shared
            return reductions.reduce_typed_storage(storage)  # type: ignore[no-untyped-call]
        if memory.device.type != "cpu" or memory.nbytes() < _IN_BAND:
            return NotImplemented
        first = of_memory.setdefault(memory.data_ptr(), storage)
        if first is storage:
            first = torch.empty(0, dtype=torch.uint8).set_(memory).numpy()
        return rebuild_storage, (first, storage.dtype)

    return reduce_storage


def reduce_storage(storage: Any) -> Any:
    """Pickles the storage of a tensor that only torch can pickle, such as a tensor subclass."""
    memory = storage._untyped_storage
    if memory.device.type != "cpu" or not memory.nbytes():
        return storage.__reduce__()
    array: Any = torch.empty(0, dtype=torch.uint8).set_(memory).numpy()
    return rebuild_storage, (pickle.PickleBuffer(array), storage.dtype)


def rebuild_storage(first: Any, dtype: torch.dtype) -> Any:
    """Returns a storage that uses the memory of `first`, an array or another storage."""
    array = isinstance(first, np.ndarray)
    memory = torch.frombuffer(first, dtype=torch.uint8).untyped_storage() if array else first._untyped_storage
    return torch.TypedStorage(wrap_storage=memory, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]


def rebuild_sparse(layout: torch.layout, parts: tuple[Any, ...], requires_grad: bool) -> torch.Tensor:
    """Makes a sparse tensor from its parts. torch's own function would keep every tensor alive in a list."""
    if layout is torch.sparse_coo:
        *given, is_coalesced = parts
        made = torch.sparse_coo_tensor(*given, is_coalesced=is_coalesced, check_invariants=False)
    else:
        made = torch.sparse_compressed_tensor(*parts, layout=layout, check_invariants=False)
    return made.requires_grad_(requires_grad)


def _describe(tensor: torch.Tensor) -> tuple[MakeLeaf, Shape, Any, torch.Tensor] | None:
    """Returns a MakeLeaf and the tensor's shape, dtype and bytes, or None if only torch can pickle the tensor."""
    plain = tensor.layout is torch.strided and tensor.is_cpu and not tensor.is_nested
    if not plain or tensor.requires_grad or tensor.is_conj() or tensor.is_neg():
        return None
    shape, dtype = tuple(tensor.shape), tensor.dtype
    make: MakeLeaf = native
    how: Any = NATIVE.get(dtype)
    if how is None:
        if tensor.is_quantized:
            return None
        make, how, tensor = reinterpreted, dtype, tensor.view(_INTEGERS[dtype.itemsize])
    if not tensor.is_contiguous():
        stride = tensor.stride()
        span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        # Axes in another order (channels last) and repeated rows (expand) are kept; gaps are removed.
        if span <= tensor.numel():
            return strided, shape, (make, how, span, stride), tensor.as_strided((span,), (1,))
    return make, shape, how, tensor


class _Torch:
    """Implements the protocol `_memory.guests.Guest` for torch's tensors."""

    reducers: Mapping[type, Reduce] = {torch.Tensor: reduce, torch.TypedStorage: reduce_storage}
    _tensor = Handler(torch.Tensor.clone, pinned, store, cast)
    _derived = Handler(torch.Tensor.clone, pinned)

    def handler(self, kind: type) -> Handler | None:
        if kind is torch.Tensor:
            return self._tensor
        return self._derived if issubclass(kind, torch.Tensor) else None

    def shipping(self) -> Mapping[type, Reduce]:
        return {torch.TypedStorage: _storage_reducer(), torch.UntypedStorage: reductions.reduce_storage}

    def is_parameters(self, state_dict: Any) -> bool:
        return getattr(state_dict, "__module__", None) == torch.nn.Module.__module__

    def can_pin(self) -> bool:
        return torch.accelerator.is_available()

    def limit_threads(self, most: int) -> None:
        torch.set_num_threads(most)


GUEST: Guest = _Torch()
