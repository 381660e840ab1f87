"""The only module that imports fsspec: for schemes that obstore does not know, such as hf:// and memory://."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import datetime
from inspect import signature
from typing import Any

from penstock._remote.retry import RequestFailed, RequestFault
from penstock._remote.store import Page, StoredObject

# What fsspec's file systems call a mark of the content, the surest first.
_SUMS = ("ETag", "etag", "e_tag", "blob_id", "sha256", "sha", "md5Hash", "content_md5", "checksum", "generation")
_TIMES = ("mtime", "last_modified", "LastModified", "modified", "modificationTime", "modify", "updated", "created")
# Schemes with one connection for each file system: one thread at a time.
_ALONE = ("ftp", "ftps", "sftp", "ssh", "smb")
_PASSING = ("Timeout", "Connection", "ServerDisconnected", "ClientError", "ClientOSError", "ClientPayloadError")


class FileSystem:
    """A store that fsspec reads. It cannot ask for one content only, so the object is looked at after each read."""

    def __init__(self, scheme: str, root: str, storage: Mapping[str, Any]) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise ImportError(
                f'URLs of the scheme {scheme}:// need fsspec: pip install ".[remote]" in a clone of penstock'
            ) from error
        self._looks: dict[str, StoredObject] = {}  # at objects when they were read first in this process
        self._root = root
        try:
            system = fsspec.get_filesystem_class(scheme)
            # Some are made with the host, and a user, of the URL: ftp, webhdfs.
            self._system = system(**{**system._get_kwargs_from_urls(f"{root}/"), **storage})
            with suppress(Exception):  # of what an earlier dataset of this process has seen
                self._system.invalidate_cache()
            # Asked again, some systems answer from an earlier list of the folder.
            self._refresh = {"refresh": True} if "refresh" in signature(self._system.info).parameters else {}
            self._turn: AbstractContextManager[Any] = threading.Lock() if scheme in _ALONE else nullcontext()
        except Exception as error:  # what the package for this scheme, or its libraries, may raise
            said = str(error).partition("\n")[0][:300]
        else:
            return
        raise RequestFailed(RequestFault.FINAL, said, "Install the package that reads this scheme, or check the URL.")

    def find(self, key: str) -> StoredObject:
        try:
            with self._turn:
                about = self._system.info(self._path(key))
            if about["type"] == "file":
                return self._stored(about)
            failed = RequestFailed(RequestFault.MISSING, "it is a folder")
        except Exception as error:
            failed = _failed(error)
        raise failed

    def read(self, stored: StoredObject, start: int, stop: int) -> Any:
        try:
            with self._turn:
                found = self._system.cat_file(self._path(stored.key), start=start, end=stop)
            now = self._look(stored.key)
            # A list of files may have marks of another kind. Looks at the same object have the same kind.
            if _differ(now, stored) or now != self._looks.setdefault(stored.key, now):
                raise RequestFailed(RequestFault.CHANGED, "the file has another size, mark or time now")
            return found
        except Exception as error:
            failed = _failed(error)
        raise failed

    def _look(self, key: str) -> StoredObject:
        """What is known of an object at this moment."""
        path = self._path(key)
        with self._turn:
            if not self._refresh:
                self._system.invalidate_cache(self._system._parent(path))
            return self._stored(self._system.info(path, **self._refresh))

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

    def _stored(self, about: Mapping[str, Any]) -> StoredObject:
        names = (name for name in (*_SUMS, *_TIMES) if about.get(name))
        token = next((f"{name} {_mark(about[name])}" for name in names), "")
        return StoredObject(self._key(about["name"]), about["size"], token)


def _mark(value: Any) -> str:
    """The value as text. A listing and a single question may give the same time in different types."""
    seconds = value.timestamp() if isinstance(value, datetime) else value
    return f"{seconds:.6f}" if isinstance(seconds, (int, float)) else str(seconds)


def _differ(one: StoredObject, other: StoredObject) -> bool:
    """True for different content. Marks of different kinds, as a listing may have, say nothing."""
    kinds = {each.token.partition(" ")[0] for each in (one, other)}
    return one.size != other.size or (len(kinds) == 1 and one.token != other.token)


def _failed(error: Exception) -> RequestFailed:
    if isinstance(error, MemoryError):
        raise error
    if isinstance(error, RequestFailed):
        return error
    said = f"{type(error).__name__}: {str(error)[:300]}"
    if isinstance(error, FileNotFoundError):
        return RequestFailed(
            RequestFault.MISSING, "there is no such file", "Check the URL: names are case-sensitive."
        )
    if isinstance(error, PermissionError):
        return RequestFailed(RequestFault.FINAL, said, "Check the credentials, and that they may read this file.")
    names = {base.__name__ for base in type(error).__mro__}
    passing = any(name.startswith(_PASSING) for name in names) or type(error) is OSError
    return RequestFailed(RequestFault.PASSING if passing else RequestFault.FINAL, said)
