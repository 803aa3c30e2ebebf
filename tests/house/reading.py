"""What a reader of the package has to know, counted in its source.

This file is about the files, lines, classes and functions of a checkout. They are facts to think
about, not limits: a module that one other imports is often a paragraph of it, and a private
function that is used once may be the heading of a paragraph.
"""

from __future__ import annotations

import ast
import collections
import graphlib
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Facts:
    """What was counted."""

    files: int = 0
    lines: int = 0
    code: int = 0
    import_lines: int = 0
    classes: collections.Counter[str] = field(default_factory=collections.Counter)
    #: Modules that exactly one other module imports.
    lonely: list[str] = field(default_factory=list)
    #: Private functions whose name stands at one place other than its definition.
    used_once: list[str] = field(default_factory=list)

    @property
    def ambiguous(self) -> list[str]:
        """Names that more than one class has."""
        return sorted(name for name, count in self.classes.items() if count > 1)


def read(package: Path) -> Facts:
    """Count the non-empty files of a package's folder."""
    facts = Facts()
    importers: dict[str, set[Path]] = collections.defaultdict(set)
    private: set[str] = set()
    words: collections.Counter[str] = collections.Counter()
    modules = []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text()
        if not text.strip():
            continue
        tree = ast.parse(text)
        facts.files += 1
        facts.lines += text.count("\n")
        facts.code += text.count("\n") - len(_quiet_lines(text, tree))
        if path.name != "__init__.py":
            modules.append(".".join(path.relative_to(package.parent).with_suffix("").parts))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                facts.classes[node.name] += 1
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                private |= {node.name} if _is_private(node.name) else set()
            elif isinstance(node, ast.Import | ast.ImportFrom):
                facts.import_lines += _length(node)
                for module in _imported(node):
                    importers[module].add(path)
        words.update(_names(text))
    facts.lonely = [module for module in modules if len(importers[module]) == 1]
    facts.used_once = sorted(name for name in private if words[name] == 2)
    return facts


def floors(folder: Path) -> int:
    """Return how many rooms of a folder stand upon one another: of each file and folder in it.

    A room stands on those that it imports. CycleError where two stand on each other.
    """
    package = ".".join([folder.parent.name, folder.name])
    reads: dict[str, set[str]] = {}
    for path in folder.rglob("*.py"):
        room = path.relative_to(folder).parts[0].removesuffix(".py")
        if room != "__init__":
            found = reads.setdefault(room, set())
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    names = [name for name in _imported(node) if name.startswith(f"{package}.")]
                    found |= {name.split(".")[2] for name in names} - {room}
    level: dict[str, int] = {}
    for room in graphlib.TopologicalSorter(reads).static_order():
        below = reads.get(room, set()) & reads.keys()
        level[room] = 1 + max((level[each] for each in below), default=0)
    return max(level.values(), default=0)


#: Methods and fields by which a pipe tells its place, beside the class of its state.
_DECLARATIONS = frozenset(
    {
        *("cursor", "cursor_fields", "cursor_form", "put_source_cursors", "resume_at"),
        *("yielded_at", "needs", "fill"),
    }
)


def declared_by_hand(folder: Path) -> int:
    """Return how often classes in a folder say by a method or a field what their place is."""
    classes = [
        node
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    return sum(name in _DECLARATIONS for each in classes for name in _defined(each))


def _defined(cls: ast.ClassDef) -> Iterator[str]:
    for node in cls.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (each.id for each in node.targets if isinstance(each, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def words_for_where(page: Path) -> int:
    """Return how many words for a place a page explains: the rows of its table of them."""
    _, _, after = page.read_text().partition("## Words for")
    table = [line for line in after.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return max(len(table) - 2, 0)


def _quiet_lines(text: str, tree: ast.Module) -> set[int]:
    """Return the lines that are empty, comments or docstrings."""
    lines = enumerate(text.splitlines(), 1)
    quiet = {number for number, line in lines if not line.strip() or line.strip()[0] == "#"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if ast.get_docstring(node) is not None else None
            if first is not None:
                quiet |= set(range(first.lineno, first.lineno + _length(first)))
    return quiet


def _length(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Yield what may be modules: ``from a import b`` imports ``a``, and perhaps ``a.b``."""
    if isinstance(node, ast.ImportFrom):
        yield from [node.module] if node.module else []
        yield from (f"{node.module}.{each.name}" for each in node.names)
    else:
        yield from (each.name for each in node.names)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _names(text: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(iter(text.splitlines(keepends=True)).__next__):
        if token.type == tokenize.NAME:
            yield token.string
