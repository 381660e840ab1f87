"""Decides whether a file, folder or memfd may be trusted, and creates private files and folders.

Other users can put any file under any name into a folder that they may write to. They can also give a memfd any
name, and make a set-uid program such as `su` hold the memfd open. So penstock judges a file by what the kernel says
about the open file, and never by its name or by the process that holds it:

- The owner is this user or root, and no other user may write to the file (`check`).
- A mapped memfd has seals, which cannot be removed, so that it can neither shrink nor change (`open_sealed`).
- A folder and every folder above it must meet the same conditions as a file (`use_folder`).

New files are opened with O_EXCL, so that no link is followed. The umask does not affect their mode. Other
programs of this user are trusted. But such a program may be suspended at any moment, so penstock never waits for it
longer than LONGEST seconds.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial

from penstock._system.interrupts import acquire
from penstock._system.platform import (
    CLOSED_IN_PROGRAMS,
    HAS_OWNERS,
    NO_LINK,
    NO_WAIT,
    SEAL_GROW,
    SEAL_SHRINK,
    SEAL_WRITE,
    SYSTEM,
    fcntl,
    grp,
    pwd,
)

WAIT = 5.0
"""Seconds to wait for a program that is suspended, or that should hold a resource only for a moment."""

LONGEST = 60.0
"""Maximum number of seconds to wait for another program, which may be downloading data for this program."""

UNCHANGING = SEAL_SHRINK | SEAL_GROW | SEAL_WRITE
"""Seals of a complete memfd, whose size and content must not change any more."""

OF_ONE_SIZE = SEAL_SHRINK | SEAL_GROW

_AT_ONCE = CLOSED_IN_PROGRAMS | NO_WAIT  # never waits, even if the file is a pipe or has a lease
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | CLOSED_IN_PROGRAMS  # follows no link
_MOST_LINKS = 40  # the kernel's own limit


class Untrusted(PermissionError):
    """Raised for a file or folder that other users can write to, or could have written to."""


# Files that exist.


def check(about: os.stat_result, group: int | None = None, owner: int | None = None, *, ignored: int = 0) -> None:
    """Raises Untrusted if an untrusted user owns this file or may write to it.

    This user, root, `owner` and the members of `group` are trusted. On Windows, where a file's owner and mode do not
    say who may write to the file, always raises Untrusted.
    """
    if not HAS_OWNERS:
        raise Untrusted(f"{SYSTEM} does not say who may write it")
    mode, of_group = about.st_mode & ~ignored, about.st_gid == group
    if about.st_uid not in (0, _user(), owner) and not of_group:
        raise Untrusted(f"it belongs to {_name(about.st_uid)}")
    may_all = mode & stat.S_IWOTH
    if may_all or (mode & stat.S_IWGRP and not of_group and not _is_own_group(about.st_gid)):
        raise Untrusted(f"{'all users' if may_all else 'its group'} may write it (mode {about.st_mode & 0o7777:04o})")


def open_ours(path: str, flags: int = os.O_RDONLY, group: int | None = None) -> int:
    """Opens a regular file. Raises Untrusted if users other than this user, root and `group` may have written it."""
    fd = os.open(path, flags | NO_LINK | _AT_ONCE)
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise Untrusted(f"{path} is not used: it is not a regular file")
        try:
            check(about, group)
        except Untrusted as error:
            raise Untrusted(f"{path} is not used: {error}") from None
        # An older version of penstock may have made it readable for others.
        if group is None and about.st_mode & 0o077 and about.st_uid == _user():
            os.fchmod(fd, 0o600)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_sealed(path: str, name: str, seals: int, flags: int = os.O_RDONLY, owner: int | None = None) -> int:
    """Opens a memfd, given a path like /proc/PID/fd/N. Raises Untrusted if its name, owner or seals are wrong."""
    fd = os.open(path, flags | _AT_ONCE)
    try:
        about = os.fstat(fd)
        # The path alone proves nothing: anyone can choose the name of a memfd, and the pid may belong to another
        # process.
        ours = about.st_uid == (_user() if owner is None else owner) and stat.S_ISREG(about.st_mode)
        if not ours or not is_memfd(f"/proc/self/fd/{fd}", name):
            raise Untrusted(f"{path} is not a memfd {name} of this user")
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & seals != seals:
            raise Untrusted(f"{path} lacks the seals of a {name}")
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_beside(path: str, of: str) -> os.stat_result:
    """Raises Untrusted if an untrusted user owns `path` or may write to it. Otherwise returns `os.stat(path)`.

    This user is trusted, and so is everyone who can change `of` (a file in the same folder): root, the owner of `of`,
    and the members of the folder's group, if they may replace any file in the folder. If `path` is a link, the owner
    of the link is checked, too.
    """
    folder, about = os.stat(os.path.dirname(of) or "."), os.lstat(path)
    # A group that may replace any file in the folder is trusted.
    group = folder.st_gid if folder.st_mode & stat.S_IWGRP and not folder.st_mode & stat.S_ISVTX else None
    owner = os.stat(of).st_uid
    if stat.S_ISLNK(about.st_mode):
        check(about, group, owner, ignored=0o022)
        about = os.stat(path)
    check(about, group, owner)
    return about


def is_memfd(path: str, name: str) -> bool:
    """True if a path like /proc/PID/fd/N leads to a memfd of this name. Raises OSError if the path does not exist."""
    return os.readlink(path) == f"/memfd:{name} (deleted)"


def seal(fd: int, seals: int) -> None:
    """Adds seals to a memfd, and forbids further seals."""
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_SEAL)


def processes(user: int) -> Iterator[int]:
    """Yields the ids of a user's processes, except hidden ones (see hidepid in proc(5)).

    A process may have opened files that other users can write to, so check each file before using it.
    """
    for pid in os.listdir("/proc"):
        with suppress(OSError):  # it has ended
            if pid.isdecimal() and os.stat(f"/proc/{pid}").st_uid == user:
                yield int(pid)


# New files.


def make_file(path: str, group: int | None = None, mode: int = 0o600) -> int:
    """Creates a new file with the permissions `mode`, but with 0o660 if the file can be given to `group`."""
    fd = os.open(path, _NEW, 0o600)
    try:
        if group is not None:
            with suppress(OSError):  # this user is not in the group: the file stays private
                os.fchown(fd, -1, group)
                mode = 0o660
        if HAS_OWNERS:
            os.fchmod(fd, mode)
    except BaseException:
        os.close(fd)
        os.unlink(path)
        raise
    return fd


def open_or_make(path: str, group: int | None = None) -> int:
    """Opens a private file for reading and writing, creating it if necessary."""
    while True:
        with suppress(FileNotFoundError):
            return open_ours(path, os.O_RDWR, group)
        with suppress(FileExistsError):  # another process has just made it
            return make_file(path, group)


def replace(path: str, write: Callable[[int], object], mode: int | None = None, group: int | None = None) -> None:
    """Replaces a file atomically. Calls `write(fd)` on a temporary file, and renames that file to `path`.

    If `path` is a link, the link itself is replaced. If `mode` is None, the umask decides who may read the file, as
    is usual for files that the user has named.
    """
    draft = f"{path}.{os.urandom(8).hex()}.part"
    made = partial(os.open, draft, _NEW, 0o666) if mode is None else partial(make_file, draft, group, mode)
    fd = acquire(made, os.close)
    try:
        try:
            write(fd)
        finally:
            os.close(fd)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise


def open_named(path: str) -> int:
    """Truncates a file at a path given by the user, and opens it for writing."""
    # In a folder that other users may write to, such as /tmp, links and other users' files may be traps, so they are
    # refused. (Linux itself refuses some of them if fs.protected_symlinks and fs.protected_regular are set.)
    flags, is_shared = os.O_WRONLY | os.O_CREAT | CLOSED_IN_PROGRAMS, False
    try:
        check(os.stat(os.path.dirname(path) or "."))
    except Untrusted:
        is_shared = HAS_OWNERS  # Windows itself lets only administrators make links
    fd = os.open(path, flags | NO_LINK | NO_WAIT if is_shared else flags, 0o666)
    try:
        about = os.fstat(fd)
        if is_shared and about.st_uid not in (0, _user()):
            whose = _name(about.st_uid)
            raise Untrusted(f"{path} belongs to {whose}, who could read or change it. Name another file.")
        if stat.S_ISREG(about.st_mode):
            os.ftruncate(fd, 0)
        if is_shared:
            os.set_blocking(fd, True)
    except BaseException:
        os.close(fd)
        raise
    return fd


# Folders.


def use_folder(path: str, shared: bool = False) -> int | None:
    """Creates a folder if necessary. If `shared` is True, returns the id of the group that may use the folder.

    Raises Untrusted if anyone but this user, root and the group could change or replace the folder.
    """
    there = path
    missing = []
    while not os.path.lexists(there):
        missing.append(there)
        there = os.path.dirname(there)
    group = os.stat(there).st_gid if shared else None
    _check_folder(there, group, is_above=bool(missing))
    for each in reversed(missing):
        with suppress(FileExistsError):  # made by another process; it is checked below
            os.mkdir(each, 0o700)
            os.chmod(each, 0o2770 if shared else 0o700)
    if missing:
        group = os.stat(path).st_gid if shared else None
        _check_folder(path, group)
    return group


def tighten(path: str, is_ours: Callable[[str], object]) -> None:
    """Makes a folder from an older penstock version private, unless `is_ours` rejects the name of a file in it."""
    with suppress(OSError):
        about = os.stat(path)
        if about.st_mode & 0o077 and about.st_uid == _user() and all(map(is_ours, os.listdir(path))):
            os.chmod(path, 0o700)


def _check_folder(path: str, group: int | None, *, is_above: bool = False) -> None:
    last = "" if is_above else os.path.realpath(path)
    for each in _leading_to(path):
        about = os.lstat(each)
        # The mode of a link has no meaning; and in a sticky folder others can create files, but not replace ours.
        is_safe = stat.S_ISLNK(about.st_mode) or (about.st_mode & stat.S_ISVTX and each != last)
        try:
            check(about, group, ignored=0o022 if is_safe else 0)
        except Untrusted as error:
            where = "" if each == path else f"the path leads through {each}, and "
            raise Untrusted(f"{where}{error}") from None


def _leading_to(path: str, links: int = 0) -> Iterator[str]:
    """Yields the path, and every folder and link that leads to it."""
    if links > _MOST_LINKS:
        raise OSError(f"{path} leads through too many links")
    while True:
        yield path
        above = os.path.dirname(path)
        if os.path.islink(path):
            target = os.path.join(os.path.realpath(above), os.readlink(path))
            yield from _leading_to(os.path.normpath(target), links + 1)
        if above == path:
            return
        path = above


# Users.


def _user() -> int:
    """Returns the id of this user, or -1 if other users may have the same id."""
    # In a user namespace, all unmapped users share one id, and this process may belong to one of them.
    user = os.geteuid()
    return -1 if user == _strangers() else user


@cache
def _strangers() -> int | None:
    """Returns the id that stands for all users outside this user namespace, or None if there are no such users."""
    try:
        with open("/proc/self/uid_map") as file:
            if sum(int(line.split()[2]) for line in file) >= 2**32 - 1:
                return None
        with open("/proc/sys/kernel/overflowuid") as file:
            return int(file.read())
    except (OSError, ValueError, IndexError):
        return 65534


def _is_own_group(group: int) -> bool:
    """True if this user is the only member of the group. Many systems give each user such a group."""
    # It belongs to root. In containers, users without a name are in group 0 too.
    if group == 0:
        return True
    if group != os.geteuid():
        return False
    try:
        members = {*grp.getgrgid(group).gr_mem}
    except KeyError:
        return True
    return members <= {_name(group)}


def _name(user: int) -> str:
    try:
        return str(pwd.getpwuid(user).pw_name)
    except KeyError:
        return f"user {user}"
