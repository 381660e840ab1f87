"""Decodes the tar members of a sample according to their extensions."""

from __future__ import annotations

import io
import json
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from penstock._files.damage import raise_unless_damage
from penstock._files.too_large import refuse_large
from penstock._fill.cast import Empty, FieldMemory
from penstock._fill.collate import collate
from penstock.errors import FormatError, SampleTooLarge
from penstock.source._folders import PICTURES

Decoder = Callable[[bytes], Any]


@runtime_checkable
class ShapedDecoder(Protocol):
    """A callable that decodes bytes to arrays of one shape, such as `penstock.image.Transform` with a crop.

    If `out` is given, the callable writes its result into `out` and returns `out`, so that results are written
    directly into a batch. If `shape` is None, results may have any shape.

    >>> from penstock.image import Transform
    >>> decoder = Transform(crop=32)
    >>> isinstance(decoder, ShapedDecoder), decoder.shape
    (True, (3, 32, 32))
    """

    @property
    def shape(self) -> tuple[int, ...] | None: ...

    @property
    def dtype(self) -> Any: ...

    def __call__(self, data: Any, /, out: NDArray[Any] | None = None) -> NDArray[Any]: ...


class Decoding(NamedTuple):
    """A function that decodes a member. penstock's own functions (`is_ours`) also take a name and a size limit."""

    function: Any
    is_ours: bool = False
    shape: tuple[int, ...] | None = None
    """The shape of every result if the function can write into a given array (`out`), otherwise None."""


Allocate = Callable[[str, tuple[int, ...], "np.dtype[Any]"], NDArray[Any]]
"""Returns memory in the batch for one sample of a field, given the field's name, shape and dtype."""

_TEXTS = ("txt", "text", "transcript")
_NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id")
_SAME = (("jpg", "jpeg", "jpe"), ("tif", "tiff"), ("json", "jsn"))  # endings for one kind of file
_SAVED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_OBJECT = 64  # bytes of a small Python object, with its slot in a list or dict
_CODE = ("pkl", "pickle", "pyd", "pth", "pt")


def check_decode(decode: Any, names: str) -> None:
    if not isinstance(decode, (bool, Mapping)):
        raise TypeError(
            f"decode must be True, False, or a dict from {names} to functions of bytes, but it is {decode!r}."
        )
    for name, function in decode.items() if isinstance(decode, Mapping) else ():
        if function is not None and not callable(function):
            raise TypeError(f"decode[{name!r}] must be a function of bytes, or None, but it is {function!r}.")


def column_decoders(decode: Mapping[str, Decoder | None] | None, schema: Any) -> dict[str, Decoding | None]:
    """Maps each column that `decode` names to its decoding function, or to None to keep the bytes."""
    if decode is None:
        return {}
    if not isinstance(decode, Mapping):
        raise TypeError(f"decode must be a dict from columns to functions of bytes, but it is {decode!r}.")
    check_decode(decode, "columns")
    found: dict[str, Decoding | None] = {}
    for name, function in decode.items():
        if name not in schema.names:
            raise ValueError(f"decode names the column {name!r}, but the columns are {', '.join(schema.names)}.")
        if not _has_bytes(schema.field(name).type):
            raise ValueError(
                f"decode names the column {name!r} of type {schema.field(name).type}, but a column of files is "
                "binary, or a struct with a binary field `bytes`, as Hugging Face writes images."
            )
        found[name] = None if function is None else Decoding(function, shape=_fixed_shape(function))
    return found


def _has_bytes(kind: Any) -> bool:
    from penstock.formats._cells import is_binary

    return is_binary(kind) or any(field.name == "bytes" and is_binary(field.type) for field in _fields(kind))


def _fields(kind: Any) -> list[Any]:
    import pyarrow.types as kinds

    return [kind.field(at) for at in range(kind.num_fields)] if kinds.is_struct(kind) else []


def decoders(decode: bool | Mapping[str, Decoder | None], chosen: bool = True) -> dict[str, Decoding | None]:
    """Maps each extension to its decoding function, or to None to keep the bytes.

    `chosen` is True if the user has chosen the fields. Otherwise JSON is decoded only if `decode` names it, because
    JSON objects with different keys or with nulls cannot be collated.
    """
    check_decode(decode, "ends of names")
    if decode is False:
        return {}
    usual = _DECODERS if chosen else {**_DECODERS, "json": None, "jsn": None}
    if decode is True:
        return dict(usual)
    given = {
        end.lower().lstrip("."): None if function is None else Decoding(function, shape=_fixed_shape(function))
        for end, function in decode.items()
    }
    for end in list(given):
        for other in same_ends(end)[1:]:
            given.setdefault(other, given[end])
    return {**usual, **given}


def same_ends(end: str) -> tuple[str, ...]:
    """Returns the extension and its synonyms, such as jpeg for jpg."""
    return next(((end, *(each for each in group if each != end)) for group in _SAME if end in group), (end,))


def unused_ends(given: Iterable[str], fields: Iterable[str]) -> list[str]:
    """Returns the given extensions that no field has. A field "left.jpg" has the extensions left.jpg and jpg."""
    known = {end for field in fields for end in (field, field.rpartition(".")[2])}
    return [end for end in given if known.isdisjoint(same_ends(end.lower().lstrip(".")))]


def is_known(end: str) -> bool:
    return end.lower().lstrip(".") in _DECODERS


def _fixed_shape(function: Any) -> tuple[int, ...] | None:
    """Returns the shape of every result if `function` is a `ShapedDecoder` that accepts `out`, otherwise None."""
    if not isinstance(function, ShapedDecoder) or function.shape is None:
        return None
    try:  # a subclass may have removed the parameter `out`
        return tuple(function.shape) if "out" in signature(function).parameters else None
    except (TypeError, ValueError):  # a function written in C may have no signature
        return None


def decoded(
    functions: Mapping[str, Decoding | None],
    end: str,
    data: bytes,
    name: object,
    allocate: Allocate | None = None,
    limit: int | None = None,
) -> Any:
    """Decodes the bytes of a member, or returns them unchanged if no function is known for its extension.

    `end` is the part of the member's name after the first dot. If `end` has no function, the part after the last dot
    is tried. `name` describes the member in error messages. `allocate(end, shape, dtype)` returns memory for a result
    of fixed shape. `limit` is the maximum size, in bytes, of a result of penstock's own functions.
    """
    found = end if end in functions else end.rpartition(".")[2]
    decoding = functions.get(found)
    if decoding is None:
        return data
    function, out = decoding.function, None
    try:
        if decoding.is_ours:
            return function(data, name, limit)
        if allocate is None or decoding.shape is None:
            return function(data)
        out = allocate(end, decoding.shape, np.dtype(function.dtype))
        if function(data, out=out) is not out:
            raise TypeError(f"{function!r} takes out=, so it must write its result into it, and return it.")
        return out
    except Exception as error:
        if not decoding.is_ours:  # the error of a user's function keeps its type
            error.add_note(f"While decoding {name}.")
            if out is not None:
                given = f"{out.dtype} of shape {out.shape} with strides {out.strides}"
                error.add_note(
                    f"The decoder {function!r} was given out=, a place in the batch: {given}, as its own shape and "
                    "dtype say. It must write its result there. If it cannot, let its shape be None."
                )
            raise
        if isinstance(error, SampleTooLarge):
            raise
        raise_unless_damage(error, str(name))
        if function is _refused:
            remedy = f"pass a function: decode={{{found!r}: pickle.loads}}; with None the bytes stay as they are"
            raise FormatError(f"{name}: {error}. If you trust the files, {remedy}.") from None
        said = str(error).rstrip(".")
        raise FormatError(
            f"{name}: its {len(data):,} bytes cannot be decoded: {said}. The member is damaged, or has another "
            f"format than its name says: write it again, or keep its bytes with decode={{{found!r}: None}}."
        ) from error


def writes_directly(functions: Mapping[str, Decoding | None], empty: Empty) -> bool:
    """True if any function may write its results directly into batch memory that `empty` allocates."""
    return type(empty) is not FieldMemory and any(each and each.shape is not None for each in functions.values())


def gathered(make: Callable[[Allocate], Iterable[dict[str, Any]]], count: int, empty: Empty) -> Any:
    """Returns a batch of `count` samples, which `make(allocate)` yields one by one.

    Returns NotImplemented if the samples have different fields, or if a field is written directly for only some
    samples.
    """
    outs: dict[str, NDArray[Any]] = {}
    written: Counter[str] = Counter()
    samples: list[dict[str, Any]] = []

    def allocate(field: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        if field not in outs:
            outs[field] = empty((count, *shape), dtype)
        out = outs[field]
        if out.shape[1:] != shape or out.dtype != dtype:
            return np.empty(shape, dtype)
        written[field] += 1
        here: NDArray[Any] = out[len(samples), ...]
        return here

    for sample in make(allocate):
        samples.append(sample)  # noqa: PERF402 - `allocate` counts them
    if not samples or any(sample.keys() != samples[0].keys() for sample in samples):
        return NotImplemented  # the loader's error names the rows with other fields
    if any(written[field] < len(samples) for field in outs):  # a field of jpg and png, with two decoders
        return NotImplemented
    others = [{field: value for field, value in sample.items() if field not in outs} for sample in samples]
    batch = collate(others, empty)
    return {field: outs[field] if field in outs else batch[field] for field in samples[0]}


SIZED = frozenset((np.ndarray, dict))
"""Types whose values may be larger than the bytes that they were decoded from: arrays, and dicts of arrays."""


def nbytes_of(value: Any) -> int:
    """Returns the size in bytes of an array or a dict of arrays. Returns 0 for a JSON object."""
    arrays = value.values() if type(value) is dict else (value,)
    return sum(each.nbytes for each in arrays) if isinstance(next(iter(arrays), None), np.ndarray) else 0


def _json(data: bytes, name: object, limit: int | None) -> Any:
    # Estimated before parsing, because a text like `[[],[],...` needs 20 times its length.
    if limit is not None and len(data) * _OBJECT > limit:
        objects = sum(map(data.count, (b"[", b"{", b",", b":")))
        if len(data) + objects * _OBJECT > limit:
            refuse_large(name, len(data) + objects * _OBJECT, limit)
    return json.loads(data)


def _image(data: bytes, name: object, limit: int | None) -> NDArray[np.uint8]:
    """Decodes an image to RGB pixels of shape (height, width, 3)."""
    try:
        from penstock._pixels import decode  # late, because other members do not need its libraries
    except ImportError as error:
        raise ImportError(f"{error}. Or keep the bytes of images: decode={{'jpg': None}}.") from error
    try:
        found = decode(data, "rgb", "the image", limit)
        return found if found.flags.writeable else found.copy()  # Pillow's arrays are read-only, and torch warns
    except SampleTooLarge as error:
        refuse_large(name, *error.sizes)


def _text(data: bytes, name: object, limit: int | None) -> str:
    return data.decode()


def _number(data: bytes, name: object, limit: int | None) -> int:
    return int(data)


def _npy(data: bytes, name: object, limit: int | None) -> NDArray[Any]:
    """Decodes a `.npy` file. The size is checked before memory is allocated."""
    stream = io.BytesIO(data)
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"penstock does not read version {version} of .npy.")
    header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = header(stream)
    if dtype.hasobject:
        raise ValueError("the array has Python objects, which are pickles. Store numbers or strings.")
    content = data[stream.tell() :]
    array = np.frombuffer(content, dtype)
    array = array.reshape(shape[::-1]).T if fortran else array.reshape(shape)
    return array.copy()  # writable


def _npz(data: bytes, name: object, limit: int | None) -> dict[str, NDArray[Any]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        if any(each.compress_type not in _SAVED for each in members):
            raise ValueError("it is compressed in another way than numpy does.")
        # zipfile never returns more bytes of a member than its header states.
        if limit is not None and (nbytes := sum(each.file_size for each in members)) > limit:
            refuse_large(name, nbytes, limit)
        return {each.removesuffix(".npy"): _npy(archive.read(each), name, limit) for each in archive.namelist()}


def _refused(data: bytes, name: object, limit: int | None) -> Any:
    raise ValueError("it is a pickle, which can run any program when it is loaded")


_DECODERS: dict[str, Decoding | None] = {
    end: Decoding(function, is_ours=True)
    for function, ends in (
        (_json, ("json", "jsn")),
        (_npy, ("npy",)),
        (_npz, ("npz",)),
        (_image, [end.removeprefix(".") for end in PICTURES]),
        (_text, _TEXTS),
        (_number, _NUMBERS),
        (_refused, _CODE),
    )
    for end in ends
}
