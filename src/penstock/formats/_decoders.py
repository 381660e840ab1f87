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

from penstock.errors import FormatError
from penstock.formats._damage import raise_unless_damage
from penstock.source._folders import PICTURES

Decoder = Callable[[bytes], Any]
Room = Callable[[str, tuple[int, ...], "np.dtype[Any]"], NDArray[Any]]
"""Memory in the batch for one sample of a field."""

_TEXTS = ("txt", "text", "transcript")
_NUMBERS = ("cls", "cls2", "class", "count", "index", "inx", "id")
_CODE = ("pkl", "pickle", "pyd", "pth", "pt")


def decoders(decode: bool | Mapping[str, Decoder | None]) -> dict[str, Decoder | None]:
    """The function for each end of a name; None leaves the bytes as they are."""
    if decode is False:
        return {}
    if decode is True:
        return dict(_DECODERS)
    if not isinstance(decode, Mapping):
        raise TypeError(
            f"decode must be True, False, or a dict from ends of names to functions of bytes, but it is {decode!r}."
        )
    for end, function in decode.items():
        if function is not None and not callable(function):
            raise TypeError(f"decode[{end!r}] must be a function of bytes, or None, but it is {function!r}.")
    return {**_DECODERS, **{end.lower().lstrip("."): function for end, function in decode.items()}}


def fixed_shape(function: Any) -> tuple[int, ...] | None:
    """The shape of all its images, if the function is a `Transform` with one."""
    image = sys.modules.get("penstock.image._transform")  # not imported: only who has a Transform needs its libraries
    return function.shape if image is not None and type(function) is image.Transform else None


def decoded(
    functions: Mapping[str, Decoder | None], end: str, data: bytes, name: str, room: Room | None = None
) -> Any:
    """The member's content. `end` is all that follows the first dot of its name; its last part counts, too.

    `name` has the file, the member and the byte, for errors. Images of one shape are written into memory that
    `room(end, shape, dtype)` returns.
    """
    found = end if end in functions else end.rpartition(".")[2]
    function: Any = functions.get(found)
    if function is None:
        return data
    try:
        if room is None or (shape := fixed_shape(function)) is None:
            return function(data)
        return function(data, room(end, shape, function.dtype))
    except Exception as error:
        if _DECODERS.get(found) is not function:  # of the user's: the error keeps its type
            error.add_note(f"While decoding {name}.")
            raise
        raise_unless_damage(error, name)
        if function is _refused:
            remedy = f"pass a function: decode={{{found!r}: pickle.loads}}; with None the bytes stay as they are"
            raise FormatError(f"{name}: {error}. If you trust the files, {remedy}.") from None
        said = str(error).rstrip(".")
        raise FormatError(
            f"{name}: its {len(data):,} bytes cannot be decoded: {said}. The member is damaged, or has another "
            f"format than its name says: write it again, or keep its bytes with decode={{{found!r}: None}}."
        ) from error


def _image(data: bytes) -> NDArray[np.uint8]:
    """The pixels, RGB, of shape (height, width, 3)."""
    try:
        from penstock.image._decode import decode  # late: other members do not need its libraries
    except ImportError as error:
        raise ImportError(f"{error}. Or keep the bytes of images: decode={{'jpg': None}}.") from error
    return decode(data, "rgb", "the image")


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


def _npz(data: bytes) -> dict[str, NDArray[Any]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name.removesuffix(".npy"): _npy(archive.read(name)) for name in archive.namelist()}


def _refused(data: bytes) -> Any:
    raise ValueError("it is a pickle, which can run any program when it is loaded")


_DECODERS: dict[str, Decoder | None] = {
    "json": json.loads,
    "jsn": json.loads,
    "npy": _npy,
    "npz": _npz,
    **dict.fromkeys((end.removeprefix(".") for end in PICTURES), _image),
    **dict.fromkeys(_TEXTS, _text),
    **dict.fromkeys(_NUMBERS, int),
    **dict.fromkeys(_CODE, _refused),
}
