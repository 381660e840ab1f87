"""Tensors in slabs: stored as bytes, and opened as views that keep the slab lent.

A tensor is opened through numpy. Its storage then holds an array over its own bytes, which holds the
root of the slab: whatever shares the storage (slices, `.numpy()`, DLPack) keeps the lease, and what
moves the storage elsewhere (`share_memory_()`) lets go of it. Each has a storage of its own: saving
one does not save its neighbours, and a change of one is no change of theirs to autograd.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from penstock._memory import leaves

if TYPE_CHECKING:
    from penstock._fill.cast import Field
    from penstock._memory.layout import Writer
    from penstock._memory.leaves import Make, Place

Shape = tuple[int, ...]

NATIVE: dict[torch.dtype, np.dtype[Any]] = {
    getattr(torch, name): np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
    if hasattr(torch, name)
}
"""The dtypes that numpy has too. Those of every other are the same bits as integers of their size."""
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def blank(shape: Shape, dtype: torch.dtype, empty: Callable[[Shape, np.dtype[Any]], Any]) -> torch.Tensor:
    """As `torch.empty`, in memory of `empty`. Not for quantised dtypes, which are more than their bytes."""
    known = NATIVE.get(dtype)
    if known is not None:
        return torch.from_numpy(empty(shape, known))
    return torch.from_numpy(empty(shape, NATIVE[_INTEGERS[dtype.itemsize]])).view(dtype)


def register() -> None:
    """From now on, in this process, tensors travel in slabs. May be called again."""
    leaves.register(torch.Tensor, store, reduce, cast)


def native(shape: Shape, dtype: np.dtype[Any], root: Any, at: int) -> torch.Tensor:
    """A view of `root`, of a dtype that numpy has."""
    return torch.from_numpy(np.ndarray(shape, dtype, root, at))


def reinterpreted(shape: Shape, dtype: torch.dtype, root: Any, at: int) -> torch.Tensor:
    """A view of `root`, of a dtype that numpy lacks."""
    return native(shape, NATIVE[_INTEGERS[dtype.itemsize]], root, at).view(dtype)


def strided(shape: Shape, how: tuple[Make, Any, int, Shape], root: Any, at: int) -> torch.Tensor:
    """A view of `root` whose axes do not lie there in their order."""
    make, dtype, span, stride = how
    view: torch.Tensor = make((span,), dtype, root, at)
    return view.as_strided(shape, stride).detach()


def store(tensor: torch.Tensor, writer: Writer) -> Place | None:
    """Its place, where its bytes are afterwards; None for what only torch can pickle."""
    described = _describe(tensor)
    if described is None:
        return None
    make, shape, how, source = described
    nbytes = source.nbytes
    start = writer.find(source.data_ptr(), nbytes)
    if start is None or not source.is_contiguous():
        if tensor.__dict__:  # attributes of its own, which would be lost
            return None
        source = source.contiguous()
        start = writer.copy(source.data_ptr(), nbytes, source)
    return make, shape, how, start


def reduce(tensor: torch.Tensor) -> tuple[Any, ...]:
    """As `__reduce_ex__`, for tensors inside of other objects: their bytes go out of band."""
    described = None if tensor.__dict__ else _describe(tensor)
    if described is None:
        if tensor.requires_grad and not tensor.is_leaf:
            raise RuntimeError(
                "A batch holds a tensor that was computed with gradients. Its graph is in the worker and cannot "
                "follow it: detach() it in the dataset or in collate_fn."
            )
        if tensor.is_quantized:
            return _loads_quietly, (_dumps_quietly(tensor),)
        # By torch a tensor keeps its kind, its flags and its attributes, at the cost of copies.
        pickled: tuple[Any, ...] = tensor.__reduce_ex__(5)  # type: ignore[no-untyped-call]
        if tensor.layout is not torch.strided and not tensor.__dict__:
            return rebuild_sparse, (*pickled[1], tensor.requires_grad)
        return pickled
    make, shape, how, source = described
    array: Any = source.contiguous().numpy()
    return rebuild, (make, shape, how, pickle.PickleBuffer(array))


def _dumps_quietly(tensor: torch.Tensor) -> bytes:
    with warnings.catch_warnings():  # torch warns of a class that it uses itself
        warnings.simplefilter("ignore", UserWarning)
        return pickle.dumps(tensor, 5)


def _loads_quietly(data: bytes) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return pickle.loads(data)


def cast(tensor: torch.Tensor, field: Field, empty: Callable[[Shape, np.dtype[Any]], Any]) -> torch.Tensor:
    """The tensor as the field's dtype, in memory of `empty` where it can; itself where nothing is converted."""
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


def pinning() -> Callable[[torch.Tensor], torch.Tensor] | None:
    """What copies a tensor into pinned memory, where an accelerator would read it."""
    return _pinned if torch.accelerator.is_available() else None


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    # Not pin_memory(), which copies nothing where the source has pinned it. torch uses such memory again, too.
    pinned = tensor.is_cpu and tensor.layout is torch.strided
    return torch.empty_like(tensor, pin_memory=True).copy_(tensor) if pinned else tensor.clone()


def rebuild(make: Make, shape: Shape, how: Any, buffer: Any) -> Any:
    """The tensor whose bytes are in `buffer`, as a view of it."""
    return make(shape, how, buffer, 0)


def rebuild_sparse(layout: torch.layout, parts: tuple[Any, ...], requires_grad: bool) -> torch.Tensor:
    """The sparse tensor of these parts. torch's own function keeps every tensor that it makes in a list."""
    if layout is torch.sparse_coo:
        *given, is_coalesced = parts
        made = torch.sparse_coo_tensor(*given, is_coalesced=is_coalesced, check_invariants=False)
    else:
        made = torch.sparse_compressed_tensor(*parts, layout=layout, check_invariants=False)
    return made.requires_grad_(requires_grad)


def _describe(tensor: torch.Tensor) -> tuple[Make, Shape, Any, torch.Tensor] | None:
    """How it is opened again (a Make, and its arguments), and the bytes to store, as a tensor that numpy knows."""
    if (
        tensor.layout is not torch.strided
        or not tensor.is_cpu
        or tensor.requires_grad
        or tensor.is_conj()
        or tensor.is_neg()
        or tensor.is_nested
    ):
        return None
    shape = tuple(tensor.shape)
    dtype = tensor.dtype
    make: Make = native
    how: Any = NATIVE.get(dtype)
    if how is None:
        if tensor.is_quantized:
            return None
        make, how, tensor = reinterpreted, dtype, tensor.view(_INTEGERS[dtype.itemsize])
    if not tensor.is_contiguous():
        stride = tensor.stride()
        span = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        # Axes in another order (channels last), or rows repeated (expand): it stays so. Gaps are closed.
        if span <= tensor.numel():
            return strided, shape, (make, how, span, stride), tensor.as_strided((span,), (1,))
    return make, shape, how, tensor
