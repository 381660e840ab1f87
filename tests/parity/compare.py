"""Where two streams differ: values bit for bit, dtypes, shapes, types of containers and of leaves, errors."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def difference(found: Any, expected: Any, where: str = "tape") -> str | None:
    """The first place where they differ, in words; None if they are the same."""
    if isinstance(expected, BaseException) and isinstance(found, type(expected)):
        return _errors(found, expected, where)
    if type(found) is not type(expected):
        return f"{where}: {found!r} is a {type(found)}, and torch has a {type(expected)}: {expected!r}"
    if found is expected:
        return None
    if isinstance(expected, torch.Tensor):
        return _tensors(found, expected, where)
    if isinstance(expected, np.ndarray):
        return _arrays(found, expected, where)
    if isinstance(expected, Mapping):
        return _parts(list(found), list(expected), where + ".keys") or _parts(
            [found[key] for key in found], [expected[key] for key in expected], where, list(expected)
        )
    if isinstance(expected, (list, tuple, deque)):
        return _parts(found, expected, where)
    incomparable = type(expected).__eq__ is object.__eq__
    if hasattr(expected, "__dict__") and (incomparable or dataclasses.is_dataclass(expected)):
        return difference(vars(found), vars(expected), where)
    if found == expected or repr(found) == repr(expected):  # repr: for nan
        return None
    return f"{where}: {found!r}, and torch has {expected!r}"


def _parts(found: Any, expected: Any, where: str, names: Any = None) -> str | None:
    for i, (one, other) in enumerate(zip(found, expected, strict=False)):
        problem = difference(one, other, f"{where}[{names[i] if names else i!r}]")
        if problem:
            return problem
    if len(found) != len(expected):
        return f"{where}: {len(found)} of them, and torch has {len(expected)}: {found!r}, {expected!r}"
    return None


def _tensors(found: torch.Tensor, expected: torch.Tensor, where: str) -> str | None:
    for name in ("dtype", "layout", "device", "is_quantized", "is_nested", "requires_grad", "is_leaf"):
        if getattr(found, name) != getattr(expected, name):
            return f"{where}.{name}: {getattr(found, name)}, and torch has {getattr(expected, name)}"
    if expected.is_nested:
        return difference(list(found.unbind()), list(expected.unbind()), where)
    if found.shape != expected.shape:
        return f"{where}.shape: {tuple(found.shape)}, and torch has {tuple(expected.shape)}"
    if expected.layout != torch.strided or expected.is_quantized:
        return difference(_flattened(found), _flattened(expected), where)
    if expected.is_contiguous() and not found.is_contiguous():
        return f"{where} is not contiguous, and torch's is"
    if expected.device.type != "meta" and _bits(found) != _bits(expected):
        return f"{where}: {found}, and torch has {expected}"
    return None


def _bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def _flattened(tensor: torch.Tensor) -> list[Any]:
    """The plain parts that a tensor of another kind is made of."""
    if tensor.is_quantized and tensor.qscheme() is torch.per_tensor_affine:
        return [tensor.int_repr(), tensor.q_scale(), tensor.q_zero_point()]
    if tensor.is_quantized:
        scales, zeros = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
        return [tensor.int_repr(), scales, zeros, tensor.q_per_channel_axis()]
    if tensor.layout is torch.sparse_coo:
        return [tensor.is_coalesced(), tensor._indices(), tensor._values()]
    return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]


def _arrays(found: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], where: str) -> str | None:
    for name in ("dtype", "shape"):
        if getattr(found, name) != getattr(expected, name):
            return f"{where}.{name}: {getattr(found, name)}, and torch has {getattr(expected, name)}"
    if expected.flags.writeable and not found.flags.writeable:
        return f"{where} cannot be written to, and torch's can"
    if isinstance(expected, np.ma.MaskedArray):
        return difference([found.mask, found.data], [expected.mask, expected.data], where)
    if expected.dtype.hasobject:
        return difference(found.tolist(), expected.tolist(), where)
    if found.tobytes() != expected.tobytes():
        return f"{where}: {found}, and torch has {expected}"
    return None


def _errors(found: BaseException, expected: BaseException, where: str) -> str | None:
    """An error has torch's first line and torch's last; it may say more, and be of a class below torch's."""
    has, wanted = str(found).splitlines() or [""], str(expected).splitlines() or [""]
    lost = [line for line in (wanted[0], wanted[-1]) if line not in has]
    if lost or has[0] != wanted[0]:
        return f"{where}: the message has not {lost or wanted[0]!r}:\n{found}\n--- and torch's is\n{expected}"
    if wanted[0].startswith("Caught ") and "Original Traceback" not in str(found):
        return f"{where}: no original traceback in the message:\n{found}"
    return None
