"""Lets penstock believe that it runs on macOS or Windows: its modules see only what Python has there.

There is no such machine here. So `pretend("win32")`, called before penstock is imported, gives the modules of
penstock other modules for `os`, `signal`, `mmap` and the like: without the names that Python lacks there, and with
the values that differ. `/proc` and `/sys` do not exist for them. On Windows, moreover, an open file can be neither
replaced nor deleted, a descriptor without O_BINARY is an error, and `stat` knows no owners. Other libraries and the
tests see Linux: they have their own ways on each system, and are not what is tested.

What this cannot show: other C libraries, paths with drive letters, how times are rounded, and how fast anything is.

pytest calls it with `-p tests.elsewhere.plugin`, and other programs by `site/sitecustomize.py`, if the variable
PENSTOCK_PRETEND is set.
"""

from __future__ import annotations

import builtins
import importlib
import os
import stat
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

VARIABLE = "PENSTOCK_PRETEND"

# What `os` has on Windows (the documentation names the systems of each function), of Python 3.11.
_OS_OF_WINDOWS = [
    "DirEntry",
    "F_OK",
    "O_APPEND",
    "O_CREAT",
    "O_EXCL",
    "O_RDONLY",
    "O_RDWR",
    "O_TRUNC",
    "O_WRONLY",
    "PathLike",
    "R_OK",
    "SEEK_CUR",
    "SEEK_END",
    "SEEK_SET",
    "W_OK",
    "X_OK",
    "abort",
    "access",
    "altsep",
    "chdir",
    "chmod",
    "close",
    "closerange",
    "cpu_count",
    "curdir",
    "defpath",
    "devnull",
    "dup",
    "dup2",
    "environ",
    "error",
    "extsep",
    "fdopen",
    "fsdecode",
    "fsencode",
    "fspath",
    "fstat",
    "fsync",
    "ftruncate",
    "get_exec_path",
    "get_inheritable",
    "get_terminal_size",
    "getcwd",
    "getenv",
    "getlogin",
    "getpid",
    "getppid",
    "isatty",
    "kill",
    "linesep",
    "link",
    "listdir",
    "lseek",
    "lstat",
    "makedirs",
    "mkdir",
    "name",
    "open",
    "pardir",
    "path",
    "pathsep",
    "pipe",
    "popen",
    "putenv",
    "read",
    "readlink",
    "remove",
    "removedirs",
    "rename",
    "renames",
    "replace",
    "rmdir",
    "scandir",
    "sep",
    "set_inheritable",
    "stat",
    "stat_result",
    "strerror",
    "symlink",
    "system",
    "terminal_size",
    "times",
    "truncate",
    "umask",
    "unlink",
    "unsetenv",
    "urandom",
    "utime",
    "waitpid",
    "waitstatus_to_exitcode",
    "walk",
    "write",
    "_exit",
]
_SIGNALS_OF_WINDOWS = [
    "CTRL_C_EVENT",
    "Handlers",
    "SIGABRT",
    "SIGFPE",
    "SIGILL",
    "SIGINT",
    "SIGSEGV",
    "SIGTERM",
    "SIG_DFL",
    "SIG_IGN",
    "Signals",
    "default_int_handler",
    "getsignal",
    "raise_signal",
    "set_wakeup_fd",
    "signal",
    "strsignal",
    "valid_signals",
]

_LINUX_ONLY: dict[str, tuple[str, ...]] = {
    "os": (
        *(
            "memfd_create",
            "MFD_",
            "pidfd_open",
            "P_PIDFD",
            "PIDFD_",
            "sched_",
            "SCHED_",
            "eventfd",
            "EFD_",
            "timerfd",
        ),
        *(
            "posix_fadvise",
            "POSIX_FADV",
            "posix_fallocate",
            "getrandom",
            "GRND_",
            "splice",
            "copy_file_range",
            "setns",
        ),
        *(
            "unshare",
            "CLONE_",
            "getxattr",
            "setxattr",
            "listxattr",
            "removexattr",
            "waitid",
            "pipe2",
            "getres",
            "setres",
        ),
        *("O_DIRECT", "O_NOATIME", "O_PATH", "O_TMPFILE", "O_LARGEFILE", "fdatasync", "RTLD_DEEPBIND"),
    ),
    "select": ("epoll", "EPOLL"),
    "fcntl": ("F_OFD_", "F_SEAL_", "F_ADD_SEALS", "F_GET_SEALS", "F_SETSIG", "F_GETSIG", "F_SETLEASE", "F_NOTIFY"),
    "signal": ("SIGRT", "SIGPWR", "SIGSTKFLT", "SIGPOLL", "SIGCLD", "pidfd_", "sigtimedwait", "sigwaitinfo"),
    "socket": (
        "SOCK_CLOEXEC",
        "SOCK_NONBLOCK",
        "SO_PEERCRED",
        "MSG_CMSG_CLOEXEC",
        "AF_NETLINK",
        "AF_ALG",
        "AF_VSOCK",
    ),
    "mmap": ("MADV_REMOVE", "MADV_DONTFORK", "MADV_DOFORK", "MADV_HUGEPAGE", "MADV_POPULATE", "MAP_POPULATE"),
    "resource": ("prlimit", "RLIMIT_RTPRIO", "RLIMIT_SIGPENDING", "RLIMIT_MSGQUEUE", "RLIMIT_NICE"),
    "time": ("pthread_getcpuclockid", "CLOCK_BOOTTIME", "CLOCK_TAI"),
}
_UNIX_ONLY = {
    "select": ("epoll", "EPOLL", "poll", "POLL", "kqueue"),
    "socket": ("AF_UNIX", "send_fds", "recv_fds", "CMSG_", "MSG_", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "SO_PEERCRED"),
    "faulthandler": ("register", "unregister"),
    "time": ("clock_", "CLOCK_", "pthread_"),
}
_MMAP_OF_WINDOWS = ("mmap", "ACCESS_", "PAGESIZE", "ALLOCATIONGRANULARITY", "error")
_NOT_ON_WINDOWS = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix", "_posixsubprocess")
_FUNCTIONS_OF_LINUX = ("mremap", "prctl", "dl_iterate_phdr", "memfd_create", "syscall", "gettid", "sched_getcpu")
_FOLDERS_OF_LINUX = ("/proc", "/sys", "/dev/shm")
_BINARY = 0o100000  # O_LARGEFILE, which changes nothing here


def pretend(system: str) -> None:
    """From now on, modules of penstock see another system. `system` is the `sys.platform` of it: darwin or win32."""
    if any(name.split(".")[0] == "penstock" for name in sys.modules):
        raise RuntimeError("penstock is imported already, and has seen this system")
    hidden = _Hidden(system)
    builtins.__import__ = hidden.imported
    sys.addaudithook(hidden.audit)


class _View(types.ModuleType):
    """A module without some of its names. Names in its own `__dict__` replace those of the module."""

    def __init__(self, real: types.ModuleType, keeps: Callable[[str], bool]) -> None:
        super().__init__(real.__name__)
        vars(self).update(_real=real, _keeps=keeps)

    def __getattr__(self, name: str) -> Any:
        if not self._keeps(name):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)


class _Hidden:
    def __init__(self, system: str) -> None:
        self.system, self._import, self._views = system, builtins.__import__, dict[str, types.ModuleType]()

    def imported(self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        """Replaces `__import__`, which every import statement calls."""
        if level == 0 and _is_ours((globals or {}).get("__name__")):
            if name == "os.path":
                raise AssertionError("import os, and not os.path: this test must see what is used of it")
            view = self.view(name)
            if view is not None:
                return view
        return self._import(name, globals, locals, fromlist, level)

    def view(self, name: str) -> types.ModuleType | None:
        """Returns what penstock sees of a module of the standard library, or None for one that is the same."""
        if self.system == "win32" and name in _NOT_ON_WINDOWS:
            raise ModuleNotFoundError(f"No module named {name!r} on Windows", name=name)
        change = getattr(self, f"_{name.lstrip('_')}", None)
        if change is None:
            return None
        if name not in self._views:
            view = self._views[name] = _View(importlib.import_module(name), partial(self._keeps, name.lstrip("_")))
            change(view)
        return self._views[name]

    def _keeps(self, module: str, name: str) -> bool:
        if name.startswith("__"):
            return True
        if self.system == "darwin":
            return not name.startswith(_LINUX_ONLY.get(module, ("\0",)))
        if module == "os":
            return name in _OS_OF_WINDOWS or not hasattr(importlib.import_module("posix"), name)
        if module == "signal":
            return name in _SIGNALS_OF_WINDOWS
        if module == "mmap":
            return name.startswith(_MMAP_OF_WINDOWS)
        return not name.startswith(_UNIX_ONLY.get(module, ("\0",)))

    # Changes to what is left, by module.

    def _os(self, view: Any) -> None:
        for name in ("stat", "lstat", "fstat", "readlink", "access"):
            vars(view)[name] = partial(self._by_path, name)
        if self.system == "win32":
            vars(view).update(O_BINARY=_BINARY, O_NOINHERIT=os.O_CLOEXEC, open=_opened)

    def _by_path(self, name: str, path: Any, *args: Any, **kwargs: Any) -> Any:
        _check_folder(path)
        found = getattr(os, name)(path, *args, **kwargs)
        return _without_owner(found) if self.system == "win32" and isinstance(found, os.stat_result) else found

    def _sys(self, view: Any) -> None:
        vars(view)["platform"] = self.system

    def _importlib(self, view: Any) -> None:
        def import_module(name: str, package: str | None = None) -> types.ModuleType:
            return self.view(name) or importlib.import_module(name, package)

        vars(view)["import_module"] = import_module

    def _signal(self, view: Any) -> None:
        import signal

        found = {*range(1, 32)} if self.system == "darwin" else {6, 8, 4, 2, 11, 15}
        vars(view)["valid_signals"] = lambda: {signal.Signals(number) for number in found}

    def _mmap(self, view: Any) -> None:
        if self.system == "win32":
            vars(view)["ALLOCATIONGRANULARITY"] = 1 << 16

    def _ctypes(self, view: Any) -> None:
        import ctypes

        system = self.system

        class CDLL(ctypes.CDLL):
            def __init__(self, name: str | None, *args: Any, **kwargs: Any) -> None:
                if name is None and system == "win32":
                    raise TypeError("LoadLibrary() argument 1 must be str, not None")
                super().__init__(name, *args, **kwargs)

            def __getattr__(self, name: str) -> Any:
                if name in _FUNCTIONS_OF_LINUX:
                    raise AttributeError(f"symbol not found: {name}")
                return super().__getattr__(name)

        vars(view)["CDLL"] = CDLL

    def _multiprocessing(self, view: Any) -> None:
        methods = ["spawn"] if self.system == "win32" else ["spawn", "fork", "forkserver"]
        vars(view)["get_all_start_methods"] = lambda: methods
        vars(view)["get_start_method"] = lambda allow_none=False: None if allow_none else "spawn"

    def _nothing(self, view: Any) -> None:
        pass

    _select = _socket = _fcntl = _resource = _time = _faulthandler = _nothing

    # What is opened, renamed and deleted.

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in ("open", "os.listdir", "os.scandir", "os.rename", "os.remove") or not _is_for_penstock():
            return
        _check_folder(args[0])
        if self.system == "win32" and event in ("os.rename", "os.remove"):
            for path in args[:2] if event == "os.rename" else args[:1]:
                if _is_open(os.path.realpath(os.fspath(path))):
                    raise PermissionError(13, "The process cannot access the file because it is open", path)


def _is_ours(name: Any) -> bool:
    return isinstance(name, str) and name.split(".")[0] == "penstock"


_STANDARD = sys.stdlib_module_names


def _is_for_penstock() -> bool:
    """True if a module of penstock asks, itself or through the standard library."""
    here: Any = sys._getframe(1)
    frame = here.f_back  # None if the interpreter itself asks
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if _is_ours(name):
            return True
        if name.split(".")[0] not in _STANDARD or name == "importlib._bootstrap_external":
            return False
        frame = frame.f_back
    return False


def _check_folder(path: Any) -> None:
    if isinstance(path, (str, bytes, os.PathLike)):
        name = os.fsdecode(path)
        if f"/{name.lstrip('/')}".startswith(_FOLDERS_OF_LINUX) and name.startswith("/"):
            raise FileNotFoundError(2, "No such file or directory", name)


def _opened(path: Any, flags: int, mode: int = 0o777) -> int:
    if not flags & _BINARY:
        raise AssertionError(f"os.open({path!r}) without O_BINARY: Windows would change line ends")
    return os.open(path, flags & ~_BINARY, mode)


def _is_open(path: str) -> bool:
    """True if this process has the file open or mapped."""
    for number in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{number}") == path:
                return True
        except OSError:
            continue
    with open("/proc/self/maps", "rb") as maps:
        return any(line.rstrip(b"\n").endswith(b" " + os.fsencode(path)) for line in maps)


def _without_owner(found: os.stat_result) -> os.stat_result:
    kind = 0o777 if stat.S_ISDIR(found.st_mode) else 0o666
    values = [stat.S_IFMT(found.st_mode) | kind, *found[1:4], 0, 0, *found[6:10]]
    times = {name: getattr(found, name) for name in ("st_atime_ns", "st_mtime_ns", "st_ctime_ns", "st_mtime")}
    return os.stat_result(values, times)
