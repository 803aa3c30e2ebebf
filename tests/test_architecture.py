"""The package is built as it was designed: layers, doors, and what is not done at all."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "asyncloader"

#: The parts, from the top down. A part imports itself and the parts of lower lines only.
LAYERS = [
    {"asyncloader", "__main__", "testing"},
    {"tools"},
    {"loader", "serving"},
    {"services"},
    {"adapters", "workers"},
    {"places"},
    {"graph"},
    {"datapipes", "transport"},
    {"ranks", "arguments"},
    {"seeds", "runtime", "memory", "garbage", "main_script", "worker_info", "tuning", "machine"},
    {"system", "generators"},
    {"errors", "deadline", "shield", "waiting", "safe_error_text"},
]
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}

#: The rooms of the largest part, in the same way: what pipes are built of comes below the pipes.
#: A folder is one room.
ROOMS = [
    {"map"},
    {"iter"},
    {"fresh_batches", "grouping"},
    {"web", "caching", "combining", "repeating", "rollouts", "shuffling", "torch_dataset"},
    {
        *("async_calls", "files", "flattening", "joining", "mapping", "packing", "prefetching"),
        *("random_splitting", "rollout_calls", "sampling", "selecting", "sharding", "splitting"),
        "thread_calls",
    },
    {
        *("ahead", "batching", "prompts", "converting", "full_sync", "moving", "patterns"),
        *("replaying", "split_pass"),
    },
    {
        "columns",
        "edges",
        "one_to_one",
        "recording",
        "resources",
        "shared_sequence",
        "sources",
        "tolerance",
        "tracebacks",
    },
    {"attempts", "base", "call", "orders", "randomness", "settled"},
    {
        "admission",
        "devices",
        "envelope",
        "lookups",
        "running",
        "torchdata_names",
    },
]

#: Heavy or risky modules, and the one file by which each may enter.
DOORS = {
    "uvloop": "runtime.py",
    "anyio": "shield.py",
    "cloudpickle": "transport/code.py",
    "ray": "workers/actors/cluster.py",
    "multiprocessing": "workers/process/multiprocessing_start.py",
    "mmap": "memory.py",
    "_posixshmem": "system.py",
    "fcntl": "system.py",
    "resource": "system.py",
    "torch.distributed": "ranks.py",
}

#: Functions that have a door too, by the name they are called by.
FUNCTION_DOORS = {
    "memfd_create": "system.py",
    "eventfd": "system.py",
    "pidfd_open": "system.py",
    "pidfd_send_signal": "system.py",
    "posix_fallocate": "system.py",
    "prctl": "system.py",
    "register_at_fork": "system.py",
    "sched_getaffinity": "system.py",
    "sched_setaffinity": "system.py",
    "waitid": "system.py",
    "MSG_CMSG_CLOEXEC": "system.py",
    "SO_PASSCRED": "system.py",
    "SO_PEERCRED": "system.py",
}

#: Where only some systems have anything, and the beginning of every name there.
SYSTEMS_FOLDERS = ("/proc", "/dev/shm", "/dev/fd")

#: What takes its time to import, or is not there for everybody: imported where it is used.
LAZY = {"torch", "numpy"}

#: What is never called, and what to do instead.
BANNED_CALLS = {
    ("asyncio", "wait_for"): "it can swallow a cancellation; use asyncio.timeout",
    ("time", "sleep"): "nothing polls; wait for an event, a future or a descriptor",
}

BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}


@dataclass(frozen=True)
class Import:
    """One imported module, and where."""

    file: SourceFile
    line: int
    module: str
    is_lazy: bool

    @property
    def part(self) -> str:
        """The part of the package that is imported, or that of something else."""
        return (*self.module.split("."), "", "")[1]

    @property
    def room(self) -> str:
        """The module or folder inside its part that is imported."""
        return (*self.module.split("."), "", "", "")[2]

    def __str__(self) -> str:
        return f"{self.file.name}:{self.line} imports {self.module}"


@dataclass(frozen=True)
class SourceFile:
    """One file of the package."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.relative_to(PACKAGE).as_posix()

    @property
    def part(self) -> str:
        """The part of the package that the file belongs to."""
        first = self.path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        return "asyncloader" if first == "__init__" else first

    @property
    def room(self) -> str:
        """The module or folder inside its part."""
        inside = self.path.relative_to(PACKAGE).parts[1:]
        return inside[0].removesuffix(".py") if inside else ""

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.path.read_text(encoding="utf-8"), filename=str(self.path))

    @cached_property
    def imports(self) -> list[Import]:
        return list(self._imports(self.tree, is_lazy=False))

    def _imports(self, node: ast.AST, is_lazy: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(self, child.lineno, alias.name, is_lazy)
            elif isinstance(child, ast.ImportFrom):
                for module in _modules(child):
                    yield Import(self, child.lineno, module, is_lazy)
            else:
                function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from self._imports(child, is_lazy or function or _is_for_types(child))

    @cached_property
    def attributes(self) -> list[tuple[int, str, str]]:
        """Line, base and name of every ``base.name`` and ``from base import name``."""
        return list(self._attributes())

    def _attributes(self) -> Iterator[tuple[int, str, str]]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute):
                yield node.lineno, ast.unparse(node.value), node.attr
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    yield node.lineno, node.module or "", alias.name


def _modules(node: ast.ImportFrom) -> list[str]:
    # `from torch import distributed` imports torch.distributed.
    module = "." * node.level + (node.module or "")
    return [f"{module}.{alias.name}" for alias in node.names]


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _is_within(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


FILES = [SourceFile(path) for path in sorted(PACKAGE.rglob("*.py"))]


@cache
def all_imports() -> list[Import]:
    # Reading all files takes a second, and every process that runs some tests collects this one.
    return [each for file in FILES for each in file.imports]


def agree(offenders: list[str], rule: str) -> None:
    """Fail with the rule and the list of those who break it."""
    assert not offenders, f"{rule}\n" + "\n".join(offenders)


# Layers ---------------------------------------------------------------------------------


def test_every_part_has_its_place_in_the_layers():
    unknown = sorted({file.part for file in FILES} - set(LEVEL))
    agree(unknown, "these parts of the package stand in no line of LAYERS:")


def test_a_part_imports_itself_and_lower_parts_only():
    offenders = [str(each) for each in all_imports() if not _is_downward(each)]
    agree(offenders, "a part imports the parts of lower lines of LAYERS, never sideways or up:")


def _is_downward(each: Import) -> bool:
    package, _, rest = each.module.partition(".")
    if package != "asyncloader":
        return True
    part = rest.partition(".")[0]
    target = part if part in LEVEL else "asyncloader"
    return target == each.file.part or LEVEL[target] > LEVEL[each.file.part]


def test_a_room_of_pipes_imports_lower_rooms_only():
    level = {room: at for at, rooms in enumerate(ROOMS) for room in rooms}
    found = {file.room for file in FILES if file.part == "datapipes"} - {"__init__"}
    assert found == set(level), "these are the rooms that ROOMS has to name"
    assert len(ROOMS) <= 9, "who reads a pipe goes down all floors: nine are many"
    offenders = [
        str(each)
        for each in all_imports()
        if each.room in level
        and each.file.part == "datapipes"
        and each.file.room in level
        and each.room != each.file.room
        and level[each.room] <= level[each.file.room]
    ]
    agree(offenders, "a room of datapipes imports the rooms of lower lines of ROOMS:")


@pytest.mark.parametrize("part", sorted({file.part for file in FILES}))
def test_no_part_has_a_circle_of_imports(part):
    # Whether they are made when a module is imported, later, or for types only.
    reads: dict[str, set[str]] = {}
    for each in all_imports():
        is_inside = each.file.part == part and each.part == part
        if is_inside and each.room != each.file.room and each.file.room != "__init__":
            reads.setdefault(each.file.room, set()).add(each.room)
    try:
        graphlib.TopologicalSorter(reads).prepare()
    except graphlib.CycleError as circle:
        agree([" imports ".join(circle.args[1])], f"the rooms of {part} import one another:")


def test_what_pipes_stand_on_has_no_circle_of_imports():
    folder = "asyncloader.datapipes.running."
    reads: dict[str, set[str]] = {}
    for each in all_imports():
        if each.file.name.startswith("datapipes/running/") and each.module.startswith(folder):
            inside = each.module.removeprefix(folder).split(".")[0]
            own = each.file.path.relative_to(PACKAGE / "datapipes/running").parts[0]
            reads.setdefault(own.removesuffix(".py"), set()).add(inside)
    for own, others in reads.items():
        others.discard(own)
    try:
        graphlib.TopologicalSorter(reads).prepare()
    except graphlib.CycleError as circle:
        agree([" imports ".join(circle.args[1])], "these files import one another:")


def test_what_starts_and_watches_processes_knows_nothing_of_workers():
    offenders = [
        str(each)
        for each in all_imports()
        if each.file.name.startswith("workers/process/")
        and each.module.startswith("asyncloader.workers.")
        and not each.module.startswith("asyncloader.workers.process")
    ]
    agree(offenders, "workers/process/ imports nothing of what processes say to one another:")


def test_imports_are_absolute():
    offenders = [str(each) for each in all_imports() if each.module.startswith(".")]
    agree(offenders, "imports are absolute:")


def test_init_files_only_re_export():
    offenders = [
        f"{file.name}:{statement.lineno} {ast.unparse(statement)[:60]}"
        for file in FILES
        if file.path.name == "__init__.py"
        for statement in file.tree.body
        if not _is_re_export(statement)
    ]
    agree(offenders, "an __init__.py holds a docstring, imports from asyncloader and __all__:")


def _is_re_export(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case ast.ImportFrom(module=str(module)):
            outside = ("__future__", "importlib", "typing")
            return module in outside or _is_within(module, "asyncloader")
        case ast.Assign(targets=[ast.Name(id="__all__" | "_HOMES")]):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=imports, orelse=[]):
            return all(map(_is_re_export, imports))
        # What is imported when it is asked for.
        case ast.FunctionDef(name="__getattr__" | "__dir__"):
            return True
    return False


def test_a_file_is_named_for_what_it_is_about():
    offenders = [file.name for file in FILES if file.path.stem in BANNED_NAMES]
    agree(offenders, "a file is one noun; these names say nothing:")


def test_no_file_is_called_by_two_names_nor_two_files_of_a_part_by_one():
    modules = {
        ".".join(file.path.relative_to(PACKAGE.parent).with_suffix("").parts) for file in FILES
    }
    offenders = [
        f"{file.name}:{node.lineno} {ast.unparse(node)}"
        for file in FILES
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Import | ast.ImportFrom) and file.path.name != "__init__.py"
        for alias in node.names
        if alias.asname and f"{getattr(node, 'module', '')}.{alias.name}".strip(".") in modules
    ]
    agree(offenders, "a file has one name, wherever it is imported:")
    names = Counter((file.part, file.path.name) for file in FILES if file.path.stem[0] != "_")
    twice = [f"{part}: {name}" for (part, name), count in names.items() if count > 1]
    agree(twice, "two files of a part have one name:")


# Doors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("module", DOORS)
def test_a_heavy_module_enters_by_its_door(module):
    offenders = [
        str(each)
        for each in all_imports()
        if _is_within(each.module, module) and each.file.name != DOORS[module]
    ]
    offenders += [
        f"{file.name}:{line} uses {base}.{name}"
        for file in FILES
        if file.name != DOORS[module]
        for line, base, name in file.attributes
        if f"{base}.{name}" == module and "." in module
    ]
    agree(offenders, f"only {DOORS[module]} imports {module}:")


@pytest.mark.parametrize("function", FUNCTION_DOORS)
def test_a_risky_function_has_its_door(function):
    offenders = [
        f"{file.name}:{line} uses {base}.{name}"
        for file in FILES
        if file.name != FUNCTION_DOORS[function]
        for line, base, name in file.attributes
        if name == function
    ]
    agree(offenders, f"only {FUNCTION_DOORS[function]} uses {function}:")


def test_one_file_asks_which_system_this_is():
    asked = {
        ("sys", "platform"),
        ("os", "name"),
        ("os", "uname"),
        ("platform", "system"),
        ("system", "PORTABLE"),
    }
    offenders = [
        f"{file.name}:{line} uses {base}.{name}"
        for file in FILES
        if file.name != "system.py"
        for line, base, name in file.attributes
        if (base.removeprefix("asyncloader."), name) in asked
    ]
    agree(offenders, "only system.py asks; the others call what it offers:")


def test_one_file_looks_where_only_some_systems_have_anything():
    offenders = [
        f"{file.name}:{node.lineno} names {node.value}"
        for file in FILES
        if file.name != "system.py"
        for node in ast.walk(file.tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.startswith(SYSTEMS_FOLDERS)
    ]
    agree(offenders, "only system.py looks there:")


@pytest.mark.parametrize("module", sorted(LAZY))
def test_a_heavy_module_is_imported_where_it_is_used(module):
    offenders = [
        str(each) for each in all_imports() if _is_within(each.module, module) and not each.is_lazy
    ]
    agree(offenders, f"{module} is imported inside the function that needs it:")


# Traits ---------------------------------------------------------------------------------

#: The file that asks what a pipe is, of which only the class is known.
TRAITS = "datapipes/running/traits.py"

#: How pipes are called where they are looked at.
PIPES = {
    *("adapted", "branch", "datapipe", "each", "end", "graph", "inlet", "join", "other", "outlet"),
    *("pipe", "pipes", "prepared", "root", "shuffler", "source", "sources", "splitter", "stage"),
}


def outside_of_traits() -> Iterator[tuple[SourceFile, ast.AST]]:
    return ((file, node) for file in FILES if file.name != TRAITS for node in ast.walk(file.tree))


def test_one_file_tells_our_classes_from_a_users():
    offenders = [
        f"{file.name}:{node.lineno} {ast.unparse(node)}"
        for file, node in outside_of_traits()
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith(".startswith")
        and any(ast.unparse(each).startswith("'asyncloader.") for each in node.args)
    ]
    agree(offenders, f"only {TRAITS} knows what is of this package, by is_of_package:")


def test_one_file_knows_pipes_by_their_fluent_names():
    offenders = [
        f"{file.name}:{node.lineno} {ast.unparse(node)}"
        for file, node in outside_of_traits()
        if isinstance(node, ast.Compare) and "functional_name" in ast.unparse(node)
    ]
    agree(offenders, f"only {TRAITS} compares the fluent name of a pipe with another:")


def test_one_file_looks_for_what_a_pipe_may_lack():
    offenders = [
        f"{file.name}:{node.lineno} {ast.unparse(node)}"
        for file, node in outside_of_traits()
        if isinstance(node, ast.Call) and _looks_for(node) and _last_name(node.args[0]) in PIPES
    ]
    agree(offenders, f"only {TRAITS} looks for attributes and methods that a pipe may lack:")


def _looks_for(call: ast.Call) -> bool:
    return (ast.unparse(call.func), len(call.args)) in {("getattr", 3), ("hasattr", 2)}


def _last_name(looked_at: ast.expr) -> str:
    """Return ``pipe`` for that name itself, and for ``type(self.pipe)``."""
    match looked_at:
        case ast.Call(func=ast.Name(id="type"), args=[of]):
            return _last_name(of)
        case ast.Subscript(value=of):
            return _last_name(of)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


# What is not done -----------------------------------------------------------------------


@pytest.mark.parametrize("call", BANNED_CALLS, ids=".".join)
def test_a_banned_function_is_not_used(call):
    offenders = [
        f"{file.name}:{line}"
        for file in FILES
        for line, base, name in file.attributes
        if (base, name) == call
    ]
    agree(offenders, f"no {'.'.join(call)}: {BANNED_CALLS[call]}:")


# Importing ------------------------------------------------------------------------------

# It takes 0.1 s of a processor's time, which a busy machine does not make much longer; the
# bound only tells a heavy import from a light one.
IMPORT_SECONDS = 1.0

IMPORT = """
import sys, time
began = time.process_time()
import asyncloader, asyncloader.adapters, asyncloader.graph
import asyncloader.datapipes.iter, asyncloader.datapipes.map
seconds = time.process_time() - began
print(seconds, *sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_importing_is_quick_and_brings_no_torch_along():
    best = float("inf")
    for _ in range(3):
        command = [sys.executable, "-c", IMPORT]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        seconds, *modules = done.stdout.split()
        best = min(best, float(seconds))
        assert "asyncloader" in modules
        assert set(modules) & {"torch", "numpy", "tqdm", "PIL"} == set()
    assert best < IMPORT_SECONDS
