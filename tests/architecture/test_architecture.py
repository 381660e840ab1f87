"""The tree shows the data path, and stays that way."""

from __future__ import annotations

import ast
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

import penstock
from penstock._memory import guests

ROOT = Path(penstock.__file__).parent
PURE = ["plan", "_schedule", "_memory"]
GUESTS = {"torch", "jax", "ray"}

# The rooms, lowest first: each package or module directly under penstock. A room may import only the rooms before it.
LAYERS = (
    ("_printable", "errors"),
    ("_system",),
    ("batch", "_at_work", "worker_info", "random"),
    ("plan", "_schedule", "_memory", "_measure", "_cache", "_remote"),
    ("_wire", "_resume"),
    ("_fill", "source", "collate", "_work"),
    ("_feed",),
    ("backends",),
    ("_engine",),
    ("_options", "stats", "_session"),
    ("_prefetch", "prefetch", "loader", "_progress"),
    ("_files", "_survey", "_pixels", "formats", "image", "records", "_open", "__init__"),
    ("torch", "jax", "testing", "_tools", "cli", "__main__"),
)


@pytest.fixture(autouse=True, scope="module")
def trees_are_forgotten() -> Iterator[None]:
    """They are half a million objects, which every later collection of garbage would visit."""
    yield
    parsed.cache_clear()
    nodes.cache_clear()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of a tree: to walk through all trees takes as long as to parse them."""
    return tuple(ast.walk(tree))


@cache
def imports(path: Path) -> list[str]:
    """Modules named by the import statements of a file, those inside functions included.

    Imports under `if TYPE_CHECKING:` are left out: they never run.
    """
    return list(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    tree = parsed(path)
    never_run = {id(node) for block in _type_checking(tree) for node in ast.walk(block)}
    for node in nodes(tree):
        if id(node) in never_run:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module and node.level == 0, f"{path} has a relative import"
            if node.module == "penstock":  # `from penstock import x`: x may be a module
                modules = {alias.name for alias in node.names if _exists(alias.name)}
                yield from (f"penstock.{name}" for name in modules)
                if len(modules) == len(node.names):
                    continue
            yield node.module


def _type_checking(tree: ast.AST) -> Iterator[ast.stmt]:
    for node in nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from node.body


def _exists(name: str) -> bool:
    return (ROOT / name).is_dir() or (ROOT / f"{name}.py").is_file()


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def test_imports_point_one_way() -> None:
    height = {name: at for at, name in enumerate(chain.from_iterable(LAYERS))}
    unknown = {room(path) for path in ROOT.rglob("*.py")} - height.keys()
    assert not unknown, f"these rooms are not in LAYERS: {unknown}"
    wrong: dict[tuple[str, str], set[str]] = {}
    for path in ROOT.rglob("*.py"):
        for name in imports(path):
            if name.split(".")[0] == "penstock":
                importer, imported = room(path), [*name.split("."), "__init__"][1]
                if height[imported] > height[importer]:
                    wrong.setdefault((importer, imported), set()).add(f"{path.relative_to(ROOT)}: {name}")
    assert not wrong, f"these imports point the wrong way: {wrong}"


@pytest.mark.parametrize("part", PURE)
def test_pure_parts_import_only_the_standard_library_and_numpy(part: str) -> None:
    allowed = {part, "errors", "_printable", "_system"}
    for path in (ROOT / part).rglob("*.py"):
        for name in imports(path):
            top, *inner = name.split(".")
            ours = top == "penstock" and inner and inner[0] in allowed
            assert ours or top == "numpy" or top in sys.stdlib_module_names, f"{path} imports {name}"


def test_plans_and_the_scheduler_do_no_input_or_output() -> None:
    forbidden = {
        "os",
        "socket",
        "select",
        "subprocess",
        "threading",
        "time",
        "mmap",
        "multiprocessing",
        "queue",
    }
    # samplers read RANK and WORLD_SIZE from the environment, as torch users expect
    paths = [p for part in ("plan", "_schedule") for p in (ROOT / part).rglob("*.py") if p.name != "_samplers.py"]
    for path in paths:
        assert not forbidden & {name.split(".")[0] for name in imports(path)}, path


def test_guests_are_each_imported_in_one_place_only() -> None:
    places: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        for name in imports(path):
            if name.split(".")[0] in GUESTS:
                where = path.relative_to(ROOT)
                place = where.as_posix() if where.parts[0] in ("backends", "_tools") else where.parts[0]
                places.setdefault(name.split(".")[0], set()).add(place)
    # The demo measures torch's loader beside ours, where torch is installed.
    assert places.pop("ray") == {"backends/_ray/cluster.py"}
    assert all(where - {"_tools/demo.py"} == {guest} for guest, where in places.items()), places


def test_the_libraries_that_read_urls_are_each_imported_in_one_module() -> None:
    places = {
        (name, path.relative_to(ROOT).as_posix())
        for path in ROOT.rglob("*.py")
        for name in (imported.split(".")[0] for imported in imports(path))
        if name in ("obstore", "fsspec")
    }
    assert places == {("obstore", "_remote/objects.py"), ("fsspec", "_remote/filesystems.py")}


# The table, and the demo, which measures torch's loader beside ours.
NAMING_GUESTS = {"_memory/guests.py", "_tools/demo.py"}


def names_in_code(path: Path) -> Iterator[str]:
    """Every identifier, and every string that is no text: without a space, and no docstring."""
    for node in nodes(parsed(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            yield node.value
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, (ast.Name, ast.alias)):
            yield node.id if isinstance(node, ast.Name) else node.name
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg


def test_no_module_of_the_core_names_a_guest_in_its_code() -> None:
    word = re.compile(rf"(?<![a-z])({'|'.join(guests.GUESTS)})(?![a-z])", re.IGNORECASE)
    for path in ROOT.rglob("*.py"):
        where = path.relative_to(ROOT)
        if where.parts[0] in guests.GUESTS or where.as_posix() in NAMING_GUESTS:
            continue
        named = [name for name in names_in_code(path) if word.search(name)]
        assert not named, f"{where} names {named}: ask penstock._memory.guests instead"


# The table of penstock's own backends, signatures that write `ray_options=` out, and the ranks of Ray Train.
NAMING_RAY = {"backends/_ours.py", "backends/_stack.py", "loader.py", "torch/_loader.py"}
NAMING_RAY |= {"jax/_loader.py", "_memory/guests.py"}


def test_the_core_names_no_backend_on_a_cluster() -> None:
    word = re.compile(r"(?<![a-z])ray(?![a-z])", re.IGNORECASE)
    for path in ROOT.rglob("*.py"):
        where = path.relative_to(ROOT).as_posix()
        if where not in NAMING_RAY and not where.startswith("backends/_ray/"):
            named = [name for name in names_in_code(path) if word.search(name)]
            assert not named, f"{where} names {named}: a backend declares what the core has to know"


def test_shared_memory_has_no_name() -> None:
    """So nothing in /dev/shm can be left behind: who made a name there cannot be told afterwards."""
    words = ("shared_memory", "shm_open", "/dev/shm")
    named = {(str(path), name) for path in ROOT.rglob("*.py") for name in names_in_code(path) if name in words}
    assert not named, "memfd_create gives memory without a name"


def test_importing_penstock_imports_no_guest() -> None:
    code = f"import sys, penstock; print([name for name in {sorted(GUESTS)} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_importing_penstock_imports_little() -> None:
    """What costs time: modules of penstock, and others that numpy has not imported already."""
    code = "import sys, numpy; before = set(sys.modules); import penstock; print(*sorted({*sys.modules} - before))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split()
    others = {name.partition(".")[0] for name in found if not name.startswith("penstock")}
    slow = "asyncio cloudpickle concurrent email http logging multiprocessing rich socket ssl subprocess tempfile"
    assert others.isdisjoint(slow.split())
    assert len(found) < 145


FIRST_BATCH = """
import sys, penstock
before = set(sys.modules)
with penstock.DataLoader(range(8), 4, num_workers=1, multiprocessing_context="fork") as loader:
    next(iter(loader))
    print(*sorted(set(sys.modules) - before))
"""


def test_a_first_batch_waits_for_no_module_that_takes_milliseconds() -> None:
    ran = subprocess.run([sys.executable, "-c", FIRST_BATCH], capture_output=True, text=True, check=True)
    found = ran.stdout.split()
    assert "penstock.backends._process.backend" in found
    slow = {"asyncio", "concurrent.futures", "inspect", "ipaddress", "logging", "pathlib", "tempfile", "urllib"}
    assert not slow.intersection(found)


@pytest.mark.quiet
def test_importing_penstock_is_quick() -> None:
    """150 ms is the promise. What is asserted is the processor's time relative to numpy's import, in turn."""
    ours: list[float] = []
    numpys: list[float] = []
    for _ in range(5):
        for module, times in (("penstock", ours), ("numpy", numpys)):
            begun = _seconds_of_children()
            subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
            times.append(_seconds_of_children() - begun)
    assert min(ours) < 2.5 * min(numpys)


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_every_crew_is_put_together_in_one_place() -> None:
    """Each semantics makes its jobs, and nothing else does. (The laws for backends make jobs without a loader.)"""
    places = {
        (node.func.id, path.relative_to(ROOT).as_posix())
        for path in ROOT.rglob("*.py")
        for node in nodes(parsed(path))
        if room(path) != "testing" and isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if node.func.id in ("Job", "Engine")
    }
    jobs = {("Job", "_session/seeded.py"), ("Job", "torch/_semantics.py")}
    assert places == {("Engine", "_session/session.py"), *jobs}


def changed_from_outside(tree: ast.AST, name: str) -> Iterator[str]:
    """Assignments to attributes of objects that are called so."""
    for node in nodes(tree):
        stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if stored and ast.unparse(node.value).split(".")[-1] == name:
            yield ast.unparse(node)


def test_a_run_is_changed_by_its_own_module_only() -> None:
    assert [*changed_from_outside(ast.parse("self._course.run.error, a = None, 1"), "run")] == [
        "self._course.run.error"
    ]
    found = {
        f"{path.name}: {one}" for path in ROOT.rglob("*.py") for one in changed_from_outside(parsed(path), "run")
    }
    assert not found, "call a method of Run instead"


def test_only_one_place_raises_stop_iteration_to_a_caller() -> None:
    """So no StopIteration of the user's is taken for the end. (A Draw calls none of their code.)"""
    places: set[str] = set()
    for path in ROOT.rglob("*.py"):
        for node in nodes(parsed(path)):
            if isinstance(node, ast.Raise) and node.exc is not None and "StopIteration" in ast.unparse(node.exc):
                places.add(path.relative_to(ROOT).as_posix())
    assert places == {"_system/ending.py", "plan/_plan.py"}


# Iterators of which no error of the user's comes out: those of the pure parts, of tests, and one that asks another.
OWN_NEXT = {"plan/_plan.py", "testing/_sources.py", "testing/_loading.py"}
OWN_NEXT |= {f"torch/_iterators.py: {name}" for name in ("Seeded", "_ClosedBatches", "_Unprofiled")}


def test_every_iterator_raises_through_that_place() -> None:
    wrong: set[str] = set()
    for path in ROOT.rglob("*.py"):
        where = path.relative_to(ROOT).as_posix()
        for kind in nodes(parsed(path)):
            for node in kind.body if isinstance(kind, ast.ClassDef) and where not in OWN_NEXT else ():
                if isinstance(node, ast.FunctionDef) and node.name in ("__next__", "_next_data"):
                    decorated = [ast.unparse(each) for each in node.decorator_list]
                    if decorated != ["raises_instead"] and f"{where}: {kind.name}" not in OWN_NEXT:
                        wrong.add(f"{where}: {kind.name}")
    assert not wrong, f"these iterators may let a StopIteration of the user's out: {wrong}"


def is_public(path: Path) -> bool:
    """Whether no part of the path begins with an underscore, `__init__.py` aside."""
    return not any(part.startswith("_") and part != "__init__.py" for part in path.relative_to(ROOT).parts)


def top_level_names(tree: ast.Module) -> Iterator[str]:
    """Names that a module defines at its top level; names that it imports are left out."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in (inner for target in targets for inner in ast.walk(target)):
                if isinstance(name, ast.Name):
                    yield name.id


def listed(tree: ast.Module) -> set[str] | None:
    """The names that `__all__` spells out, or None where it is not defined."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return {part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)}
    return None


def test_public_modules_list_their_public_names() -> None:
    wrong: dict[str, object] = {}
    for path in filter(is_public, ROOT.rglob("*.py")):
        tree = parsed(path)
        names = listed(tree)
        public = {name for name in top_level_names(tree) if not name.startswith("_")}
        if names is None or public - names:
            wrong[str(path.relative_to(ROOT))] = "no __all__" if names is None else public - names
    assert not wrong, f"public modules with names that are neither in __all__ nor private: {wrong}"


def named_in(text: str) -> set[str]:
    """Modules and packages that a page names in backticks, and paths anywhere in a block of code."""
    blocks = re.findall(r"^```.*?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    paths = [word.strip(",") for block in blocks for word in block.split() if "/" in word]
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    shape = re.compile(r"(penstock(\.\w+)+|[\w/]+\.py|(\w+/)+)")
    return {name for name in [*inline, *paths] if shape.fullmatch(name)}


def test_names_of_modules_are_found_in_a_page() -> None:
    page = "`_engine/engine.py`, `penstock._wire.task` and `rng()`\n```\nplan/   orders\nread it\n```\n"
    assert named_in(page) == {"_engine/engine.py", "penstock._wire.task", "plan/"}


def resolves(name: str) -> bool:
    """Whether a name in such a page exists: a path in penstock or the repository, a test, or a dotted name."""
    repository = ROOT.parent.parent
    if name.startswith("test_"):
        return any((repository / "tests").rglob(name))
    if not name.startswith("penstock."):
        return (ROOT / name).exists() or (repository / name).exists()
    *parts, last = name.split(".")[1:]
    above = ROOT.joinpath(*parts)
    if (above / last).is_dir() or (above / f"{last}.py").is_file():
        return True
    module = above.with_suffix(".py") if above.with_suffix(".py").is_file() else above / "__init__.py"
    return module.is_file() and last in module.read_text()  # a class or function in a module


@pytest.mark.parametrize("page", ["docs/design.md", "CONTRIBUTING.md"])
def test_a_page_about_the_tree_names_modules_that_exist(page: str) -> None:
    names = named_in((ROOT.parent.parent / page).read_text())
    assert len(names) > 5, f"{page} names hardly any module: did its form change?"
    stale = {name for name in names if not resolves(name)}
    assert not stale, f"{page} names what does not exist: {stale}"


def test_the_page_about_the_tree_names_each_room() -> None:
    table = (ROOT.parent.parent / "docs/design.md").read_text().partition("## Words")[0]
    rooms = {room for layer in LAYERS for room in layer} - {"__init__", "__main__"}
    missing = {room for room in rooms if f"`{room}/" not in table and f"`{room}.py" not in table}
    assert not missing, f"docs/design.md does not say what is in {missing}"


# Calls that give a descriptor to programs on purpose: standard streams, and what a fresh interpreter gets.
GIVEN_TO_PROGRAMS = {
    "cli.py: os.dup2(nowhere, output)",
    "_system/descriptors.py: os.set_inheritable(fd, True)",
    "backends/_process/process.py: os.dup2(null, 0)",
    "backends/_process/launcher.py: subprocess.Popen(command, pass_fds=fds)",
}


_DESCRIPTORS = ("pass_fds", "close_fds")
_FLAGS = {"pipe2": 0, "memfd_create": 1, "eventfd": 1}  # which argument has the flags


def inherited_by_programs(tree: ast.AST) -> Iterator[str]:
    """Calls after which a program that any thread starts may have a descriptor of ours.

    All other calls of Python that open one make it close-on-exec.
    """

    def is_safe(name: str, call: ast.Call) -> bool:
        if name == "dup2":
            return "inheritable=False" in ast.unparse(call)
        if name in _FLAGS:
            return len(call.args) <= _FLAGS[name] or "CLOEXEC" in ast.unparse(call)
        if name == "recvmsg":
            text = ast.unparse(tree)
            return text.count("CMSG_CLOEXEC") >= text.count(".recvmsg(")
        return name not in ("recv_fds", "set_inheritable")

    for node in nodes(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            given = [keyword for keyword in node.keywords if keyword.arg in _DESCRIPTORS]
            if given or not is_safe(name, node):
                yield ast.unparse(ast.Call(node.func, node.args, given))


def test_programs_inherit_no_descriptor() -> None:
    found = {
        f"{path.relative_to(ROOT).as_posix()}: {call}"
        for path in ROOT.rglob("*.py")
        for call in inherited_by_programs(parsed(path))
    }
    assert found == GIVEN_TO_PROGRAMS


@pytest.mark.parametrize(
    "call",
    [
        *("os.pipe2(0)", "os.memfd_create('a', 0)", "os.eventfd(0, 0)", "socket.recv_fds(sock, 1, 1)"),
        *("os.dup2(3, 4)", "os.set_inheritable(3, True)", "subprocess.run(a, close_fds=False)", "sock.recvmsg(1)"),
    ],
)
def test_calls_that_give_descriptors_to_programs_are_found(call: str) -> None:
    assert [*inherited_by_programs(ast.parse(call))] == [call]
    safe = "os.pipe2(os.O_CLOEXEC); os.memfd_create('a'); os.eventfd(1); os.dup(3); os.dup2(3, 4, inheritable=False)"
    assert [*inherited_by_programs(ast.parse(safe))] == []
