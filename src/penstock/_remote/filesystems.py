"""The only module that imports fsspec, which reads URL schemes that obstore does not support, such as hf://."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import datetime
from inspect import signature
from typing import Any

from penstock._remote.retry import RequestFailed, RequestFault
from penstock._remote.store import Page, StoredObject

# Names that fsspec's file systems have for a checksum or version of the content, and for its time; the best first.
_SUMS = ("ETag", "etag", "e_tag", "blob_id", "sha256", "sha", "md5Hash", "content_md5", "checksum", "generation")
_TIMES = ("mtime", "last_modified", "LastModified", "modified", "modificationTime", "modify", "updated", "created")
# Schemes with one connection for each file system, which only one thread at a time may use.
_ALONE = ("ftp", "ftps", "sftp", "ssh", "smb")
_PASSING = ("Timeout", "Connection", "ServerDisconnected", "ClientError", "ClientOSError", "ClientPayloadError")


class FileSystem:
    def __init__(self, scheme: str, root: str, storage: Mapping[str, Any]) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise ImportError(
                f'URLs of the scheme {scheme}:// need fsspec: pip install ".[remote]" in a clone of penstock'
            ) from error
        self._looks: dict[str, StoredObject] = {}  # by key: the object when this process read it first
        self._root = root
        try:
            system = fsspec.get_filesystem_class(scheme)
            # Some file systems, such as ftp and webhdfs, are made with the host and the user of the URL.
            self._system = system(**{**system._get_kwargs_from_urls(f"{root}/"), **storage})
            with suppress(Exception):  # fsspec shares file systems, and their caches, between datasets
                self._system.invalidate_cache()
            # Without this, some systems answer from an earlier listing of the folder.
            self._refresh = {"refresh": True} if "refresh" in signature(self._system.info).parameters else {}
            self._turn: AbstractContextManager[Any] = threading.Lock() if scheme in _ALONE else nullcontext()
        except Exception as error:  # the package for this scheme may raise anything
            said = str(error).partition("\n")[0][:300]
        else:
            return
        raise RequestFailed(RequestFault.FINAL, said, "Install the package that reads this scheme, or check the URL.")

    def find(self, key: str) -> StoredObject:
        with self._turn:
            about = self._system.info(self._path(key))
        if about["type"] == "file":
            return self._stored(about)
        raise RequestFailed(RequestFault.MISSING, "it is a folder")

    def read(self, stored: StoredObject, start: int, stop: int) -> Any:
        with self._turn:
            found = self._system.cat_file(self._path(stored.key), start=start, end=stop)
        # fsspec has no conditional requests, so the object is looked up again to see if it has changed.
        now = self._look(stored.key)
        # A listing may have tokens of another kind, but all results of `_look` for one object have the same kind.
        if _differ(now, stored) or now != self._looks.setdefault(stored.key, now):
            raise RequestFailed(RequestFault.CHANGED, "the file has another size, mark or time now")
        return found

    def _look(self, key: str) -> StoredObject:
        """Returns the current size and version of an object, bypassing fsspec's caches."""
        path = self._path(key)
        with self._turn:
            if not self._refresh:
                self._system.invalidate_cache(self._system._parent(path))
            return self._stored(self._system.info(path, **self._refresh))

    def write(self, key: str, content: bytes) -> None:
        with self._turn:
            self._system.pipe_file(self._path(key), content)

    def below(self, folder: str, deep: bool, after: str) -> Iterator[Page]:
        path = self._path(folder)
        with self._turn:
            found = self._system.find(path, maxdepth=None if deep else 1, withdirs=not deep, detail=True)
        files = [self._stored(about) for about in found.values() if about["type"] == "file"]
        folders = [self._key(about["name"]) for about in found.values() if about["type"] == "directory"]
        yield Page(files, [each for each in folders if each.strip("/") != folder.strip("/")])

    def _path(self, key: str) -> str:
        path: str = self._system._strip_protocol(f"{self._root}/{key}")
        return path

    def _key(self, name: str) -> str:
        return name.removeprefix(self._path("").rstrip("/")).lstrip("/")

    def _stored(self, about: Mapping[str, Any]) -> StoredObject:
        names = (name for name in (*_SUMS, *_TIMES) if about.get(name))
        token = next((f"{name} {_mark(about[name])}" for name in names), "")
        return StoredObject(self._key(about["name"]), about["size"], token)

    def failed(self, error: Exception) -> RequestFailed:
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


def _mark(value: Any) -> str:
    """Returns a checksum, version or time as text. A datetime gives the same text as its timestamp."""
    seconds = value.timestamp() if isinstance(value, datetime) else value
    return f"{seconds:.6f}" if isinstance(seconds, (int, float)) else str(seconds)


def _differ(one: StoredObject, other: StoredObject) -> bool:
    """True if the two objects differ in size or token.

    Tokens of different kinds, such as a checksum and a time, are not compared.
    """
    # A listing may have other kinds of tokens than fsspec's `info`.
    kinds = {each.token.partition(" ")[0] for each in (one, other)}
    return one.size != other.size or (len(kinds) == 1 and one.token != other.token)
