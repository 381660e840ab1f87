"""Finds the images of an `ImageFolder`, in a local folder or in a remote store."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._files.access import Access
from penstock._files.index import with_progress_bar
from penstock._files.local import AnyFile, File
from penstock._files.paths import find_files, text_of
from penstock._files.pieces import Pieces
from penstock._files.remote import RemoteFile
from penstock._remote.listing import listed
from penstock._remote.parallel import in_parallel
from penstock._remote.store import IN_FLIGHT, Remote, StoredObject, remotes
from penstock._remote.urls import is_url, is_web, local
from penstock.errors import RemoteFileNotFound
from penstock.source._folders import files_below
from penstock.source._packed import PackedList

Path = str | os.PathLike[str]


class LocalFolder:
    is_remote = False

    def __init__(self, root: str) -> None:
        self.root = root

    def folders(self) -> tuple[str, ...]:
        """Returns the sorted names of the subfolders that are not hidden."""
        with os.scandir(self.root) as entries:
            return tuple(sorted(each.name for each in entries if each.is_dir() and not each.name.startswith(".")))

    def below(self, folder: str) -> Iterator[str]:
        """Yields the paths of all non-hidden files below `folder`, sorted by name."""
        return files_below(self.root, folder)

    def has(self, path: str) -> bool:
        return os.path.isfile(os.path.join(self.root, path))

    def packed(self, paths: list[str]) -> PackedList[str]:
        return PackedList(paths)

    def file(self, paths: Sequence[str], key: int) -> AnyFile:
        return File(os.path.join(self.root, paths[key]))


class RemoteFolder:
    """A folder in a remote store. Keeps file sizes and version tokens from the listing, to save requests."""

    is_remote = True

    def __init__(self, remote: Remote, key: str, pieces: Pieces) -> None:
        self._remote, self._pieces = remote, pieces
        self._begin = f"{key.rstrip('/')}/" if key.strip("/") else ""
        self.root = remote.path(self._begin).rstrip("/")
        self._paths: Sequence[str] = ()  # whose sizes and tokens are known
        self._sizes: NDArray[np.int64] = np.empty(0, np.int64)
        self._tokens: PackedList[str] = PackedList(())

    @cached_property
    def _listed(self) -> dict[str, StoredObject]:
        pages = listed(self._remote, self._begin.rstrip("/"))
        found = {}
        for each in with_progress_bar(chain.from_iterable(pages), None, "listing files"):
            path = each.key[len(self._begin) :]
            if path and not any(part.startswith(".") for part in path.split("/")):
                found[path] = each
        return found

    def folders(self) -> tuple[str, ...]:
        return tuple(sorted({path.partition("/")[0] for path in self._listed if "/" in path}))

    def below(self, folder: str) -> Iterator[str]:
        begin = f"{folder}/" if folder else ""
        yield from sorted((path for path in self._listed if path.startswith(begin)), key=lambda path: path.split("/"))

    def has(self, path: str) -> bool:
        try:
            self._remote.find(self._begin + path)
        except RemoteFileNotFound:
            return False
        return True

    def packed(self, paths: list[str]) -> PackedList[str]:
        packed = PackedList(paths)
        found = self.__dict__.pop("_listed", None)
        if found is not None:
            self._paths = packed
            self._sizes = np.array([found[path].size for path in paths], np.int64)
            self._tokens = PackedList(found[path].token for path in paths)
        return packed

    def file(self, paths: Sequence[str], key: int) -> AnyFile:
        name = self._begin + paths[key]
        if paths is self._paths:
            stored = StoredObject(name, int(self._sizes[key]), self._tokens[key])
        else:
            stored = self._remote.find(name)
        return RemoteFile(self._remote, stored, self._pieces)


class Files(Sequence[AnyFile]):
    """The image files of a folder. There may be millions, so each file object is created on access."""

    def __init__(self, folder: LocalFolder | RemoteFolder, paths: Sequence[str]) -> None:
        self._folder, self._paths = folder, paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return [self[at] for at in range(*key.indices(len(self)))]
        return self._folder.file(self._paths, key)

    def __iter__(self) -> Iterator[AnyFile]:
        threads = IN_FLIGHT if self._folder.is_remote else 1
        return in_parallel(lambda key, _: self[key], range(len(self)), threads)


def find_folder(
    root: Path, listing: Path | None, access: Access
) -> tuple[LocalFolder | RemoteFolder, AnyFile | None]:
    """Returns the images' folder, and the listing (None if there is none). `root` may itself be a listing."""
    text = text_of(root, "ImageFolder")
    if not is_url(text):
        folder = local(text, "ImageFolder")
        if listing is None and os.path.isfile(folder):
            return LocalFolder(os.path.dirname(folder)), _list_of(folder, access)
        if not os.path.isdir(folder):
            raise FileNotFoundError(f"ImageFolder: there is no folder or list {folder!r}.")
        return LocalFolder(folder), None if listing is None else _list_of(listing, access)
    ((remote, key),) = remotes([text], access.storage or {})
    pieces = access.pieces()
    if listing is not None:
        return RemoteFolder(remote, key, pieces), _list_of(listing, access)
    if key and not key.endswith("/"):
        try:
            stored = remote.find(key)
        except RemoteFileNotFound:
            if is_web(text):
                raise
        else:
            return RemoteFolder(remote, key.rpartition("/")[0], pieces), RemoteFile(remote, stored, pieces)
    if is_web(text):
        raise ValueError(
            f"ImageFolder: {remote.display_url(key)!r} is a folder, and a web server does not list its files. Pass "
            "listing=, the path or URL of a list of the images."
        )
    return RemoteFolder(remote, key, pieces), None


def _list_of(path: Path, access: Access) -> AnyFile:
    text = text_of(path, "ImageFolder")
    return find_files([text], (), "ImageFolder", access)[0] if is_url(text) else File(local(text, "ImageFolder"))
