"""Access to remote stores, with retries. A store remains usable after a fork."""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import quote_plus, unquote

from penstock._measure.cached import Request, cache_counts, counting
from penstock._remote.options import SCHEMES, client_options, named
from penstock._remote.parallel import Pause, interruptibly
from penstock._remote.retry import FINDING, READING, Patience, RequestFailed, RequestFault
from penstock._remote.urls import (
    check_host,
    faithful,
    identified,
    is_web,
    redacted,
    scheme_of,
    scrubbed,
    split,
    suspicious,
)
from penstock._system.panics import NO_PANICS
from penstock.errors import RemoteError, RemoteFileNotFound

T = TypeVar("T")

Storage = Mapping[str, Any]
"""The options of a store, such as `{"region": "eu-central-1"}`: see `options`."""

IN_FLIGHT = 32
"""The largest number of requests that one process makes at the same time."""

_dice = random.SystemRandom()  # does not advance the caller's generator, and differs in forked workers
# Names of options that distinguish buckets of the same name, and of options that only give access.
_PLACE = re.compile(r"endpoint|url|host|server|account|bucket|container|project|(^|_)port$|revision")
_NO_PLACE = re.compile(r"key|secret|token|passw|credential|sas|sign|proxy")
_ACCOUNT = "AZURE_STORAGE_ACCOUNT_NAME"  # `named` converts the other variables of this kind to options
_OPEN = ("endpoint", "base_url", "account_name", "region", "bucket", "container_name")  # options that are not secret


class StoredObject(NamedTuple):
    """An object in a store. `token` identifies the version: the ETag, else the modification time, else ""."""

    key: str
    size: int
    token: str


class Page(NamedTuple):
    """A part of a listing. `folders` contains the names of subfolders, unless the listing is recursive."""

    objects: list[StoredObject]
    folders: list[str]


class Store(Protocol):
    """Access to a store through one library. Each call is one attempt, and may raise any error: see `attempt`."""

    def find(self, key: str) -> StoredObject: ...

    def read(self, stored: StoredObject, start: int, stop: int) -> Any:
        """Returns the bytes from `start` to `stop`.

        Raises `RequestFailed` if the object has changed since `find` returned `stored`.
        """

    def write(self, key: str, content: bytes) -> None: ...

    def below(self, folder: str, deep: bool, after: str) -> Iterator[Page]: ...

    def failed(self, error: Exception) -> RequestFailed: ...


def attempt(store: Store, call: Callable[[], T]) -> T:
    """Returns `call()`. Converts errors of the store's library to `RequestFailed`."""
    try:
        with NO_PANICS:
            return call()
    except (RequestFailed, RemoteError, ImportError, MemoryError):
        raise
    except Exception as error:
        failed = store.failed(error)
    raise failed  # outside of `except`, so that the library's error, which may hold credentials, is not chained


class Remote:
    """The store behind a URL. Each process opens its own connections, because threads do not survive a fork."""

    def __init__(self, root: str, user: str, storage: Storage, places: str | None = None) -> None:
        """`places` is the result of an earlier call to `_places`.

        A pickled copy keeps the same `places`, even in a process with other environment variables.
        """
        self._is_own = scheme_of(root) in SCHEMES
        self._root, self._user, self._storage = root, user, named(root, storage) if self._is_own else dict(storage)
        self._places = _places(scheme_of(root), self._storage) if places is None else places
        self._store: Store | None = None
        self._process = 0
        self._lock = threading.Lock()

    def find(self, key: str, pause: Pause = time.sleep) -> StoredObject:
        return self._tried(
            lambda store: store.find(key), f"{self.display_url(key)} cannot be found", FINDING, key, pause
        )

    def read(self, stored: StoredObject, start: int, stop: int, pause: Pause = time.sleep) -> Any:
        """Returns the bytes from `start` to `stop` as a buffer. Calls `pause(seconds)` before each retry."""
        what = f"Bytes {start:,} to {stop:,} of {self.display_url(stored.key)} cannot be read"

        def read(store: Store) -> Any:
            found = store.read(stored, start, stop)
            if len(found) != stop - start:
                raise RequestFailed(RequestFault.ODD, f"{len(found):,} bytes came instead of {stop - start:,}")
            return found

        found = self._tried(read, what, READING, stored.key, pause)
        counting().nbytes += stop - start
        return found

    def write(self, key: str, content: bytes) -> None:
        self._tried(
            lambda store: store.write(key, content), f"{self.display_url(key)} cannot be written", FINDING, key
        )

    @property
    def sorts(self) -> bool:
        """True if the store lists objects in key order, from any key on. S3's directory buckets do not."""
        return scheme_of(self._root) in ("s3", "s3a", "gs") and not self._root.endswith("--x-s3")

    def below(self, folder: str, deep: bool, after: str = "", pause: Pause = time.sleep) -> Iterator[Page]:
        """Lists the objects below a folder with keys greater than `after`, page by page.

        After an error, the listing continues after the last page. If the store does not sort objects, the listing
        starts again from the beginning instead, and may contain some objects twice.
        """
        what = f"The files below {self.display_url(folder)} cannot be listed"
        listing: Iterator[Page] | None = None

        def next_page(store: Store) -> Page | None:
            nonlocal listing
            going_on, listing = listing, None  # a listing cannot continue after an error
            if going_on is None:
                going_on = store.below(folder, deep, after if self.sorts else "")
            found = next(going_on, None)
            listing = going_on
            return found

        patience = FINDING
        while (page := self._tried(next_page, what, patience, folder, pause)) is not None:
            yield page
            patience = READING
            after = page.objects[-1].key if page.objects else after

    def display_url(self, key: str) -> str:
        """Returns the URL of an object for messages: without secrets, even if the URL is malformed."""
        return redacted(f"{self._root.partition('/?')[0]}/{key}")

    def path(self, key: str) -> str:
        return faithful(self._root, key)

    def identity(self, key: str) -> str:
        """Returns a string that identifies an object across all stores. It does not depend on the credentials."""
        return identified(self._root, key, self._user) + self._places

    def _tried(
        self,
        call: Callable[[Store], T],
        what: str,
        patience: Patience,
        key: str,
        pause: Pause = time.sleep,
    ) -> T:
        """Sends a request to the store, with retries. Error messages begin with `what`."""
        begun, failures, odd = time.monotonic(), 0, 0
        with Request(cache_counts()) as waits:
            while True:
                counting().requests += 1
                try:
                    return interruptibly(lambda: self._answer(call))
                except RequestFailed as error:
                    failed = error.with_traceback(None)  # which would keep this frame, and its connections, alive
                failures += 1
                odd += failed.fault is RequestFault.ODD
                elapsed = time.monotonic() - begun
                seconds = patience.pause(failed.fault, failures, odd, elapsed, _dice.random())
                came = scrubbed(failed.came, self._secrets(key)).rstrip(".")
                if seconds is None:
                    tried = "once" if failures == 1 else f"{failures} times in {elapsed:.0f} s"
                    raise _error(failed, f"{what}: {came}. It was tried {tried}. {failed.remedy}".rstrip())
                counting().retries += 1
                waits.failed(f"{redacted(self._root)} ({came})", elapsed, elapsed + seconds)
                pause(seconds)

    def _answer(self, call: Callable[[Store], T]) -> T:
        with _slots():
            store = self._connected()
            return attempt(store, lambda: call(store))

    def _secrets(self, key: str) -> tuple[str, ...]:
        """Returns the strings that must not appear in messages: parts of the options or URL that may be secret."""
        found = list(_texts({k: v for k, v in self._storage.items() if k not in _OPEN}))
        if self._is_own:  # a variable may hold the password of a proxy
            found += _texts(client_options(self._root, self._storage))
        user = self._user or self._root.partition("://")[2].rpartition("@")[0]
        found += [user, *user.split(":"), self._root.partition("/?")[2]]
        found += suspicious(f"{self._root.partition('://')[2]}/{key}")
        found += [form(text) for form in (unquote, quote_plus) for text in found]  # as libraries and URLs write them
        return tuple(text for text in found if len(text) > 3)

    def _connected(self) -> Store:
        if self._process != os.getpid():  # a new lock too, because a parent's thread may have held it
            self._store, self._lock, self._process = None, threading.Lock(), os.getpid()
        with self._lock:
            if self._store is None:
                self._store = _connect(self._root, self._user, self._storage)
            return self._store

    def __reduce__(self) -> tuple[Any, ...]:
        return Remote, (self._root, self._user, self._storage, self._places)

    def __repr__(self) -> str:
        return f"Remote({redacted(self._root)!r})"


def remotes(urls: Sequence[str], storage: Storage) -> list[tuple[Remote, str]]:
    """Returns the store and the key of each URL. URLs in the same store share one `Remote`."""
    stores: dict[tuple[str, str], Remote] = {}
    found = []
    for url in urls:
        check_host(url)
        root, key, user = split(url)
        if (root, user) not in stores:
            stores[root, user] = Remote(root, user, storage)
        found.append((stores[root, user], key))
    return found


def _connect(root: str, user: str, storage: Storage) -> Store:
    scheme = scheme_of(root)
    if scheme in SCHEMES:
        from penstock._remote.objects import Objects
        from penstock._remote.origin import Origin, has_secrets

        if is_web(root) and has_secrets(root, user, storage):
            return Origin(root, user, storage)
        return Objects(root, user, storage)
    from penstock._remote.filesystems import FileSystem

    return FileSystem(scheme, root, storage)


def _error(failed: RequestFailed, text: str) -> RemoteError:
    if failed.fault is RequestFault.MISSING:
        return RemoteFileNotFound(text)
    error = RemoteError(text)
    error.changed, error.refused = failed.fault is RequestFault.CHANGED, failed.fault is RequestFault.FINAL
    return error


def _places(scheme: str, storage: Mapping[str, Any]) -> str:
    """Returns a string of the options and environment variables that determine the server, account or bucket."""
    found = [(_ACCOUNT, os.environ[_ACCOUNT])] if scheme.startswith("a") and _ACCOUNT in os.environ else []
    within: list[Mapping[str, Any]] = [storage]
    for options in within:  # grows: options may be nested, as in client_kwargs
        within += [value for value in options.values() if isinstance(value, Mapping)]
        plain = [(str(name), value) for name, value in options.items() if not isinstance(value, Mapping)]
        found += [each for each in plain if _PLACE.search(each[0].lower()) and not _NO_PLACE.search(each[0].lower())]
    return "".join(f"\0{name}={value}" for name, value in sorted(found, key=str))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, (str, bytes)):
        yield value if isinstance(value, str) else value.decode("latin-1")


_semaphore, _semaphore_of = threading.BoundedSemaphore(IN_FLIGHT), os.getpid()


def _slots() -> threading.BoundedSemaphore:
    """Returns the semaphore that limits this process's concurrent requests. A forked child gets a new one."""
    global _semaphore, _semaphore_of
    if _semaphore_of != os.getpid():
        _semaphore, _semaphore_of = threading.BoundedSemaphore(IN_FLIGHT), os.getpid()
    return _semaphore
