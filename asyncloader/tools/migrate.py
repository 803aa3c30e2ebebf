"""Programs of torchdata, rewritten for asyncloader.

This file is about ``migrate``: it rewrites the imports of a file, and their names where they are
used with dots, and tells what it leaves to the reader. Only names are changed; comments and
layout stay as they are.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path

#: Packages whose modules are at the same place in one of ours.
PACKAGES = {
    "torchdata.datapipes": "asyncloader.datapipes",
    "torchdata.dataloader2": "asyncloader",
}

#: Where all the names of a module are now, with those of modules in it. The longest that fits
#: counts.
MODULES = {
    "torchdata.datapipes.iter": "asyncloader.datapipes.iter",
    "torchdata.datapipes.map": "asyncloader.datapipes.map",
    "torchdata.dataloader2.adapter": "asyncloader.adapters",
    "torchdata.dataloader2.dataloader2": "asyncloader",
    "torchdata.dataloader2.error": "asyncloader",
    "torchdata.dataloader2.graph": "asyncloader.graph",
    "torchdata.dataloader2.random": "asyncloader",
    "torchdata.dataloader2.reading_service": "asyncloader",
    "torchdata.dataloader2.shuffle_spec": "asyncloader",
    "torch.utils.data.datapipes.datapipe": "asyncloader",
    "torch.utils.data.datapipes.iter": "asyncloader.datapipes.iter",
    "torch.utils.data.datapipes.map": "asyncloader.datapipes.map",
    "torch.utils.data.graph": "asyncloader.graph",
    "torch.utils.data.graph_settings": "asyncloader.graph",
}

#: Names that torch's module has too, beside much that stays torch's.
OF_TORCH = ("IterDataPipe", "MapDataPipe", "functional_datapipe")

#: Libraries of torchdata that have no place here.
ADVICE = {
    "torchdata.datapipes.utils": (
        "streams are closed without a wrapper, and asyncloader.graph draws graphs (to_svg, to_text)"
    ),
    "torchdata.nodes": "compose pipes instead",
    "torchdata.stateful_dataloader": (
        "use DataLoader2.from_dataset(...), which takes the same arguments and has state_dict"
    ),
}


def migrate(path: Path) -> tuple[int, list[tuple[int, str]]]:
    """Rewrite a file; return how many places changed, and what is left to the reader.

    The latter are lines, with what has to be changed there. A file that is no Python is a
    ValueError that names it.
    """
    source = path.read_bytes()
    try:
        tree = ast.parse(source, filename=str(path))
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as Python: {error}") from None
    migration = Migration(source)
    migration.visit(tree)
    if migration.changes:
        path.write_bytes(migration.changed())
    return len(migration.changes), sorted(migration.left, key=itemgetter(0))


class Migration(ast.NodeVisitor):
    """The changes to one file, and what is left to its reader."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        starts = [0]
        for line in source.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        self._starts = starts
        #: Where new text goes: from and to which byte of the source.
        self.changes: list[tuple[int, int, str]] = []
        #: Lines, and what the reader has to change there.
        self.left: list[tuple[int, str]] = []
        #: The modules that the file names with all their dots.
        self._bound: set[str] = set()

    def changed(self) -> bytes:
        """Return the source with all changes."""
        text = self._source
        for start, end, new in sorted(self.changes, reverse=True):
            text = text[:start] + new.encode() + text[end:]
        return text

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            new = moved(alias.name)
            if new is None:
                self._leave_module(node.lineno, alias.name)
                continue
            if alias.asname is None and alias.name.count("."):
                # The name that is bound changes as well, and so do its uses, as attributes.
                self._bound.add(alias.name)
            self._replace(alias, alias.name, new)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        names = [alias.name for alias in node.names]
        if node.level:
            return
        if module == "torch.utils.data" and not set(names).isdisjoint(OF_TORCH):
            self._split_torchs(node)
            return
        if module == "torchdata" or (module == "torchdata.dataloader2" and names[0].islower()):
            # Modules, as their names tell.
            self._each_from(node)
            return
        new = moved(module)
        if new is None:
            self._leave_module(node.lineno, module)
            return
        self._replace(node, module, new)
        self._check_names(node.lineno, new, names)

    def _split_torchs(self, node: ast.ImportFrom) -> None:
        """Import from asyncloader what it has, and the rest from torch as before."""
        ours = [alias for alias in node.names if alias.name in OF_TORCH]
        rest = [alias for alias in node.names if alias.name not in OF_TORCH]
        lines = [f"from asyncloader import {', '.join(map(ast.unparse, ours))}"]
        if rest:
            lines.append(f"from torch.utils.data import {', '.join(map(ast.unparse, rest))}")
        self._replace_statement(node, lines)

    def _each_from(self, node: ast.ImportFrom) -> None:
        """Import each module of a package, of which each may be another one here."""
        lines = []
        for alias in node.names:
            new = moved(f"{node.module}.{alias.name}")
            if new is None:
                self._leave_module(node.lineno, f"{node.module}.{alias.name}")
                lines.append(f"from {node.module} import {ast.unparse(alias)}")
                continue
            lines.append(f"import {new} as {alias.asname or alias.name}")
            if why := why_missing(new, "__name__"):
                self.left.append((node.lineno, why))
        if any(line.startswith("import ") for line in lines):
            self._replace_statement(node, lines)

    def _check_names(self, line: int, module: str, names: Iterable[str]) -> None:
        for name in names:
            if name != "*" and (why := why_missing(module, name)):
                self.left.append((line, why))

    def _leave_module(self, line: int, module: str) -> None:
        if module.split(".")[0] == "torchdata":
            advice = ADVICE.get(_known(module, ADVICE), "")
            self.left.append((line, f"{module} has no place here{advice and ': ' + advice}"))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        dotted = _dotted(node)
        new = moved(dotted)
        if new is not None and dotted in self._bound:
            start = self._offset(node.lineno, node.col_offset)
            self.changes.append((start, self._end(node), new))
        elif new is not None and dotted.startswith("torch.") and not self._has_bound(dotted):
            # An import of torch alone binds all of its modules.
            self.left.append((node.lineno, f"{dotted} knows torch's pipes only: use that of {new}"))
        else:
            self.generic_visit(node)

    def _has_bound(self, dotted: str) -> bool:
        return any(_is_in(dotted, each) for each in self._bound)

    def _replace(self, node: ast.stmt | ast.alias, old: str, new: str) -> None:
        start = self._source.index(old.encode(), self._offset(node.lineno, node.col_offset))
        self.changes.append((start, start + len(old.encode()), new))

    def _replace_statement(self, node: ast.stmt, lines: list[str]) -> None:
        indent = "\n" + " " * node.col_offset
        start = self._offset(node.lineno, node.col_offset)
        self.changes.append((start, self._end(node), indent.join(lines)))

    def _offset(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _end(self, node: ast.stmt | ast.expr) -> int:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.end_lineno, node.end_col_offset)


def moved(module: str) -> str | None:
    """Return where a module's names are now, or None if they stay where they are.

    >>> moved("torchdata.datapipes.iter"), moved("torchdata.nodes"), moved("os")
    ('asyncloader.datapipes.iter', None, None)
    """
    if _known(module, ADVICE):
        return None
    if face := _known(module, MODULES):
        return MODULES[face]
    package = _known(module, PACKAGES)
    return PACKAGES[package] + module.removeprefix(package) if package else None


def _known(module: str, packages: Iterable[str]) -> str:
    """Return the longest of these names that a module is or is in, or ""."""
    return max((each for each in packages if _is_in(module, each)), key=len, default="")


def _is_in(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def why_missing(module: str, name: str) -> str:
    """Return why a name cannot be imported from a module of ours, or "" if it can."""
    try:
        getattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        return f"there is no {module}"
    except (ImportError, AttributeError) as error:
        return str(error)
    return ""


def _dotted(node: ast.expr) -> str:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join(reversed([*names, node.id])) if isinstance(node, ast.Name) else ""


def report(paths: Iterable[Path]) -> Iterator[str]:
    """Rewrite files; yield a line for each, and one for each thing that is left to the reader."""
    for path in paths:
        count, left = migrate(path)
        yield f"{path}: {count} {'change' if count == 1 else 'changes'}"
        for line, what in left:
            yield f"{path}:{line}: {what}"
