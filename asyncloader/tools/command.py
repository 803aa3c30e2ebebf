"""The commands of ``python -m asyncloader``.

This file is about ``main``: arguments in, text out, and an exit status: 0 if it did what
was asked, 2 if it was asked for something that is not there or fails.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from asyncloader.tools.doctor import examine
from asyncloader.tools.drawing import Format, drawing
from asyncloader.tools.target import load_target
from asyncloader.tools.trials import ExaminationError

WHAT_IT_DOES = "Draw a graph of datapipes, or examine what its stages and its workers are worth."

NAMED = (
    "a pipe, a DataLoader2, or a function of no arguments that returns one, as in train:pipe"
    " or src/train.py:pipe"
)

#: What a file's name says about its format.
_FORMAT_OF: dict[str, Format] = {".svg": "svg", ".mmd": "mermaid", ".txt": "text", "": "text"}


def main(arguments: Sequence[str]) -> int:
    """Run one command; return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except (ValueError, ExaminationError, OSError) as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        print(f"asyncloader {options.command}: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m asyncloader", description=WHAT_IT_DOES)
    commands = parser.add_subparsers(dest="command", required=True)
    graph = commands.add_parser("graph", help="draw a graph, with what runs where")
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
        "--seconds", type=_seconds, default=10.0, metavar="S", help="how long to measure (10)"
    )
    doctor.add_argument(
        "--workers", type=_counts, metavar="0,1,2", help="what to try, instead of up to all cores"
    )
    doctor.set_defaults(run=_doctor)
    return parser


def _graph(options: argparse.Namespace) -> None:
    form = options.format or (_format_of(options.output) if options.output else "text")
    text = drawing(load_target(options.target), form, options.workers)
    if options.output:
        options.output.write_text(f"{text.rstrip()}\n", encoding="utf-8")
    else:
        print(text.rstrip())


def _format_of(file: Path) -> Format:
    form = _FORMAT_OF.get(file.suffix.lower())
    if form is None:
        names = ", ".join(filter(None, _FORMAT_OF))
        raise ValueError(
            f"{file.name} does not say its format: end it in {names}, or pass --format"
        )
    return form


def _doctor(options: argparse.Namespace) -> None:
    # At once: workers end with this process, and there is nothing else to wind up.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    asyncio.run(examine(load_target(options.target), options.seconds, options.workers))


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
