"""Write the pages of the reference: ``python -m tests.reference``.

This file is about ``docs/reference/``, which has every public name with its signature, what
it promises, and an example. All three are read from the code, so a page is changed by changing
a docstring and running the command; ``tests/test_reference.py`` holds the pages to that. They
are plain Markdown, which a repository browser shows as well as the site does, and building
the site imports nothing of asyncloader.
"""

from __future__ import annotations

import ast
import doctest
import enum
import importlib
import inspect
import math
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "reference"

#: What users import from.
MODULES = (
    "asyncloader",
    "asyncloader.adapters",
    "asyncloader.datapipes.iter",
    "asyncloader.datapipes.map",
    "asyncloader.errors",
    "asyncloader.graph",
    "asyncloader.testing",
)


@dataclass(frozen=True)
class Page:
    """A page: what it is about, and its headings with the names under each."""

    title: str
    #: A sentence or two below the title.
    about: str
    module: str
    sections: dict[str, tuple[str, ...]]
    #: Whether it begins with a table of its names.
    has_table: bool = False


LOADER = Page(
    "The loader and its services",
    "Everything here is imported from `asyncloader`.",
    "asyncloader",
    {
        "Loading": ("DataLoader2", "DataLoader2Iterator"),
        "Reading services": (
            "InProcessReadingService",
            "MultiProcessingReadingService",
            "MultiThreadingReadingService",
            "RayReadingService",
            "DistributedReadingService",
            "SequentialReadingService",
        ),
        "Your own service": (
            "ReadingServiceInterface",
            "CheckpointableReadingServiceInterface",
            "unchanged",
        ),
        "Your own pipe": (
            "IterDataPipe",
            "Pipe",
            "State",
            "Edge",
            "MapDataPipe",
            "functional_datapipe",
        ),
        "Answering requests": ("Feed",),
        "Rollouts": ("Version", "Again"),
        "Seeds": ("SeedGenerator",),
        "In a worker": ("get_worker_info", "WorkerInfo"),
        "How it is doing": (
            *("LoaderStats", "StageStats", "WorkerStats", "FeedStats", "RolloutStats", "Metric"),
            *("Wait", "UnderWay"),
        ),
        "Debugging": ("set_debug",),
    },
)
ADAPTERS = Page(
    "Adapters",
    "Functions from graph to graph. `DataLoader2` takes one, or several, as its second argument."
    " They are imported from `asyncloader.adapters`; for type checkers, `AdapterFn` is such a"
    " function.",
    "asyncloader.adapters",
    {
        "Settings of a graph": ("Shuffle", "ShardingPolicy", "CacheTimeout", "InvalidateCache"),
        "Pipes at its end": ("PrefetchPolicy", "PinMemory", "FullSync"),
        "Your own": ("Adapter", "adapted"),
    },
)
GRAPH = Page(
    "Functions of graphs",
    "They look at a graph, draw it and change it, and are imported from `asyncloader.graph`. A"
    " graph is named by its last pipe. For type checkers, `DataPipe` is a pipe of either kind, and"
    " `DataPipeGraph` what `traverse_dps` returns.",
    "asyncloader.graph",
    {
        "Draw": ("to_text", "to_svg", "to_html", "to_mermaid", "to_dot"),
        "Find pipes": ("traverse_dps", "list_dps", "find_dps", "breadth_first", "edges_of"),
        "Change": ("replace_dp", "remove_dp", "copy_graph"),
        "Shuffle, shard, seed": (
            "apply_shuffle_settings",
            "apply_sharding",
            "check_shuffle_before_sharding",
            "apply_random_seed",
            "set_graph_random_seed",
            "set_datapipes_seed",
        ),
        "What runs where": ("cut_graph", "Cut", "WorkerPart"),
        "What a state remembers of a graph": (
            "fingerprint",
            "differences",
            "read_without_fork",
        ),
    },
)
TESTING = Page(
    "Checks of your own parts",
    "Each runs a part of yours in every way, and raises an AssertionError that says what it does"
    " not keep of [what all parts promise](../guides/extending.md#test-what-you-wrote). They are"
    " imported from `asyncloader.testing`.",
    "asyncloader.testing",
    {
        "Check": ("check_pipe", "check_service", "check_adapter"),
        "Check one by one": ("PipeCase", "ServiceCase", "AdapterCase"),
    },
)
ERRORS = Page(
    "Errors",
    "Your own exceptions are raised as they are, in their item's place. What asyncloader raises"
    " on purpose derives from `LoaderError`, except where Python has a usual type: a wrong value"
    " is a `ValueError`, a wrong type a `TypeError`, a buffer that would overflow a"
    " `BufferError`. Every message says which value was wrong and what to do. The classes are"
    " imported from `asyncloader`; `asyncloader.errors` has them, too."
    " [Warnings](../warnings.md) have a page of their own.",
    "asyncloader",
    {
        "All of them": ("LoaderError",),
        "Using a loader": (
            "LoaderClosed",
            "IteratorInvalidated",
            "ConcurrentIterationError",
            "LoopMismatchError",
            "ForkedError",
        ),
        "Worker processes": (
            "WorkerStartupError",
            "WorkerDied",
            "WorkerTimeout",
            "PipelineError",
            "TransportError",
            "ResourceExhausted",
        ),
        "Data": ("TooManyErrors", "HttpError", "HttpUnavailable"),
        "States": ("SnapshotError",),
        "Ranks": ("RankError", "RankTimeout"),
        "Requests": ("Overloaded",),
        "Rollouts": ("StarvedError",),
    },
)

#: The headings of the pages of pipes, and the files of the pipes below each.
FAMILIES = {
    "Sources": ("sources", "shared_sequence"),
    "Apply a function": ("mapping", "async_calls", "thread_calls", "rollouts"),
    "Choose items": ("selecting",),
    "Order": ("shuffling",),
    "Batches and groups": ("batching", "flattening", "grouping", "packing"),
    "Several sources": ("combining", "repeating", "joining"),
    "Several readers": ("splitting", "random_splitting"),
    "Divide among workers and ranks": ("sharding", "full_sync"),
    "Ahead of the consumer": ("prefetching", "moving"),
    "Files": ("files",),
    "Network": ("web",),
    "Caches": ("caching",),
    "Between streams and look-up": ("converting",),
}

#: The methods that users call or write, of classes that have others as well.
METHODS = {
    "DataLoader2": (
        "from_dataset",
        "start",
        "seed",
        "state_dict",
        "load_state_dict",
        "from_state",
        "limit",
        "pause",
        "resume",
        "paused",
        "ack",
        "stats",
        "why",
        "watch",
        "shutdown",
        "aclose",
    ),
    "DataLoader2Iterator": ("limit", "pause", "resume"),
    "Pipe": ("run", "arun"),
    "State": ("needs", "needs_each", "check"),
    "Version": ("advance", "reached"),
    "Edge": ("again", "aagain", "count"),
    "ReadingServiceInterface": (
        "initialize",
        "initialize_iteration",
        "finalize_iteration",
        "finalize",
    ),
    "CheckpointableReadingServiceInterface": ("checkpoint", "restore"),
    "Feed": ("ask", "serve", "close", "drain", "fail_all", "stats"),
    "LoaderStats": (
        "rate",
        "errors",
        "verdict",
        "bottleneck",
        "is_fast_enough",
        "since",
        "as_metrics",
    ),
    "WorkerStats": ("rate",),
    "SeedGenerator": ("seed", "generate_shared_seed", "generate_seed", "spawn", "clone"),
    "WorkerDied": ("signal",),
    "EndOnDiskCacheHolder": ("set_timeout", "invalidate"),
    "Shuffler": ("set_shuffle", "set_seed"),
    "ShardingFilter": ("apply_sharding",),
    "SampleMultiplexer": ("set_seed",),
}

#: Classes whose objects users are given and never make.
GIVEN = {
    "DataLoader2Iterator",
    "Edge",
    "WorkerInfo",
    "Cut",
    "WorkerPart",
    "LoaderStats",
    "StageStats",
    "WorkerStats",
    "FeedStats",
    "Metric",
    "Wait",
    "UnderWay",
}

SIGNATURE_WIDTH = 88


def main() -> None:
    """Write the pages anew."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    for name, text in texts().items():
        (FOLDER / name).write_text(text)


def texts() -> dict[str, str]:
    """Return what each file of the folder has to be."""
    return {name: text_of(page) for name, page in pages().items()}


def pages() -> dict[str, Page]:
    """Return the pages by the names of their files."""
    pipes = Page(
        "Pipes",
        "A pipe is a stream of items, for `for` and `async for`. Most have a fluent name:"
        " `pipe.map(fn)` is `Mapper(pipe, fn)`. The classes are imported from"
        " `asyncloader.datapipes.iter`.",
        "asyncloader.datapipes.iter",
        families_of("asyncloader.datapipes.iter"),
        has_table=True,
    )
    map_pipes = Page(
        "Pipes that are looked up",
        "A map pipe gives the item of a key, as `pipe[key]`, and has a length. Its `shuffle`"
        " and `to_iter_datapipe` make a [stream](pipes.md) of it, which has many more"
        " methods. The classes are imported from `asyncloader.datapipes.map`.",
        "asyncloader.datapipes.map",
        families_of("asyncloader.datapipes.map"),
        has_table=True,
    )
    return {
        "loader.md": LOADER,
        "pipes.md": pipes,
        "map-pipes.md": map_pipes,
        "adapters.md": ADAPTERS,
        "graph.md": GRAPH,
        "testing.md": TESTING,
        "errors.md": ERRORS,
    }


def families_of(module: str) -> dict[str, tuple[str, ...]]:
    """Return the names of a module of pipes by their families."""
    elsewhere = {name for names in LOADER.sections.values() for name in names}
    found: dict[str, tuple[str, ...]] = dict.fromkeys(FAMILIES, ())
    for name, value in public_names(module):
        if name not in elsewhere:
            found[family_of(value)] += (name,)
    return {heading: names for heading, names in found.items() if names}


def family_of(value: Any) -> str:
    """Return the heading for a class, by the file or the folder that it stands in."""
    part = value.__module__.removeprefix("asyncloader.datapipes.").partition(".")[0]
    return next(heading for heading, parts in FAMILIES.items() if part in parts)


def public_names(module: str) -> list[tuple[str, Any]]:
    """Return the classes and functions that a module offers, by name."""
    found = importlib.import_module(module)
    names = getattr(found, "__all__", None) or [
        name
        for name, value in vars(found).items()
        if getattr(value, "__module__", "") == module and not name.startswith("_")
    ]
    values = [(name, getattr(found, name)) for name in names]
    return [(n, value) for n, value in values if inspect.isclass(value) or inspect.isroutine(value)]


def text_of(page: Page) -> str:
    """Return a page as Markdown."""
    made = "`python -m tests.reference` makes this page from the docstrings: change those."
    parts = [f"<!-- {made} -->", f"# {page.title}", page.about]
    if page.has_table:
        parts += [table_of(page)]
    for heading, names in page.sections.items():
        parts += [f"## {heading}"]
        for name in names:
            parts += entry_of(page.module, name)
    parts += ["Back to the [reference](../reference.md)."]
    return "\n\n".join(parts) + "\n"


def table_of(page: Page) -> str:
    """Return a table of a page's names, with the first sentence of each."""
    rows = ["| class | fluent | what it does |", "|---|---|---|"]
    for heading, names in page.sections.items():
        rows += [f"| **{heading}** | | |"]
        for name in names:
            value = getattr(importlib.import_module(page.module), name)
            fluent = f"`.{fluent_name(value)}`" if fluent_name(value) else ""
            first = markdown_of(inspect.getdoc(value) or "").partition("\n\n")[0]
            rows += [f"| [{name}](#{name.lower()}) | {fluent} | {' '.join(first.split())} |"]
    return "\n".join(rows)


def fluent_name(value: Any) -> str:
    """Return the method's name that makes a pipe of this class, or ""."""
    return vars(value).get("functional_name", "") or ""


def entry_of(module: str, name: str) -> Iterator[str]:
    """Yield the paragraphs about a name."""
    value = getattr(importlib.import_module(module), name)
    yield f"### {name}"
    if fluent_name(value):
        yield f"As a method: `pipe.{fluent_name(value)}(...)`."
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        yield "Its members: " + ", ".join(f"`{name}.{each.name}`" for each in value) + "."
    elif name not in GIVEN and not (inspect.isclass(value) and issubclass(value, BaseException)):
        yield block("python signature", signature_of(name, value))
    yield from paragraphs_of(inspect.getdoc(value) or "", module)
    if name in GIVEN and (fields := fields_of(value)):
        rows = (f"| `{field}` | {text} |" for field, text in fields.items())
        yield "\n".join(["| field | what it is |", "|---|---|", *rows])
    for method in METHODS.get(name, ()):
        if method in dir(value):
            yield from method_of(module, name, value, method)


def method_of(module: str, name: str, value: type, method: str) -> Iterator[str]:
    found = inspect.getattr_static(value, method)
    yield f"#### {name}.{method}"
    if isinstance(found, property):
        yield "A property."
    else:
        yield block("python signature", signature_of(method, getattr(value, method)))
    yield from paragraphs_of(inspect.getdoc(found) or "", module)


def fields_of(value: type) -> dict[str, str]:
    """Return the fields of a class, its bases' first, with the comment above each."""
    fields: dict[str, str] = {}
    for each in reversed(value.__mro__):
        if not each.__module__.startswith("asyncloader"):
            continue
        for comment, field in _FIELD.findall(inspect.getsource(each)):
            text = " ".join(line.strip().removeprefix("#:") for line in comment.splitlines())
            fields[field] = markdown_of(" ".join(text.split()))
    return fields


#: A field of a class, with the lines of its comment.
_FIELD = re.compile(r"^((?: {4}#: .*\n)+) {4}([a-z]\w*): ", re.MULTILINE)


def paragraphs_of(docstring: str, module: str) -> Iterator[str]:
    """Yield a docstring's paragraphs as Markdown, and its examples as blocks that run."""
    examples: list[str] = []
    for paragraph in docstring.split("\n\n"):
        if paragraph.startswith(">>> "):
            examples.append(paragraph)
        else:
            yield markdown_of(paragraph)
    if examples:
        yield block("pycon", with_imports("\n".join(examples), module))


def with_imports(example: str, module: str) -> str:
    """Return an example that imports all that it uses of a module."""
    used = {
        each.id
        for part in doctest.DocTestParser().get_examples(example)
        for each in ast.walk(ast.parse(part.source))
        if isinstance(each, ast.Name)
    }
    known = set(re.findall(r"import .*\n|(?:class|def) \w+", example))
    offered = {name for name, _ in public_names(module)}
    missing = {name for name in used & offered if not re.search(rf"\b{name}\b", " ".join(known))}
    if not missing:
        return example
    # Beside what the example imports from there already, in the order of a sorted import.
    beside = re.search(rf"^>>> from {re.escape(module)} import (.*)$", example, re.MULTILINE)
    if beside is None:
        return f">>> from {module} import {', '.join(sorted(missing))}\n{example}"
    names = ", ".join(sorted([*beside[1].split(", "), *missing]))
    return example.replace(beside[0], f">>> from {module} import {names}", 1)


def markdown_of(text: str) -> str:
    """Return a docstring's text as Markdown."""
    return re.sub(r"``(.+?)``", r"`\1`", text, flags=re.DOTALL).replace("::\n", ":\n")


def block(opening: str, text: str) -> str:
    return f"```{opening}\n{text}\n```"


def signature_of(name: str, value: Any) -> str:
    """Return how a class or a function is called, with a line for each parameter if need be."""
    signature = inspect.signature(value)
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    arguments = list(arguments_of(parameters))
    is_function = inspect.isroutine(value)
    end = f" -> {type_text(signature.return_annotation)}" if is_function else ""
    start = "async " if inspect.iscoroutinefunction(value) else ""
    line = f"{start}{name}({', '.join(arguments)}){end}"
    if len(line) <= SIGNATURE_WIDTH:
        return line
    inside = "".join(f"    {argument},\n" for argument in arguments)
    return f"{start}{name}(\n{inside}){end}"


def arguments_of(parameters: Iterable[inspect.Parameter]) -> Iterator[str]:
    has_star = False
    for each in parameters:
        has_star = has_star or each.kind is each.VAR_POSITIONAL
        if each.kind is each.KEYWORD_ONLY and not has_star:
            has_star = True
            yield "*"
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        typed = "" if each.annotation is each.empty else f": {type_text(each.annotation)}"
        equals = " = " if typed else "="
        default = "" if each.default is each.empty else f"{equals}{default_text(each.default)}"
        yield f"{stars}{each.name}{typed}{default}"


def type_text(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation
    return "None" if annotation is None else getattr(annotation, "__name__", str(annotation))


def default_text(value: Any) -> str:
    """Return a default as one would write it."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, float) and math.isinf(value):
        return "math.inf"
    if isinstance(value, int) and value >= 100_000:
        return f"{value:_}"
    return getattr(value, "__name__", None) or repr(value)


if __name__ == "__main__":
    main()
