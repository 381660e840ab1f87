"""Decides whether a file, folder or memfd belongs to this user and may be used; makes private files and folders.

Other users of the machine can put anything under any name into a folder that they may write to, can give a memfd any
name, and can have a set-uid program (`su`) hold it. So penstock judges by what the kernel says about the open file,
and never by its name or by the process that holds it:

- the owner is this user or root, and no other user may write the file (`check`);
- a mapped memfd has seals, which cannot be removed, so that it can neither shrink nor change (`open_sealed`);
- the same holds for a folder and for every folder above it (`use_folder`).

New files are opened with O_EXCL, so never through a link, and get their mode regardless of the umask.

Other programs of this user are trusted, but may be stopped at any moment: no wait for another program lasts longer
than LONGEST.
"""

from __future__ import annotations

import fcntl
import grp
import os
import pwd
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, partial

from penstock._system.interrupts import acquire

WAIT = 5.0
"""Seconds to wait for a program that is stopped, or that should hold a resource only for a moment."""

LONGEST = 60.0
"""Seconds to wait for another program at most: a running one may be downloading what this program needs."""

UNCHANGING = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
"""Seals of a complete memfd."""

OF_ONE_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW

_AT_ONCE = os.O_CLOEXEC | os.O_NONBLOCK  # never waits, even if a pipe, or a file with a lease, is in its place
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC  # follows no link
_MOST_LINKS = 40  # the kernel's own limit


class Untrusted(PermissionError):
    """Raised for a file or folder that other users may have written, or could write to."""


# Files that exist.


def check(about: os.stat_result, group: int | None = None, owner: int | None = None, *, ignored: int = 0) -> None:
    """Raises Untrusted if a user other than this one and root may have written a file or folder, or may write it.

    Members of `group` and the user `owner` count as this user. `ignored`: mode bits that are not checked.
    """
    mode, of_group = about.st_mode & ~ignored, about.st_gid == group
    if about.st_uid not in (0, _user(), owner) and not of_group:
        raise Untrusted(f"it belongs to {_name(about.st_uid)}")
    may_all = mode & stat.S_IWOTH
    if may_all or (mode & stat.S_IWGRP and not of_group and not _is_own_group(about.st_gid)):
        raise Untrusted(f"{'all users' if may_all else 'its group'} may write it (mode {about.st_mode & 0o7777:04o})")


def open_ours(path: str, flags: int = os.O_RDONLY, group: int | None = None) -> int:
    """Opens a regular file that only this user, or members of `group`, can have written. Raises OSError.

    If others can read the file, because an older version made it so, their permission is removed.
    """
    fd = os.open(path, flags | os.O_NOFOLLOW | _AT_ONCE)
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise Untrusted(f"{path} is not used: it is not a regular file")
        try:
            check(about, group)
        except Untrusted as error:
            raise Untrusted(f"{path} is not used: {error}") from None
        if group is None and about.st_mode & 0o077 and about.st_uid == _user():
            os.fchmod(fd, 0o600)
    except BaseException:
        os.close(fd)
        raise
    return fd


def open_sealed(path: str, name: str, seals: int, flags: int = os.O_RDONLY, owner: int | None = None) -> int:
    """Opens a memfd of another process by a path like /proc/PID/fd/N. Raises OSError.

    Checks the open file: it must have this name and these seals, and belong to this user (or to `owner`). The path
    alone proves nothing: anyone can choose a name, and the pid may belong to another process by now.
    """
    fd = os.open(path, flags | _AT_ONCE)
    try:
        about = os.fstat(fd)
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
    """Raises Untrusted unless everyone who could write this file could also have changed the file `of` beside it.

    Accepted owners are this user, root and the owner of `of`; or the group of the folder, if that group may replace
    any file in the folder.
    """
    folder, about = os.stat(os.path.dirname(of) or "."), os.lstat(path)
    group = folder.st_gid if folder.st_mode & stat.S_IWGRP and not folder.st_mode & stat.S_ISVTX else None
    owner = os.stat(of).st_uid
    if stat.S_ISLNK(about.st_mode):
        check(about, group, owner, ignored=0o022)
        about = os.stat(path)
    check(about, group, owner)
    return about


def is_memfd(path: str, name: str) -> bool:
    """True if a path like /proc/PID/fd/N is a memfd of this name. Raises OSError if the path does not exist."""
    return os.readlink(path) == f"/memfd:{name} (deleted)"


def seal(fd: int, seals: int) -> None:
    """Adds seals to a memfd, and prevents further seals."""
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_SEAL)


def processes(user: int) -> Iterator[int]:
    """The pids of a user's processes that the system shows (see hidepid). A pid proves nothing about open files."""
    for pid in os.listdir("/proc"):
        with suppress(OSError):  # it has ended
            if pid.isdecimal() and os.stat(f"/proc/{pid}").st_uid == user:
                yield int(pid)


# New files.


def make_file(path: str, group: int | None = None, mode: int = 0o600) -> int:
    """Opens a new file for reading and writing; members of `group` may read and write it. Raises OSError."""
    fd = os.open(path, _NEW, 0o600)
    try:
        if group is not None:
            with suppress(OSError):  # this user is not in the group: the file stays private
                os.fchown(fd, -1, group)
                mode = 0o660
        os.fchmod(fd, mode)
    except BaseException:
        os.close(fd)
        os.unlink(path)
        raise
    return fd


def open_or_make(path: str, group: int | None = None) -> int:
    """Opens a private file for reading and writing; creates it if it is missing. Raises OSError."""
    while True:
        with suppress(FileNotFoundError):
            return open_ours(path, os.O_RDWR, group)
        with suppress(FileExistsError):  # another process has just made it
            return make_file(path, group)


def replace(path: str, write: Callable[[int], object], mode: int | None = None, group: int | None = None) -> None:
    """Replaces a file as a whole: `write(fd)` writes it under a temporary name first. Raises OSError.

    A reader sees either the old or the new file, and a link in its place is replaced, not followed. Without `mode`,
    as for files that the user names, the umask decides who may read the file.
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
    """Opens a file that the user names for writing, and truncates it. Raises OSError.

    In a folder that others may write to, such as /tmp, links and files of other users may be traps, and are refused.
    (Linux refuses some of them itself where fs.protected_symlinks and fs.protected_regular are set.)
    """
    flags, is_shared = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, False
    try:
        check(os.stat(os.path.dirname(path) or "."))
    except Untrusted:
        is_shared = True
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK if is_shared else flags, 0o666)
    try:
        about = os.fstat(fd)
        if is_shared and about.st_uid not in (0, _user()):
            whose = _name(about.st_uid)
            raise Untrusted(f"{path} belongs to {whose}, who could read or change it. Name another file.")
        if stat.S_ISREG(about.st_mode):
            os.ftruncate(fd, 0)
        os.set_blocking(fd, True)
    except BaseException:
        os.close(fd)
        raise
    return fd


# Folders.


def use_folder(path: str, shared: bool = False) -> int | None:
    """Creates a folder if it is missing, and checks it; returns the group that may use it, if `shared`.

    Raises Untrusted if users other than this one and root could change the folder's content or replace the folder. In
    a shared folder, members of its group may. Raises OSError if the folder cannot be created or read.
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
    """Removes the permissions of others from a folder of an older version, if all files in it are penstock's."""
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
    """The path, and all folders and links on the way to it."""
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
    """The id of this user; -1 if other users may share it.

    In a user namespace, all unmapped users have one common id, and this process may be one of them.
    """
    user = os.geteuid()
    return -1 if user == _strangers() else user


@cache
def _strangers() -> int | None:
    """The id that all unmapped users have in this user namespace; None if all users are mapped."""
    try:
        with open("/proc/self/uid_map") as file:
            if sum(int(line.split()[2]) for line in file) >= 2**32 - 1:
                return None
        with open("/proc/sys/kernel/overflowuid") as file:
            return int(file.read())
    except (OSError, ValueError, IndexError):
        return 65534


def _is_own_group(group: int) -> bool:
    """True if this user is the only member of a group: many systems give each user a group with the user's id.

    Group 0 belongs to root; in containers, users without a name have it too.
    """
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
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"
