"""What the members of a sample become, by the ends of their names."""

from __future__ import annotations

import io
import json
import sys
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from penstock._files.damage import raise_unless_damage
from penstock._files.too_large import refuse_large
from penstock.errors import FormatError, SampleTooLarge
from penstock.source._folders import PICTURES

Decoder = Callable[[bytes], Any]
Room = Callable[[str, tuple[int, ...], "np.dtype[Any]"], NDArray[Any]]
"""Memory in the batch for one sample of a field."""

_TEXTS = ("txt", "text", "transcript")
_NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id")
_SAME = (("jpg", "jpeg", "jpe"), ("tif", "tiff"), ("json", "jsn"))  # ends of one kind of file
_SAVED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_OBJECT = 64  # bytes of a small Python object, with its place in a list or dict
_CODE = ("pkl", "pickle", "pyd", "pth", "pt")


def decoders(decode: bool | Mapping[str, Decoder | None], chosen: bool = True) -> dict[str, Decoder | None]:
    """The function for each end of a name; None leaves the bytes as they are.

    Unless the fields were chosen, JSON is decoded only if `decode` names it: values with other keys in each sample,
    or with nulls, cannot be collated.
    """
    if decode is False:
        return {}
    usual = _DECODERS if chosen else {**_DECODERS, "json": None, "jsn": None}
    if decode is True:
        return dict(usual)
    if not isinstance(decode, Mapping):
        raise TypeError(
            f"decode must be True, False, or a dict from ends of names to functions of bytes, but it is {decode!r}."
        )
    for end, function in decode.items():
        if function is not None and not callable(function):
            raise TypeError(f"decode[{end!r}] must be a function of bytes, or None, but it is {function!r}.")
    given = {end.lower().lstrip("."): function for end, function in decode.items()}
    for end in list(given):
        for other in same_ends(end)[1:]:
            given.setdefault(other, given[end])
    return {**usual, **given}


def same_ends(end: str) -> tuple[str, ...]:
    """The end of a name, and others that mean the same kind of file: jpg, and jpeg."""
    return next(((end, *(each for each in group if each != end)) for group in _SAME if end in group), (end,))


def fixed_shape(function: Any) -> tuple[int, ...] | None:
    """The shape of all its images, if the function is a `Transform` with one."""
    image = sys.modules.get("penstock.image._transform")  # not imported: only who has a Transform needs its libraries
    return function.shape if image is not None and type(function) is image.Transform else None


def decoded(
    functions: Mapping[str, Decoder | None],
    end: str,
    data: bytes,
    name: object,
    room: Room | None = None,
    limit: int | None = None,
) -> Any:
    """The member's content. `end` is all that follows the first dot of its name; its last part counts, too.

    `name` has the file, the member and the byte, for errors. Images of one shape are written into memory that
    `room(end, shape, dtype)` returns. `limit` is for the bytes of the result of our own functions.
    """
    found = end if end in functions else end.rpartition(".")[2]
    function: Any = functions.get(found)
    if function is None:
        return data
    try:
        if id(function) in _LIMITED:
            return function(data, name, limit)
        if room is None or (shape := fixed_shape(function)) is None:
            return function(data)
        return function(data, room(end, shape, function.dtype))
    except Exception as error:
        if _DECODERS.get(found) is not function:  # of the user's: the error keeps its type
            error.add_note(f"While decoding {name}.")
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


SIZED = frozenset((np.ndarray, dict))
"""Types of values that may have more bytes than were read: arrays, and dicts of arrays."""


def nbytes_of(value: Any) -> int:
    """The bytes of an array, or of a dict of arrays; 0 for other dicts, whose text is bounded."""
    arrays = value.values() if type(value) is dict else (value,)
    return sum(each.nbytes for each in arrays) if isinstance(next(iter(arrays), None), np.ndarray) else 0


def _json(data: bytes, name: object, limit: int | None) -> Any:
    """The value. Text that is so large that it matters is first estimated: `[[],[],...` becomes 20 times as large."""
    if limit is not None and len(data) * _OBJECT > limit:
        objects = sum(map(data.count, (b"[", b"{", b",", b":")))
        if len(data) + objects * _OBJECT > limit:
            refuse_large(name, len(data) + objects * _OBJECT, limit)
    return json.loads(data)


def _image(data: bytes, name: object, limit: int | None) -> NDArray[np.uint8]:
    """The pixels, RGB, of shape (height, width, 3)."""
    try:
        from penstock._pixels import decode  # late: other members do not need its libraries
    except ImportError as error:
        raise ImportError(f"{error}. Or keep the bytes of images: decode={{'jpg': None}}.") from error
    try:
        return decode(data, "rgb", "the image", limit)
    except SampleTooLarge as error:
        refuse_large(name, *error.sizes)


def _text(data: bytes) -> str:
    return data.decode()


def _npy(data: bytes) -> NDArray[Any]:
    """The array of a `.npy` file. Its size is checked before memory is allocated."""
    stream = io.BytesIO(data)
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of .npy is not read here.")
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
        # zipfile gives no more bytes of a member than its header says.
        if limit is not None and (nbytes := sum(each.file_size for each in members)) > limit:
            refuse_large(name, nbytes, limit)
        return {name.removesuffix(".npy"): _npy(archive.read(name)) for name in archive.namelist()}


def _refused(data: bytes) -> Any:
    raise ValueError("it is a pickle, which can run any program when it is loaded")


_LIMITED = frozenset(map(id, (_json, _npz, _image)))  # these are given the name and the limit, too
_DECODERS: dict[str, Any] = {
    "json": _json,
    "jsn": _json,
    "npy": _npy,
    "npz": _npz,
    **dict.fromkeys((end.removeprefix(".") for end in PICTURES), _image),
    **dict.fromkeys(_TEXTS, _text),
    **dict.fromkeys(_NUMBERS, int),
    **dict.fromkeys(_CODE, _refused),
}
