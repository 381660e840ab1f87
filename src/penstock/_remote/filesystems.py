"""The only module that imports fsspec: for schemes that obstore does not know, such as hf:// and memory://."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any

from penstock._remote.retry import Failed, Fault
from penstock._remote.store import Page, Stored

# What fsspec's file systems call a mark of the content, the surest first.
_SUMS = ("ETag", "etag", "e_tag", "blob_id", "sha256", "md5Hash", "content_md5", "checksum", "generation")
_TOKENS = (*_SUMS, "mtime", "last_modified", "LastModified", "modified", "updated", "created")
# Schemes with one connection for each file system: one thread at a time.
_ALONE = ("ftp", "ftps", "sftp", "ssh", "smb")
_PASSING = ("Timeout", "Connection", "ServerDisconnected", "ClientError", "ClientOSError", "ClientPayloadError")


class FileSystem:
    """A store that fsspec reads. The content is checked once, at the first read of an object in this process."""

    def __init__(self, scheme: str, root: str, storage: Mapping[str, Any]) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise ImportError(
                f'URLs of the scheme {scheme}:// need fsspec: pip install ".[remote]" in a clone of penstock'
            ) from error
        self._checked: set[str] = set()
        self._root = root
        try:
            system = fsspec.get_filesystem_class(scheme)
            # Some are made with the host, and a user, of the URL: ftp, webhdfs.
            self._system = system(**{**system._get_kwargs_from_urls(f"{root}/"), **storage})
            self._turn: AbstractContextManager[Any] = threading.Lock() if scheme in _ALONE else nullcontext()
        except Exception as error:  # what the package for this scheme, or its libraries, may raise
            said = str(error).partition("\n")[0][:300]
        else:
            return
        raise Failed(Fault.FINAL, said, "Install the package that reads this scheme, or check the URL.")

    def find(self, key: str) -> Stored:
        try:
            with self._turn:
                about = self._system.info(self._path(key))
            if about["type"] == "file":
                return self._stored(about)
            failed = Failed(Fault.MISSING, "it is a folder")
        except Exception as error:
            failed = _failed(error)
        raise failed

    def read(self, stored: Stored, start: int, stop: int) -> Any:
        try:
            if stored.key not in self._checked:
                if _differ(self.find(stored.key), stored):
                    raise Failed(Fault.CHANGED, "the file has another size or time now")
                self._checked.add(stored.key)
            with self._turn:
                return self._system.cat_file(self._path(stored.key), start=start, end=stop)
        except Exception as error:
            failed = _failed(error)
        raise failed

    def write(self, key: str, content: bytes) -> None:
        try:
            with self._turn:
                self._system.pipe_file(self._path(key), content)
            return
        except Exception as error:
            failed = _failed(error)
        raise failed

    def below(self, folder: str, deep: bool, after: str) -> Iterator[Page]:
        try:
            path = self._path(folder)
            with self._turn:
                found = self._system.find(path, maxdepth=None if deep else 1, withdirs=not deep, detail=True)
            files = [self._stored(about) for about in found.values() if about["type"] == "file"]
            folders = [self._key(about["name"]) for about in found.values() if about["type"] == "directory"]
            yield Page(files, [each for each in folders if each.strip("/") != folder.strip("/")])
            return
        except Exception as error:
            failed = _failed(error)
        raise failed

    def _path(self, key: str) -> str:
        path: str = self._system._strip_protocol(f"{self._root}/{key}")
        return path

    def _key(self, name: str) -> str:
        """The key of a file that fsspec names: without what the root stands for."""
        return name.removeprefix(self._path("").rstrip("/")).lstrip("/")

    def _stored(self, about: Mapping[str, Any]) -> Stored:
        token = next((f"{name} {_mark(about[name])}" for name in _TOKENS if about.get(name)), "")
        return Stored(self._key(about["name"]), about["size"], token)


def _mark(value: Any) -> str:
    """The value as text. A listing and a single question may give the same time in different types."""
    seconds = value.timestamp() if isinstance(value, datetime) else value
    return f"{seconds:.6f}" if isinstance(seconds, (int, float)) else str(seconds)


def _differ(one: Stored, other: Stored) -> bool:
    """True for different content. Marks of different kinds, as a listing may have, say nothing."""
    kinds = {each.token.partition(" ")[0] for each in (one, other)}
    return one.size != other.size or (len(kinds) == 1 and one.token != other.token)


def _failed(error: Exception) -> Failed:
    if isinstance(error, Failed):
        return error
    said = f"{type(error).__name__}: {str(error)[:300]}"
    if isinstance(error, FileNotFoundError):
        return Failed(Fault.MISSING, "there is no such file", "Check the URL: names are case-sensitive.")
    if isinstance(error, PermissionError):
        return Failed(Fault.FINAL, said, "Check the credentials, and that they may read this file.")
    names = {base.__name__ for base in type(error).__mro__}
    passing = any(name.startswith(_PASSING) for name in names) or type(error) is OSError
    return Failed(Fault.PASSING if passing else Fault.FINAL, said)
