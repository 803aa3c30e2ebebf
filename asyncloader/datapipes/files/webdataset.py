"""Samples that lie in several files, in shards.

This file is about webdataset: the files of a tar whose names differ only in their endings belong
together; and about shard_expand: ``"data-{000..099}.tar"`` stands for a hundred names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from asyncloader.datapipes.base import functional_datapipe
from asyncloader.datapipes.files.streams import pair_in, path_in
from asyncloader.datapipes.patterns import Expander, Finished, Pipe, after
from asyncloader.datapipes.running.run import Edge
from asyncloader.datapipes.sources import iterable_source


@functional_datapipe("webdataset")
class WebDataset(Pipe[dict[str, Any]]):
    """Yield a dict for each run of pairs ``(path, data)`` whose paths differ in their endings.

    Its keys are the endings, which begin at the first dot of a file's name, and its
    ``"__key__"`` is the path before it. Names without a dot are left out, and so are those
    that begin with one. A second file with the same key and ending right after the first is
    a ValueError.

    >>> files = [("a/1.jpg", b"..."), ("a/1.cls", b"7"), ("a/2.jpg", b"...")]
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> [sample["__key__"] for sample in IterableWrapper(files).webdataset()]
    ['a/1', 'a/2']
    """

    State = Finished

    def __init__(self, source_datapipe: Iterable[tuple[str, Any]]) -> None:
        self.source = iterable_source(source_datapipe)

    def run(self, source: Edge[Any], state: Finished) -> Iterator[dict[str, Any]]:
        sample: dict[str, Any] = {}
        for item in source:
            path, data = pair_in(item, "(path, data)", self)
            del item
            key, ending = key_and_ending(path_in(path, self))
            if ending and sample and sample["__key__"] != key:
                # The first file of the next sample is read already, and is read again.
                state.taken, state.yielded = source.count() - 1, state.yielded + 1
                whole, sample = sample, {}
                yield whole
                # Do not keep the yielded sample alive while the next one is made.
                del whole
            if ending:
                _add(sample, key, ending, data)
            del data
        if sample:
            state.taken, state.yielded = source.count(), state.yielded + 1
            yield sample


def _add(sample: dict[str, Any], key: str, ending: str, data: Any) -> None:
    if ending in sample:
        raise ValueError(f"{key}{ending} comes twice in a row; one of the two would be lost")
    sample["__key__"] = key
    sample[ending] = data


def key_and_ending(path: str) -> tuple[str, str]:
    """Return a path up to the first dot of the file's name, and the rest of it.

    A name that begins with a dot has no ending: what some systems hide in archives would
    part samples.
    """
    folder, slash, name = path.replace("\\", "/").rpartition("/")
    key, dot, ending = name.partition(".")
    if not key:
        return path, ""
    return folder + slash + key, dot + ending


_RANGE = re.compile(r"\{([0-9]+)\.\.([0-9]+)\}")


@functional_datapipe("shard_expand")
class ShardExpander(Expander[str]):
    """Yield the names that a source's patterns stand for.

    ``{0..9}`` counts up, both ends included; ``{000..099}`` keeps the zeros in front.
    Where there are several ranges the last counts fastest.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(["ds-{08..10}.tar"]).shard_expand())
    ['ds-08.tar', 'ds-09.tar', 'ds-10.tar']
    """

    def __init__(self, source_datapipe: Iterable[str]) -> None:
        super().__init__(source_datapipe)

    def parts(self, item: Any, skip: int = 0) -> Iterator[str]:
        if not isinstance(item, str):
            raise TypeError(f"{self!r} reads names of shards, got {type(item).__name__}")
        yield from after(expanded(item), skip)


def expanded(pattern: str) -> Iterator[str]:
    """Yield the names that a pattern stands for; itself if it has no range."""
    found = _RANGE.search(pattern)
    if found is None:
        yield pattern
        return
    before, rest = pattern[: found.start()], pattern[found.end() :]
    low, high = found.groups()
    width = _width(pattern, low, high)
    for number in range(int(low), int(high) + 1):
        for end in expanded(rest):
            yield f"{before}{number:0{width}d}{end}"


def _width(pattern: str, low: str, high: str) -> int:
    if len(low) > len(high):
        raise ValueError(f"{pattern!r}: the low bound {low} must not have more digits than {high}")
    if len(low) < len(high) and low.startswith("0") and low != "0":
        raise ValueError(
            f"{pattern!r}: the low bound {low} starts with 0 and must have as many digits as {high}"
        )
    if int(low) > int(high):
        raise ValueError(f"{pattern!r} has a bad range: {low} is greater than {high}")
    return len(high) if low.startswith("0") and len(low) == len(high) else 0
