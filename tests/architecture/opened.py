"""Finds every place in src where something is unpickled, mapped, executed or opened by name."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

# What is looked for, by the full name. Not only calls: `partial(os.open, ...)` opens a file, too.
NAMES = re.compile(
    r"""
    # unpickled
    (_?pickle|cloudpickle|marshal|dill)\.(loads?|Unpickler) | penstock\._wire\.pickling\.loads
    | penstock\._wire\.shipment\.unpack\w* | numpy\.(load|memmap|fromfile|lib\.format\.(read|open)\w+) | torch\.load
    # mapped
    | mmap\.mmap | ctypes\.(CDLL|PyDLL|memmove|string_at|cast|pythonapi) | multiprocessing\.shared_memory\.\w+
    | penstock\.(_memory|_files)\.mapping\.(mapped|map_memory|copy_map|map_file|map_again)
    # executed
    | exec | eval | compile | __import__ | importlib\.(import_module|util\.\w+) | runpy\.\w+
    | subprocess\.(Popen|run|call|check_\w+|getoutput) | _posixsubprocess\.\w+
    | os\.(exec\w+|system|popen|spawn\w+|posix_spawnp?|fork|forkpty) | multiprocessing\.(Process|get_context)
    # opened by name, or made
    | open | io\.(open\w*|FileIO) | os\.(open|openat|memfd_create|mkfifo|mknod)
    | os\.(rename|renames|replace|remove|unlink|link|symlink|truncate|mkdir|makedirs|rmdir|chmod|chown)
    | socket\.(socket|socketpair|create_\w+|fromfd|send_fds|recv_fds) | ssl\.create_default_context
    | shutil\.(?!get_terminal_size|disk_usage|which)\w+ | tempfile\.\w+ | fcntl\.(fcntl|flock|lockf|ioctl)
    | (obstore|fsspec|lmdb)\.\w+(\.\w+)* | urllib\.request\.urlopen | http\.client\.HTTPS?Connection
    | penstock\._system\.trust\.(open_\w+|make_file|replace|use_folder|tighten)
    # grown
    | zipfile\.ZipFile | tarfile\.\w+ | (gzip|bz2|lzma|zlib)\.(open|decompress\w*)
    """,
    re.VERBOSE,
)
# Methods that only files, paths and sockets have. (`.open` is a method of others, too: see `_opens`.)
METHODS = re.compile(
    r"(read|write)_(text|bytes)|unlink|mkdir|rmdir|touch|symlink_to|hardlink_to|chmod"
    r"|connect|connect_ex|listen|accept|recvmsg"
)
_MODE = re.compile(r"[rwxab+t]{1,3}")


def places(root: Path) -> dict[str, dict[str, set[str]]]:
    """By module, and by the function in it ("" outside of all): what it uses."""
    found: dict[str, dict[str, set[str]]] = {}
    for path in sorted(root.rglob("*.py")):
        inside: dict[str, set[str]] = defaultdict(set)
        tree = ast.parse(path.read_text())
        module = ".".join(["penstock", *path.relative_to(root).with_suffix("").parts]).removesuffix(".__init__")
        _Walk(_imported(tree), module, inside).visit(tree)
        if inside:
            found[path.relative_to(root).as_posix()] = dict(inside)
    return found


def _imported(tree: ast.AST) -> dict[str, str]:
    """What each name of the module stands for, those imported inside functions included."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                # A module of the standard library that not every system has comes from ours.
                module = f"{node.module}.".removeprefix("penstock._system.platform.")
                found[alias.asname or alias.name] = f"{module}{alias.name}"
    return found


class _Walk(ast.NodeVisitor):
    def __init__(self, imported: dict[str, str], module: str, found: dict[str, set[str]]) -> None:
        self._imported, self._module, self._found = imported, module, found
        self._within: list[str] = []

    def _inside(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        for each in node.decorator_list:
            self.visit(each)
        self._within.append(node.name)
        for name, value in ast.iter_fields(node):
            if name not in ("decorator_list", "returns"):
                for each in value if isinstance(value, list) else [value]:
                    if isinstance(each, ast.AST):
                        self.visit(each)
        self._within.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _inside

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        for each in (node.target, node.value):  # not its type
            if each is not None:
                self.visit(each)

    def visit_arg(self, node: ast.arg) -> None:
        pass

    def visit_Compare(self, node: ast.Compare) -> None:
        for each in (node.left, *node.comparators):
            if not isinstance(each, (ast.Name, ast.Attribute)):  # those ask for a type: `kind is np.memmap`
                self.visit(each)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
            return
        if isinstance(node.func, ast.Attribute) and self._full(node.func) is None:
            name = node.func.attr
            if METHODS.fullmatch(name) or (name == "open" and _opens(node)):
                self._found[".".join(self._within)].add(f".{name}")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and _CODE.search(node.value):  # a program for another interpreter
            tree = ast.parse(node.value)
            inner = _Walk(_imported(tree), self._module, self._found)
            inner._within = self._within
            inner.visit(tree)

    def visit_Name(self, node: ast.Name) -> None:
        self._look(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not self._look(node):
            self.generic_visit(node)

    def _look(self, node: ast.Name | ast.Attribute) -> bool:
        full = self._full(node)
        if full is not None and isinstance(node.ctx, ast.Load) and NAMES.fullmatch(full):
            self._found[".".join(self._within)].add(full)
            return True
        return False

    def _full(self, node: ast.AST) -> str | None:
        """The name with its module, if it begins with one, or is a name of Python's own."""
        if isinstance(node, ast.Attribute):
            before = self._full(node.value)
            return None if before is None else f"{before}.{node.attr}"
        if isinstance(node, ast.Name):
            return self._imported.get(node.id, node.id if node.id in _BUILTINS else None)
        return None


_CODE = re.compile(r"\A(import|from) \w+[^;]*\n\w+")
_BUILTINS = {"open", "exec", "eval", "compile", "__import__"}


def _opens(node: ast.Call) -> bool:
    """Whether `x.open(...)` may open a file: no argument, or only a mode. `self.open()` is a method of ours."""
    if (
        isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "self"
    ):
        return False
    given = [*node.args, *(each.value for each in node.keywords)]
    return all(isinstance(each, ast.Constant) and _MODE.fullmatch(str(each.value)) for each in given)


def calls(root: Path) -> Iterator[tuple[str, str, str]]:
    for module, inside in places(root).items():
        for function, names in inside.items():
            for name in sorted(names):
                yield module, function, name


if __name__ == "__main__":
    import sys

    for module, function, name in calls(Path(sys.argv[1])):
        print(f"{module}\t{function}\t{name}")
