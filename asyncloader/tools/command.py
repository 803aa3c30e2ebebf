"""The commands of ``python -m asyncloader``.

This file is about ``main``: arguments in, text out, and an exit status: 0 if it did what was
asked, 2 if what was named does not exist or fails. ``graph`` and ``doctor`` are about a ``Target``,
the graph that ``module:pipe`` names: the module or file is imported, and the name in it is a
pipe, a ``DataLoader2``, or a function without arguments that returns one. ``watch`` runs a
program, whose errors and exit status are its own, and ``why`` asks a program that runs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import difflib
import importlib
import inspect
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TextIO, get_args

from asyncloader.datapipes.base import is_pipe
from asyncloader.errors import LoaderError
from asyncloader.graph.cut import Place, places_of
from asyncloader.graph.draw import to_mermaid, to_svg, to_text
from asyncloader.graph.edit import copy_graph
from asyncloader.graph.outline import Labels
from asyncloader.graph.refusals import every_refusal
from asyncloader.graph.walk import Graph
from asyncloader.loader.dataloader2 import DataLoader2, iter_pipe
from asyncloader.services.multi_threading import MultiThreadingReadingService
from asyncloader.services.ray import RayReadingService
from asyncloader.tools.advice import HERE, Kind, Service, apply_to, page
from asyncloader.tools.doctor import examine, what_is_tried
from asyncloader.tools.migrate import report
from asyncloader.tools.watch import draw, watched_program
from asyncloader.tools.why import why
from asyncloader.transport.code import include_code_of
from asyncloader.workers.actors.cluster import joined_cluster

WHAT_IT_DOES = (
    "Draw a graph of pipes, examine what its stages and its workers are worth, watch the"
    " loaders of a program, ask what they wait for, or rewrite programs of torchdata."
)

NAMED = (
    "a pipe, a DataLoader2, or a function of no arguments that returns one, as in train:pipe"
    " or src/train.py:pipe"
)

#: The format of a file, by the ending of its name.
_FORMAT_OF: dict[str, Format] = {".svg": "svg", ".mmd": "mermaid", ".txt": "text", "": "text"}
Format = Literal["text", "mermaid", "svg"]


def main(arguments: Sequence[str]) -> int:
    """Run one command; return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        program = options.run(options)
    except (ValueError, LoaderError, OSError) as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        print(f"asyncloader {options.command}: {error}", file=sys.stderr)
        return 2
    if program is not None:
        program()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m asyncloader", description=WHAT_IT_DOES)
    commands = parser.add_subparsers(dest="command", required=True)
    graph = commands.add_parser(
        "graph", help="draw a graph, with what runs where and what it cannot do"
    )
    graph.add_argument("target", metavar="module:pipe", help=NAMED)
    graph.add_argument(
        "--workers",
        type=_count,
        metavar="N",
        help="draw it for so many worker processes (as many as the DataLoader2 has, or else 2)",
    )
    graph.add_argument(
        "--format", choices=get_args(Format), help="as FILE ends (.svg, .mmd, .txt), or text"
    )
    graph.add_argument("-o", "--output", type=Path, metavar="FILE", help="write it there")
    graph.set_defaults(run=_graph)
    doctor = commands.add_parser("doctor", help="say what each stage costs, and what would help")
    doctor.add_argument("target", metavar="module:pipe", help=NAMED)
    doctor.add_argument(
        "--seconds",
        type=_seconds,
        metavar="S",
        help="how long to measure (10, and up to 60 until it is decided)",
    )
    doctor.add_argument(
        "--workers", type=_counts, metavar="0,1,2", help="what to try, instead of up to all cores"
    )
    doctor.add_argument(
        "--ray",
        action="store_true",
        help="try actors, too, of the Ray cluster that RAY_ADDRESS or this machine has",
    )
    doctor.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write the report there too, as HTML"
    )
    doctor.add_argument(
        "--apply-to",
        type=Path,
        metavar="FILE",
        help="write the advised number of workers into this program, and print the changed lines",
    )
    doctor.set_defaults(run=_doctor)
    watch = commands.add_parser("watch", help="run a program and show its loaders live")
    watch.add_argument("--text", action="store_true", help="draw it in the terminal, too")
    watch.add_argument("-m", action="store_true", dest="is_module", help="run a module")
    watch.add_argument(
        "target", metavar="SCRIPT", help="what to run, or with --text the address of a page"
    )
    watch.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="of the program")
    watch.set_defaults(run=_watch)
    why = commands.add_parser("why", help="say what the loaders of a running program wait for")
    why.add_argument(
        "target", metavar="PID", help="the number of its process, or the address of its page"
    )
    why.set_defaults(run=_why)
    migrate = commands.add_parser("migrate", help="rewrite torchdata's imports in files")
    migrate.add_argument("files", type=Path, nargs="+", metavar="FILE")
    migrate.set_defaults(run=_migrate)
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"give a number of seconds above 0, got {text!r}")
    return seconds


def _counts(text: str) -> list[int]:
    return sorted({_count(part.strip()) for part in text.split(",")})


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a number of workers is 0 or more, got {text!r}")
    return int(text)


def _graph(options: argparse.Namespace) -> None:
    form = options.format or (_format_of(options.output) if options.output else "text")
    target = load_target(options.target)
    Graph(target.graph).sources_first()  # it names the pipes of a circle
    workers = _workers_of(target, options.workers)
    text = drawing(target, form, workers)
    if options.output:
        options.output.write_text(f"{text.rstrip()}\n", encoding="utf-8")
    else:
        print(text.rstrip())
    # Not among the drawing, which another program may read.
    for refusal in every_refusal(target.graph, workers):
        print(f"refused {refusal.purpose}: {refusal}", file=sys.stderr)


def _format_of(file: Path) -> Format:
    form = _FORMAT_OF.get(file.suffix.lower())
    if form is None:
        names = ", ".join(filter(None, _FORMAT_OF))
        raise ValueError(
            f"the format of {file.name} is unknown: use a name that ends in {names}, or pass"
            " --format"
        )
    return form


#: How long the doctor measures at first, and at most until it is decided, if nobody says it.
_SECONDS, _MOST_SECONDS = 10.0, 60.0


def _doctor(options: argparse.Namespace) -> None:
    # Ctrl-C ends it at once: workers end with this process, and nothing else needs closing.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _check_files(options)
    target = load_target(options.target)
    seconds = options.seconds or _SECONDS
    most = None if options.seconds else _MOST_SECONDS
    printed = Printed(sys.stdout)
    with (
        joined_cluster() if options.ray else contextlib.nullcontext() as cluster,
        contextlib.redirect_stdout(printed),
    ):
        if cluster is not None:
            # The nodes need not have the file.
            include_code_of(target.module)
        now = Service.of(target.kind, target.workers or 0)
        if now.kind is Kind.ACTOR and cluster is None:
            print("the loader runs its graph in actors: to try those too, add --ray")
            now = HERE
        found = asyncio.run(
            examine(target.graph, seconds, options.workers, now=now, most=most, cluster=cluster)
        )
    if found is None:
        return
    if options.output:
        text = page("".join(printed.parts), found.advice, found.stages, found.trials)
        options.output.write_text(text, encoding="utf-8")
    if options.apply_to:
        if found.advice.service == found.advice.now:
            print("nothing to apply: the number of workers stays as it is")
            return
        _, missing = what_is_tried(target.graph)
        if missing:
            raise ValueError(f"{options.apply_to} was not changed: {missing}")
        for line in apply_to(options.apply_to, found.advice.service, found.advice.now):
            print(line)


def _check_files(options: argparse.Namespace) -> None:
    """Raise what would else be raised after all that measuring."""
    if options.output and not options.output.absolute().parent.is_dir():
        raise ValueError(f"there is no folder {options.output.parent} for {options.output.name}")
    if options.apply_to:
        options.apply_to.read_bytes()


class Printed:
    """Passes on what is printed, and keeps it; in all else it is what it passes that on to."""

    def __init__(self, out: TextIO) -> None:
        self.parts: list[str] = []
        self._out = out

    def write(self, text: str) -> int:
        self.parts.append(text)
        return self._out.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


def _watch(options: argparse.Namespace) -> Callable[[], None] | None:
    if options.text and options.target.startswith("http://"):
        draw(options.target, sys.stdout)
        return None
    return watched_program(
        options.target,
        options.arguments,
        is_module=options.is_module,
        as_text=options.text,
    )


def _why(options: argparse.Namespace) -> None:
    print(why(options.target))


def _migrate(options: argparse.Namespace) -> None:
    for line in report(options.files):
        print(line)


#: The number of workers if neither the command nor a loader says one.
_WORKERS = 2


def _workers_of(target: Target, workers: int | None) -> int:
    if workers is not None:
        return workers
    return _WORKERS if target.workers is None else target.workers


def drawing(target: Target, form: Format, workers: int) -> str:
    """Return a drawing of the graph as it runs in so many workers."""
    labels = places(target, workers)
    match form:
        case "text":
            return to_text(target.graph, labels)
        case "mermaid":
            return to_mermaid(target.graph, labels)
        case "svg":
            return to_svg(target.graph, labels)


def places(target: Target, workers: int) -> Labels:
    """Return where each pipe of the graph runs, in words; nothing where it cannot be divided."""
    words: dict[Place, str] = {
        "loader": "loader",
        "dispatcher": "dispatching process",
        "workers": f"each of {workers} workers" if workers > 1 else "worker",
    }
    return [(pipe, words[place]) for pipe, place in places_of(Graph(target.graph), workers)]


class TargetError(ValueError):
    """What a command was given is not a graph; the cause is the user's own error, if any."""


@dataclass(frozen=True)
class Target:
    """A graph that ends in an iter pipe, and in how many workers its own loader runs it."""

    graph: Any
    #: None where there is no loader that says it.
    workers: int | None
    #: What these workers are.
    kind: Kind
    module: ModuleType


def load_target(text: str) -> Target:
    """Import what ``module:pipe`` or ``path/to/file.py:pipe`` names, or raise TargetError."""
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise TargetError(
            f"name the module and the pipe in it, as in train:pipe or src/train.py:pipe;"
            f" got {text!r}"
        )
    module = _module_of(place)
    return _target(text, _made(text, _attribute(module, name)), module)


def _module_of(place: str) -> ModuleType:
    path = Path(place)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise TargetError(f"there is no file {place!r} in {Path.cwd()}")
    name = path.stem if is_file else place
    if is_file and "." in name:
        raise TargetError(
            f"a file named {path.name} cannot be imported, because its name has a dot in it; give"
            " it another name"
        )
    # As Python does for a script. Workers import the module by the same name.
    sys.path.insert(0, str(path.resolve().parent if is_file else Path.cwd()))
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's module ran
        raise TargetError(_why_not(name, error)) from _own_error(name, error)
    if is_file and not _is_of(module, path):
        raise TargetError(
            f"a file named {path.name} has the name of the module {module.__name__!r}, which is"
            " imported already; give it another name"
        )
    return module


def _why_not(name: str, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and _leads_to(name, error.name):
        return (
            f"there is no module {error.name!r} in {Path.cwd()} nor on Python's path; for a"
            " file elsewhere give its path, as in src/train.py:pipe"
        )
    if isinstance(error, SystemExit):
        return (
            f"importing {name} ended the program; put the code to run under `if __name__ =="
            ' "__main__":`'
        )
    return f"importing {name} failed: {error!r}"


def _own_error(name: str, error: BaseException) -> BaseException | None:
    """Return the error whose traceback leads into the user's code, if it does."""
    if isinstance(error, ModuleNotFoundError) and _leads_to(name, error.name):
        return None
    return error


def _leads_to(name: str, missing: str | None) -> bool:
    return missing is not None and f"{name}.".startswith(f"{missing}.")


def _is_of(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve() == path.resolve()


def _attribute(module: ModuleType, name: str) -> Any:
    try:
        return attrgetter(name)(module)
    except AttributeError:
        near = difflib.get_close_matches(name, vars(module), n=1)
        hint = f"; did you mean {near[0]}?" if near else _listed(_graphs_in(module))
        raise TargetError(f"{module.__name__} has no {name!r}{hint}") from None


def _graphs_in(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if _is_graph(value)]


def _listed(names: Iterable[str]) -> str:
    listed = ", ".join(names)
    return f"; its pipes and loaders are {listed}" if listed else ", and no pipe with another name"


def _made(text: str, value: Any) -> Any:
    """Return the pipe or loader, by a call where it is a function that makes one."""
    if _is_graph(value) or not callable(value):
        return value
    if inspect.iscoroutinefunction(value):
        raise TargetError(
            f"{text} is an async function; name a plain function that returns the pipe"
        )
    try:
        inspect.signature(value).bind()
    except TypeError as error:
        raise TargetError(f"{text} must take no arguments: {error}") from None
    except ValueError:
        pass  # it does not tell its parameters
    try:
        return value()
    except (Exception, SystemExit) as error:
        raise TargetError(f"{text}() failed: {error!r}") from error


def _is_graph(value: Any) -> bool:
    return isinstance(value, DataLoader2) or is_pipe(value)


def _target(text: str, value: Any, module: ModuleType) -> Target:
    if isinstance(value, DataLoader2):
        if value.datapipe is None:
            raise TargetError(f"{text} is a DataLoader2 that has no graph yet")
        return Target(value.datapipe, value.num_workers, _kind_of(value.reading_service), module)
    if not is_pipe(value):
        raise TargetError(
            f"{text} is {_described(value)}; name a pipe, a DataLoader2, or a function of no"
            " arguments that returns one"
        )
    try:
        return Target(copy_graph(iter_pipe(value)), None, Kind.NONE, module)
    except Exception as error:
        raise TargetError(f"{text} is not a graph that a DataLoader2 can load: {error}") from error


def _kind_of(service: Any) -> Kind:
    """Return what the workers of a loader's service are."""
    services = getattr(service, "reading_services", [service])
    if any(isinstance(each, RayReadingService) for each in services):
        return Kind.ACTOR
    if any(isinstance(each, MultiThreadingReadingService) for each in services):
        return Kind.THREAD
    return Kind.PROCESS


def _described(value: Any) -> str:
    if value is None:
        return "None"
    kind = type(value)
    return f"of type {kind.__module__}.{kind.__qualname__}".replace("builtins.", "")
