"""A store of objects, as formats use it: requests with retries, in a process that may have been forked."""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar
from urllib.parse import quote_plus, unquote

from penstock._measure.cached import Request, counting
from penstock._remote.options import SCHEMES, client_options, named
from penstock._remote.parallel import Pause, interruptibly
from penstock._remote.retry import FINDING, READING, Patience, RequestFailed, RequestFault
from penstock._remote.urls import (
    faithful,
    identified,
    is_web,
    redacted,
    scheme_of,
    scrubbed,
    split,
    suspicious,
)
from penstock.errors import RemoteError, RemoteFileNotFound

T = TypeVar("T")

Storage = Mapping[str, Any]
"""Options of a store, such as `{"region": "eu-central-1"}`: see `options`."""

IN_FLIGHT = 32
"""Requests of one process at a time."""

_dice = random.SystemRandom()  # the caller's generator is not advanced, and forked workers do not roll the same
# Names of options that tell one bucket from another of the same name, and of those that only let one in.
_PLACE = re.compile(r"endpoint|url|host|server|account|bucket|container|project|(^|_)port$|revision")
_NO_PLACE = re.compile(r"key|secret|token|passw|credential|sas|sign|proxy")
_ACCOUNT = "AZURE_STORAGE_ACCOUNT_NAME"  # other variables that name a place are among the options: see `named`
_OPEN = ("endpoint", "base_url", "account_name", "region", "bucket", "container_name")  # options that are no secrets


class StoredObject(NamedTuple):
    """An object of a store. `token` changes with its content: the ETag, else the time; "" if there is neither."""

    key: str
    size: int
    token: str


class Page(NamedTuple):
    """A part of a listing. A listing that is not deep names the folders, but not the objects in them."""

    objects: list[StoredObject]
    folders: list[str]


class Store(Protocol):
    """What a library must do. Each call is one try, and raises `RequestFailed` if it fails."""

    def find(self, key: str) -> StoredObject: ...

    def read(self, stored: StoredObject, start: int, stop: int) -> Any:
        """The bytes, as a buffer. Raises `RequestFailed` if the object is not the one that was found before."""

    def write(self, key: str, content: bytes) -> None: ...

    def below(self, folder: str, deep: bool, after: str) -> Iterator[Page]:
        """The objects below a folder whose keys follow `after`, by pages."""


class Remote:
    """The store of a URL, with the options of the library that reads it.

    Copies in other processes connect anew: the library's threads and connections do not survive a fork.
    """

    def __init__(self, root: str, user: str, storage: Storage, places: str | None = None) -> None:
        """`places` of a copy is that of the original, which may be on a machine with another environment."""
        self._is_own = scheme_of(root) in SCHEMES
        self._root, self._user, self._storage = root, user, named(root, storage) if self._is_own else dict(storage)
        self._places = _places(scheme_of(root), self._storage) if places is None else places
        self._store: Store | None = None
        self._process = 0
        self._lock = threading.Lock()

    def find(self, key: str, pause: Pause = time.sleep) -> StoredObject:
        return self._tried(
            lambda store: store.find(key), f"{self.display_url(key)} cannot be found", FINDING, pause, key
        )

    def read(self, stored: StoredObject, start: int, stop: int, pause: Pause = time.sleep) -> Any:
        """Exactly these bytes of an object, as a buffer. `pause` waits between two tries."""
        what = f"Bytes {start:,} to {stop:,} of {self.display_url(stored.key)} cannot be read"

        def read(store: Store) -> Any:
            found = store.read(stored, start, stop)
            if len(found) != stop - start:
                raise RequestFailed(RequestFault.ODD, f"{len(found):,} bytes came instead of {stop - start:,}")
            return found

        found = self._tried(read, what, READING, pause, stored.key)
        counting().nbytes += stop - start
        return found

    def write(self, key: str, content: bytes) -> None:
        """Writes a whole object, in the place of one that is there."""
        self._tried(
            lambda store: store.write(key, content), f"{self.display_url(key)} cannot be written", FINDING, key=key
        )

    @property
    def sorts(self) -> bool:
        """True if objects are listed in the order of their keys, and from any key on. (Directory buckets do not.)"""
        return scheme_of(self._root) in ("s3", "s3a", "gs") and not self._root.endswith("--x-s3")

    def below(self, folder: str, deep: bool, after: str = "", pause: Pause = time.sleep) -> Iterator[Page]:
        """The objects below a folder by pages, those after a key; with the folders in it if the listing is not deep.

        If a page fails, the listing begins again after the last page, or, where objects are not sorted, anew: then
        some objects may come twice.
        """
        what = f"The files below {self.display_url(folder)} cannot be listed"
        listing: Iterator[Page] | None = None

        def next_page(store: Store) -> Page | None:
            nonlocal listing
            going_on, listing = listing, None  # after an error a listing cannot go on
            if going_on is None:
                going_on = store.below(folder, deep, after if self.sorts else "")
            found = next(going_on, None)
            listing = going_on
            return found

        patience = FINDING
        while (page := self._tried(next_page, what, patience, pause, folder)) is not None:
            yield page
            patience = READING
            after = page.objects[-1].key if page.objects else after

    def display_url(self, key: str) -> str:
        """The URL of an object, for messages. The URL may be wrong, and its parts not what they look like."""
        return redacted(f"{self._root.partition('/?')[0]}/{key}")

    def path(self, key: str) -> str:
        """The URL of an object that was found, without credentials. No other object has the same."""
        return faithful(self._root, key)

    def identity(self, key: str) -> str:
        """Text that differs for different objects of all stores, and does not depend on what signs requests."""
        return identified(self._root, key, self._user) + self._places

    def _tried(
        self,
        call: Callable[[Store], T],
        what: str,
        patience: Patience,
        pause: Pause = time.sleep,
        key: str = "",
    ) -> T:
        """The answer of the store, after as many tries as it takes. `what` says what fails."""
        with Request(counting()) as waits:
            return self._repeated(call, what, patience, pause, key, waits)

    def _repeated(
        self, call: Callable[[Store], T], what: str, patience: Patience, pause: Pause, key: str, waits: Request
    ) -> T:
        begun, failures, odd = time.monotonic(), 0, 0
        while True:
            failed: RequestFailed | None = None
            counting().requests += 1
            try:
                return interruptibly(lambda: self._answer(call))
            except RequestFailed as error:
                failed = error.with_traceback(None)  # which would keep this frame, and its connections, alive
            failures += 1
            odd += failed.fault is RequestFault.ODD
            elapsed = time.monotonic() - begun
            seconds = patience.pause(failed.fault, failures, odd, elapsed, _dice.random())
            if seconds is None:
                # Outside of `except`: the library's own error, which may hold credentials, is not chained.
                self._give_up(failed, what, failures, elapsed, self._secrets(key))
            counting().retries += 1
            came = f"{redacted(self._root)} ({scrubbed(failed.came, self._secrets(key)).rstrip('.')})"
            waits.failed(came, elapsed, elapsed + seconds)
            pause(seconds)

    def _answer(self, call: Callable[[Store], T]) -> T:
        with _slots():
            return call(self._connected())

    def _give_up(
        self, failed: RequestFailed, what: str, failures: int, elapsed: float, secrets: tuple[str, ...]
    ) -> NoReturn:
        came = scrubbed(failed.came, secrets).rstrip(".")
        tried = "once" if failures == 1 else f"{failures} times in {elapsed:.0f} s"
        text = f"{what}: {came}. It was tried {tried}."
        text = f"{text} {failed.remedy}".rstrip()
        if failed.fault is RequestFault.MISSING:
            raise RemoteFileNotFound(text)
        error = RemoteError(text)
        error.changed, error.refused = failed.fault is RequestFault.CHANGED, failed.fault is RequestFault.FINAL
        raise error

    def _secrets(self, key: str) -> tuple[str, ...]:
        """What a text of a library must not show: all that may be secret in the options, and in the URL of a key."""
        found = list(_texts({k: v for k, v in self._storage.items() if k not in _OPEN}))
        if self._is_own:  # a variable may name a proxy with its password
            found += _texts(client_options(self._root, self._storage))
        user = self._user or self._root.partition("://")[2].rpartition("@")[0]
        found += [user, *user.split(":"), self._root.partition("/?")[2]]
        found += suspicious(f"{self._root.partition('://')[2]}/{key}")
        found += [form(text) for form in (unquote, quote_plus) for text in found]  # as libraries and URLs write them
        return tuple(text for text in found if len(text) > 3)

    def _connected(self) -> Store:
        """The store of this process."""
        if self._process != os.getpid():  # a thread of the parent may have held the lock when it was forked
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
    """The store of each URL, and the key in it. URLs of one store share it, and its connections."""
    stores: dict[tuple[str, str], Remote] = {}
    found = []
    for url in urls:
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


def _places(scheme: str, storage: Mapping[str, Any]) -> str:
    """The options and variables that say which server, account or bucket a URL of this scheme is of."""
    found = [(_ACCOUNT, os.environ[_ACCOUNT])] if scheme.startswith("a") and _ACCOUNT in os.environ else []
    within: list[Mapping[str, Any]] = [storage]
    for options in within:  # which may have more of them inside: client_kwargs
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
    """Bounds the requests of this process; a forked child has its own bound."""
    global _semaphore, _semaphore_of
    if _semaphore_of != os.getpid():
        _semaphore, _semaphore_of = threading.BoundedSemaphore(IN_FLIGHT), os.getpid()
    return _semaphore
