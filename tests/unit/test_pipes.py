"""A pipe among files, as an archive of a stranger may have one, is an error, and not a wait for ever."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import FormatError, ImageError
from penstock.formats import Megatron, Tar, Tokens
from penstock.image import ImageFolder
from penstock.records import CaffeLMDB, RecordFile, RecordWriter


def record_file(folder: Path) -> Any:
    os.mkfifo(folder / "some.rec")
    return RecordFile(folder / "some.rec")


def lmdb(folder: Path) -> Any:
    os.mkfifo(folder / "data.mdb")
    return CaffeLMDB(folder)


def record_index(folder: Path) -> Any:
    with RecordWriter(folder / "some.rec") as writer:
        writer.write(b"x")
    os.unlink(folder / "some.idx")
    os.mkfifo(folder / "some.idx")
    return RecordFile(folder / "some.rec")


def tar(folder: Path) -> Any:
    os.mkfifo(folder / "some.tar")
    return Tar(folder / "some.tar")


def megatron(folder: Path) -> Any:
    os.mkfifo(folder / "some.idx")
    (folder / "some.bin").write_bytes(bytes(8))
    return Megatron(folder / "some.idx")


def image(folder: Path) -> Any:
    (folder / "a").mkdir()
    os.mkfifo(folder / "a" / "some.jpg")
    return ImageFolder(folder)[0]


@pytest.mark.parametrize("opened", [record_file, lmdb, record_index, tar, megatron, image])
def test_a_pipe_in_the_place_of_a_file_is_an_error(opened: Callable[[Path], Any], tmp_path: Path) -> None:
    with pytest.raises((FormatError, ImageError, FileNotFoundError)):
        opened(tmp_path)


def test_a_pipe_beside_a_file_of_ids_is_no_index(tmp_path: Path) -> None:
    np.arange(8, dtype=np.uint16).tofile(tmp_path / "some.bin")
    os.mkfifo(tmp_path / "some.idx")
    assert Tokens(tmp_path / "some.bin", "uint16", 4)[1].tolist() == [4, 5, 6, 7]
