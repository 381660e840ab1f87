"""Files of an FTP server, which fsspec reads: the host is in the URL, and there is one connection for all threads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import penstock
from on_stores.conftest import free_port, running
from penstock.errors import RemoteError
from penstock.formats import Tokens

FILES, IDS = 20, 1000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Host and port of a server, on which the user `me` has the password `quite-secret`."""
    pytest.importorskip("pyftpdlib")
    folder, port = tmp_path_factory.mktemp("ftp"), free_port()
    for number in range(FILES):
        np.arange(number * IDS, (number + 1) * IDS, dtype=np.uint16).tofile(folder / f"{number:02}.bin")
    command = [sys.executable, "-m", "pyftpdlib", "-i", "127.0.0.1", "-p", str(port), "-d", str(folder)]
    with running([*command, "-u", "me", "-P", "quite-secret"], port, folder.parent / "ftp.log"):
        yield f"127.0.0.1:{port}"


def test_a_folder_is_read_by_workers(place: str, tmp_path: Path) -> None:
    data = Tokens(f"ftp://me:quite-secret@{place}/", "uint16", 100, cache=tmp_path)
    assert data.paths[0] == f"ftp://{place}/00.bin"
    with penstock.DataLoader(data, batch_size=8, num_workers=2, shuffle=True, seed=0) as loader:
        found = np.concatenate([batch.ravel() for batch in loader])
    assert np.array_equal(np.sort(found), np.arange(FILES * IDS))


def test_many_files_of_one_batch_share_a_connection(place: str) -> None:
    data = Tokens(f"ftp://me:quite-secret@{place}/*.bin", "uint16", IDS, cache=False)
    assert np.array_equal(np.stack(data.__getitems__(range(FILES))).ravel(), np.arange(FILES * IDS))


def test_a_wrong_password_is_an_error_that_does_not_show_it(place: str) -> None:
    with pytest.raises(RemoteError, match="530") as caught:
        Tokens(f"ftp://me:not-the-one@{place}/00.bin", "uint16", 100)
    assert "not-the-one" not in str(caught.value)
