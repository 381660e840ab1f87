"""Finds local and remote files by path, pattern or folder."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection, Iterable, Iterator
from typing import NoReturn
from urllib.parse import unquote, urlsplit

from penstock._files.access import Access
from penstock._files.listed import find_remote, translated
from penstock._files.local import AnyFile, File
from penstock._remote.urls import is_url, redacted, scheme_of
from penstock.source._folders import folders_below

FilePath = str | os.PathLike[str]
Paths = FilePath | AnyFile | Iterable[FilePath | AnyFile]

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_ALMOST_URL = re.compile(r"pipe:|[A-Za-z][A-Za-z0-9]+(:/|//)")  # s3:/bucket, s3//bucket; pipe: is WebDataset's


def find_files(paths: Paths, suffixes: Collection[str], reader: str, access: Access) -> list[AnyFile]:
    """Returns the files named by paths, folders, patterns or ranges (`{000..099}`), sorted and without duplicates."""
    access.check()
    found: dict[str, AnyFile] = {}  # by the identity's name, because URLs may differ in parts that `path` hides
    local: list[str] = []
    urls: list[str] = []
    for path in given_paths(paths, reader):
        if isinstance(path, AnyFile):
            found[path.identity.name] = path
            continue
        for text in _spelt_out(text_of(path, reader)):
            (urls if is_url(text) else local).append(text)
    for file in map(File, sorted({each for text in local for each in _files_of(text, suffixes, reader)})):
        found[file.identity.name] = file
    for remote in find_remote(urls, tuple(suffixes), reader, access):
        found[remote.identity.name] = remote
    return sorted(found.values(), key=lambda file: (file.path, file.identity.name))


def _spelt_out(path: str) -> list[str]:
    """Expands the number ranges in a path, such as `shard-{000..099}.tar`."""
    found = _RANGE.search(path)
    if found is None or os.path.exists(path):
        return [path]
    first, last = found.groups()
    padded = any(number[0] == "0" and len(number) > 1 for number in (first, last))  # as in a shell
    width = max(len(first), len(last)) if padded else 0
    numbers = range(min(int(first), int(last)), max(int(first), int(last)) + 1)
    before, after = path[: found.start()], path[found.end() :]
    return [each for number in numbers for each in _spelt_out(f"{before}{number:0{width}}{after}")]


def given_paths(paths: Paths, reader: str) -> list[FilePath | AnyFile]:
    """Returns the paths as a list. Raises TypeError if one of them is not a path; the message names `reader`."""
    if isinstance(paths, (str, os.PathLike, AnyFile)):
        return [paths]
    if isinstance(paths, bytes) or not isinstance(paths, Iterable):
        _refuse(paths, reader)
    given = list(paths)
    if not given:
        raise ValueError(f"{reader} needs at least one path, but got an empty list.")
    for path in given:
        if not isinstance(path, (str, os.PathLike, AnyFile)):
            _refuse(path, reader)
    return given


def _refuse(path: object, reader: str) -> NoReturn:
    text = redacted(os.fsdecode(path) if isinstance(path, bytes) else repr(path))
    shown = repr(os.fsencode(text)) if isinstance(path, bytes) else text
    raise TypeError(f"{reader} takes a path (str or os.PathLike), or a list of paths, but got {shown}.")


def text_of(path: FilePath, reader: str) -> str:
    """Returns a path or URL as a string. A file:// URL becomes a path."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str):
        _refuse(path, reader)
    if scheme_of(text) != "file":
        return text
    parts = urlsplit(text)
    if parts.netloc not in ("", "localhost"):
        raise ValueError(
            f"{redacted(text)!r} names a host. The URL of a local file has three slashes: file:///folder/file."
        )
    return unquote(parts.path)


def _files_of(given: str, suffixes: Collection[str], reader: str) -> list[str]:
    """Returns the absolute paths of the local files that a path, a pattern or a folder names."""
    path = os.path.abspath(given)
    shown = path if redacted(given) == given else redacted(given)
    if os.path.isdir(path):
        ends = tuple(suffixes)
        below = (os.path.join(where, name) for where, names in folders_below(path) for name in names)
        found = [each for each in below if each.lower().endswith(ends)]
        if not found:
            raise FileNotFoundError(
                f"{reader}: no file below the folder {path!r} ends in {' or '.join(sorted(suffixes))}. Name the "
                "files themselves, or a pattern such as 'folder/*.xyz'."
            )
        return found
    if os.path.exists(path):  # also if its name looks like a pattern
        return [path]
    if not glob.has_magic(path):
        hint = " A URL has the form 's3://bucket/folder/file'." if _ALMOST_URL.match(given) else ""
        raise FileNotFoundError(f"{reader}: there is no file or folder {shown!r}.{hint}")
    found = list(_matching(path))
    if not found:
        raise FileNotFoundError(f"{reader}: no file matches the pattern {shown!r}.")
    return found


def _matching(pattern: str) -> Iterator[str]:
    segments = pattern.split("/")
    if "**" not in segments:
        yield from (match for match in glob.iglob(pattern) if not os.path.isdir(match))
        return
    # Python's glob is not used for `**`, because it follows a symbolic link to a parent folder up to 40 times.
    at = segments.index("**")
    begin, rest = "/".join(segments[:at]) or "/", segments[at:]
    below = translated("/".join(rest))
    hidden = any(segment.startswith(".") for segment in rest)
    for folder in glob.glob(begin) if glob.has_magic(begin) else [begin]:
        for where, names in folders_below(folder, hidden=hidden):
            paths = (os.path.join(where, name) for name in names)
            yield from (path for path in paths if below.fullmatch(path[len(folder) :].lstrip("/")))
