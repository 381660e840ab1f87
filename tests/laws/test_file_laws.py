"""Tars, lines and Megatron's files: whatever is done to their bytes, samples are read, or errors name the file."""

from __future__ import annotations

import io
import json
import os
import random
import struct
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.test_table_laws import CHANGES, WHAT, damaged

from penstock.errors import FormatError
from penstock.formats import JsonLines, Megatron, Tar, TextLines

law = settings(deadline=None, max_examples=100)


def tar(kind: int) -> bytes:
    """Names that need further headers, and members that are decoded."""
    array, sink = io.BytesIO(), io.BytesIO()
    np.save(array, np.arange(3))
    contents = {"json": b'{"a": [1]}', "npy": array.getvalue(), "cls": b"1", "txt": b"text", "bin": bytes(range(256))}
    with tarfile.open(fileobj=sink, mode="w", format=kind) as file:
        for stem in ("one", "folder/two", "long" * 40, "größe"):
            for end, content in contents.items():
                info = tarfile.TarInfo(f"{stem}.{end}")
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))
    return sink.getvalue()


def index() -> bytes:
    """Of the sequences of 5, 0, 7 and 3 ids in `IDS`, and of two documents."""
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 4, 3)
    return head + struct.pack("<4i4q3q", 5, 0, 7, 3, 0, 10, 10, 24, 0, 2, 4)


IDS = np.arange(15, dtype=np.uint16).tobytes()
LINES = "\n".join(json.dumps({"key": key, "text": "é" * (key % 3)}) for key in range(9)).encode()
EXAMPLES: dict[str, tuple[Any, str, bytes]] = {
    "tar of GNU": (Tar, ".tar", tar(tarfile.GNU_FORMAT)),
    "tar of POSIX": (Tar, ".tar", tar(tarfile.PAX_FORMAT)),
    "index": (Megatron, ".idx", index()),
    "JSON": (JsonLines, ".jsonl", LINES),
    "text": (TextLines, ".txt", b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\r\n")),
}


def samples_of(kind: Any, suffix: str, content: bytes) -> int:
    """How many samples can be read; all other samples, or the file, are errors that name the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/some{suffix}"
        Path(path).write_bytes(content)
        if kind is Megatron:
            Path(folder, "some.bin").write_bytes(IDS)
        found, errors = 0, list[str]()
        try:
            dataset = kind(path)
            for key in range(len(dataset)):
                try:
                    dataset[key]
                    found += 1
                except FormatError as error:
                    errors.append(str(error))
        except FormatError as error:
            errors.append(str(error))
    assert all(f"{folder}{os.sep}some." in error for error in errors)
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_sound(name: str) -> None:
    assert samples_of(*EXAMPLES[name]) == (9 if name in ("JSON", "text") else 4)


@law
@given(st.sampled_from(sorted(EXAMPLES)), CHANGES)
def test_damage_is_an_error_of_its_file(name: str, changes: list[tuple[str, float, int]]) -> None:
    kind, suffix, content = EXAMPLES[name]
    samples_of(kind, suffix, damaged(content, changes))


def fuzz(seed: int, count: int) -> None:
    for number in range(seed, seed + count):
        rng = random.Random(number)
        kind, suffix, content = EXAMPLES[rng.choice(sorted(EXAMPLES))]
        times = rng.choice([1, 1, 2, 4, 16])
        changes = [(rng.choice(WHAT), rng.random(), rng.randrange(256)) for _ in range(times)]
        print(number, end=" ", flush=True)  # the last one is the one that ends the process
        samples_of(kind, suffix, damaged(content, changes))


@pytest.mark.wide
@pytest.mark.parametrize("seed", range(0, 20_000, 5_000))
def test_no_damage_ends_the_process(seed: int) -> None:
    code = f"from laws.test_file_laws import fuzz; fuzz({seed}, 5000)"
    begun = [sys.executable, "-X", "faulthandler", "-c", code]
    ran = subprocess.run(begun, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert ran.returncode == 0, f"at seed {ran.stdout.split()[-1:]}: {ran.stderr[-3000:]}"
