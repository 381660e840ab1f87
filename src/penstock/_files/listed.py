"""Finds the remote files that a URL names. Except on web servers, the URL may be a pattern or a folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from penstock._files.access import Access
from penstock._files.index import with_progress_bar
from penstock._files.remote import RemoteFile
from penstock._remote.listing import listed
from penstock._remote.parallel import Pause, in_parallel
from penstock._remote.store import IN_FLIGHT, Remote, StoredObject, remotes
from penstock._remote.urls import is_web
from penstock.errors import RemoteError, RemoteFileNotFound

_MAGIC = re.compile(r"[*?[]")


def find_remote(urls: list[str], suffixes: tuple[str, ...], reader: str, access: Access) -> Iterator[RemoteFile]:
    """Yields the files that the URLs name. A URL may be a pattern or a folder. URLs are looked up in parallel."""
    if not urls:
        return
    pieces = access.pieces()
    given = [
        _GivenUrl(remote, key, is_web(url), suffixes, reader)
        for url, (remote, key) in zip(urls, remotes(urls, access.storage or {}), strict=True)
    ]
    finding = in_parallel(lambda each, pause: (each, each.named(pause)), given, IN_FLIGHT)
    for each, stored in with_progress_bar(finding, len(given), "finding files"):
        for one in [stored] if stored is not None else each.below():
            yield RemoteFile(each.remote, one, pieces)


class _GivenUrl:
    def __init__(self, remote: Remote, key: str, is_web: bool, suffixes: tuple[str, ...], reader: str) -> None:
        self.remote, self._key, self._is_web = remote, key, is_web
        self._suffixes, self._reader = suffixes, reader
        self._is_pattern = _MAGIC.search(key) is not None

    def named(self, pause: Pause) -> StoredObject | None:
        """Returns the file with this URL, or None if the URL is a pattern or may be a folder."""
        is_folder = not self._key or self._key.endswith("/")
        if not self._is_web and (is_folder or self._is_pattern):
            return None
        try:
            return self.remote.find(self._key, pause)
        except RemoteError as error:
            if self._is_web and (is_folder or self._is_pattern):
                raise ValueError(
                    f"{self._reader}: {self._url!r} is not a file, and by http there is no list of files. Name the "
                    "files, give a list of their URLs, or a range such as 'https://host/train-{000..099}.tar'. "
                    f"({error})"
                ) from None
            if not self._is_web and isinstance(error, RemoteFileNotFound):
                return None
            raise

    def below(self) -> list[StoredObject]:
        """Returns the files that match the pattern, or all files below the folder."""
        if self._is_pattern:
            found = list(self._matching())
            if not found:
                raise FileNotFoundError(f"{self._reader}: no file matches the pattern {self._url!r}.")
            return found
        pages = listed(self.remote, self._key.rstrip("/"))
        every = with_progress_bar(chain.from_iterable(pages), None, "listing files")
        found = [each for each in every if self._is_meant(each.key)]
        if not found:
            ends = " or ".join(sorted(self._suffixes))
            raise FileNotFoundError(
                f"{self._reader}: there is no file {self._url!r}, and no file below it ends in {ends}. Check the "
                "URL, or name the files themselves, or a pattern such as 's3://bucket/folder/*.xyz'."
            )
        return found

    def _is_meant(self, key: str) -> bool:
        inside = key[len(self._key.rstrip("/")) :].lstrip("/")
        return inside.lower().endswith(self._suffixes) and not any(p.startswith(".") for p in inside.split("/"))

    def _matching(self) -> Iterator[StoredObject]:
        """Yields the files that match the pattern. Lists only folders that match the start of the pattern."""
        segments = self._key.split("/")
        first = next(at for at, segment in enumerate(segments) if _MAGIC.search(segment))
        folders, pattern = ["/".join(segments[:first])], translated(self._key)
        for at in range(first, len(segments)):
            if "**" in segments[at]:
                for page in chain.from_iterable(listed(self.remote, folder) for folder in folders):
                    yield from (each for each in page if pattern.fullmatch(each.key))
                return
            begin = translated("/".join(segments[: at + 1]))
            below: list[str] = []
            for objects, inner in in_parallel(self._inside, folders, IN_FLIGHT):
                if at == len(segments) - 1:
                    yield from (each for each in objects if pattern.fullmatch(each.key))
                below += [folder for folder in inner if begin.fullmatch(folder.rstrip("/"))]
            folders = below

    def _inside(self, folder: str, pause: Pause) -> tuple[list[StoredObject], list[str]]:
        pages = list(self.remote.below(folder, False, pause=pause))
        return [each for page in pages for each in page.objects], [each for page in pages for each in page.folders]

    @property
    def _url(self) -> str:
        return self.remote.display_url(self._key)


def translated(pattern: str) -> re.Pattern[str]:
    """Converts a shell pattern to a regular expression. `*` matches neither a slash nor a dot that begins a name."""
    parts: list[str] = []
    segments = pattern.split("/")
    for at, segment in enumerate(segments):
        if segment == "**":
            if segments[at - 1 : at] != ["**"]:  # twice means the same as once
                parts.append(r"(?:(?!\.)[^/]+/)*")
            continue
        hidden = "" if segment.startswith(".") or not _MAGIC.match(segment) else r"(?!\.)"
        parts.append(hidden + _segment(segment) + "/")
    text = "".join(parts)
    return re.compile(text[:-1] if text.endswith("/") else text + r"(?!\.)[^/]*")  # after ** at the end: any name


def _segment(segment: str) -> str:
    runs = [""]  # the parts between the stars
    at = 0
    while at < len(segment):
        letter = segment[at]
        stop = segment.find("]", at + 2) if letter == "[" else -1
        if letter == "*":
            runs.append("")
        elif stop > 0:
            runs[-1] += _choice(segment[at + 1 : stop])
            at = stop
        else:
            runs[-1] += "[^/]" if letter == "?" else re.escape(letter)
        at += 1
    if len(runs) == 1:
        return runs[0]
    first, *middle, last = runs
    # Names come from servers, so matching must be fast for any name. Each * is therefore an atomic group, which never
    # backtracks. This does not change which names match.
    return first + "".join(f"(?>[^/]*?{run})" for run in middle if run) + f"[^/]*{last}"


def _choice(inside: str) -> str:
    """Converts `[inside]` to a regular expression. As in a shell, an empty range such as [9-0] matches nothing."""
    text = inside.replace("\\", r"\\").replace("[", r"\[")
    try:
        found = f"[{'^' + text[1:] if text[0] == '!' else text}]"
        re.compile(found)
    except re.error:
        return "(?!)"
    return found
