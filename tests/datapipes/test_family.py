"""What all pipes of the core family promise."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch.utils.data.datapipes.iter as torch_iter

from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.iter import (
    SHARDING_PRIORITIES,
    Batcher,
    BucketBatcher,
    Collator,
    Concater,
    Cycler,
    Demultiplexer,
    Dropper,
    Enumerator,
    Filter,
    FlatMapper,
    Flattener,
    Forker,
    Grouper,
    Header,
    InBatchShuffler,
    IndexAdder,
    InMemoryCacheHolder,
    IterableWrapper,
    IterKeyZipper,
    LengthSetter,
    MapKeyZipper,
    Mapper,
    MaxTokenBucketizer,
    Multiplexer,
    MultiplexerLongest,
    RandomSplitter,
    Repeater,
    RoundRobinDemultiplexer,
    Rows2Columnar,
    SampleMultiplexer,
    SequencePacker,
    ShardingFilter,
    ShardingRoundRobinDispatcher,
    ShuffledFlatMapper,
    Shuffler,
    Slicer,
    UnBatcher,
    UnZipper,
    Zipper,
    ZipperLongest,
)
from asyncloader.datapipes.map import SequenceWrapper
from tests.datapipes.watched import Watched, WatchedAsync

Source = Iterable[Any]


def is_even(number: int) -> bool:
    return number % 2 == 0


def twice(number: int) -> list[int]:
    return [number, number]


def parity(number: int) -> int:
    return number % 2


def listed(number: int) -> list[int]:
    return [number, number + 100]


def numbered(number: int) -> dict[str, int]:
    return {"number": number}


def itself(number: int) -> int:
    return number


def by_parity(source: Source) -> IterDataPipe[Any]:
    return Zipper(*Demultiplexer(source, 2, parity))


#: Each makes a pipe over a source of at least 20 numbers.
SAMPLES: dict[str, Callable[[Any], IterDataPipe[Any]]] = {
    "map": lambda source: Mapper(source, str),
    "collate": lambda source: Collator(source, twice),
    "enumerate": lambda source: Enumerator(source, 3),
    "set_length": lambda source: LengthSetter(source, 7),
    "batch": lambda source: Batcher(source, 3),
    "batch_tuple": lambda source: Batcher(source, 3, True, tuple),
    "unbatch": lambda source: UnBatcher(Batcher(source, 3)),
    "flatmap": lambda source: FlatMapper(source, twice),
    "filter": lambda source: Filter(source, is_even),
    "header": lambda source: Header(source, 7),
    "groupby": lambda source: Grouper(source, parity, group_size=2),
    "shuffle": lambda source: Shuffler(source, buffer_size=5).set_seed(1),
    "no_shuffle": lambda source: Shuffler(source).set_shuffle(False),
    "in_batch_shuffle": lambda source: InBatchShuffler(Mapper(source, listed)).set_seed(1),
    "zip": lambda source: Zipper(source, range(9)),
    "zip_longest": lambda source: ZipperLongest(Mapper(range(2), itself), Mapper(source, itself)),
    "mux": lambda source: Multiplexer(source, range(9)),
    "mux_longest": lambda source: MultiplexerLongest(range(2), source),
    "concat": lambda source: Concater(range(2), source),
    "cycle": lambda source: Cycler(source, 2),
    "repeat": lambda source: Repeater(source, 2),
    "fork": lambda source: Zipper(*Forker(source, 2)),
    "demux": by_parity,
    "round_robin_demux": lambda source: Zipper(*RoundRobinDemultiplexer(source, 3)),
    "sharding_filter": lambda source: ShardingFilter(source),
    "slice": lambda source: Slicer(Mapper(source, listed), 1),
    "drop": lambda source: Dropper(Mapper(source, listed), 0),
    "flatten": lambda source: Flattener(Mapper(source, listed)),
    "rows2columnar": lambda source: Rows2Columnar(Batcher(Mapper(source, numbered), 3)),
    "add_index": lambda source: IndexAdder(Mapper(source, numbered)),
    "bucketbatch": lambda source: BucketBatcher(source, 3, False, 2, 1, sorted),
    "max_token_bucketize": lambda source: MaxTokenBucketizer(source, 30, itself, buffer_size=4),
    "pack_sequences": lambda source: SequencePacker(source, 30, len_fn=itself, open_packs=3),
    "zip_with_iter": lambda source: IterKeyZipper(source, range(20), itself),
    "zip_with_iter_ref": lambda source: IterKeyZipper(range(20), source, itself),
    "zip_with_map": lambda source: MapKeyZipper(source, SequenceWrapper(range(20)), itself),
    "unzip": lambda source: Zipper(*UnZipper(Mapper(source, listed), 2)),
    "random_split": lambda source: RandomSplitter(source, {0: 8, 1: 12}, 1, 20, target=1),
    "in_memory_cache": lambda source: InMemoryCacheHolder(source),
    "sample_multiplexer": lambda source: SampleMultiplexer({source: 2, range(9): 1}).set_seed(1),
    "shuffled_flatmap": lambda source: ShuffledFlatMapper(source, twice, None, 3).set_seed(1),
    "dispatch": lambda source: ShardingRoundRobinDispatcher(
        source, SHARDING_PRIORITIES.MULTIPROCESSING
    ),
}

#: The iterators of these share what they hold, or a split.
SHARED = {"fork", "demux", "round_robin_demux", "unzip", "random_split"}

UNCOUNTED = {"unbatch", "flatmap", "filter", "groupby", "demux"}
UNCOUNTED |= {"bucketbatch", "max_token_bucketize", "pack_sequences", "shuffled_flatmap"}

#: The length of these is that of something else than the source.
COUNTED_OTHERWISE = {"set_length", "header", "zip_with_iter_ref", "random_split"}

RANDOM = {"shuffle", "in_batch_shuffle", "sample_multiplexer", "shuffled_flatmap"}

every_pipe = pytest.mark.parametrize("name", SAMPLES)
every_ordered_pipe = pytest.mark.parametrize("name", [n for n in SAMPLES if n not in RANDOM])


def made(name: str, source: Source | None = None) -> IterDataPipe[Any]:
    return SAMPLES[name](IterableWrapper(range(20)) if source is None else source)


@every_pipe
async def test_async_iteration_gives_what_sync_iteration_gives(name: str) -> None:
    assert [item async for item in made(name)] == list(made(name))


@every_pipe
def test_an_async_source_gives_what_a_sync_one_gives(name: str) -> None:
    source = WatchedAsync(range(20))

    assert list(made(name, source)) == list(made(name))
    assert source.open == 0


@every_pipe
async def test_an_async_source_is_read_on_the_running_loop(name: str) -> None:
    source = WatchedAsync(range(20))

    assert [item async for item in made(name, source)] == list(made(name))
    assert source.open == 0


@every_pipe
def test_plain_iterables_and_torch_pipes_are_sources_too(name: str) -> None:
    expected = list(made(name))

    assert list(made(name, range(20))) == expected
    assert list(made(name, torch_iter.IterableWrapper(range(20)))) == expected


@every_ordered_pipe
def test_iterating_again_starts_afresh(name: str) -> None:
    pipe = made(name)

    assert list(pipe) == list(pipe)


@every_ordered_pipe
def test_iterating_again_after_a_break_starts_afresh(name: str) -> None:
    pipe = made(name)
    expected = list(pipe)

    for _ in pipe:
        break

    assert list(pipe) == expected


@every_pipe
def test_nothing_is_read_before_the_first_item_is_asked_for(name: str) -> None:
    source = Watched(range(20))
    iter(made(name, source))

    assert source.taken == 0


@every_pipe
def test_an_early_break_closes_the_source(name: str) -> None:
    source = Watched(range(20))
    pipe = made(name, source)

    iterator = iter(pipe)
    for _ in range(3):
        next(iterator)
    assert source.open > 0
    iterator.close()  # type: ignore[attr-defined]

    assert source.open == 0


@every_pipe
def test_an_iterator_that_is_dropped_closes_the_source(name: str) -> None:
    source = Watched(range(20))
    pipe = made(name, source)

    for _ in pipe:
        break

    assert source.open == 0


def test_a_wrapped_iterable_is_closed_as_soon_as_nobody_reads_it() -> None:
    source = Watched(range(20))

    class Wrapped:
        def __iter__(self) -> Iterator[Any]:
            return iter(source)

    for _ in IterableWrapper(Wrapped(), deepcopy=False).map(str):
        break

    assert source.open == 0


@every_pipe
async def test_an_async_iterator_that_is_closed_closes_the_source(name: str) -> None:
    source = Watched(range(20))
    iterator = aiter(made(name, source))

    await anext(iterator)
    await iterator.aclose()  # type: ignore[attr-defined]

    assert source.open == 0


@pytest.mark.parametrize("name", [n for n in SAMPLES if n not in RANDOM | SHARED])
def test_two_iterators_of_one_pipe_do_not_disturb_each_other(name: str) -> None:
    pipe = made(name)
    expected = list(pipe)

    one, other = iter(pipe), iter(pipe)
    interleaved = [(next(one), next(other)) for _ in expected]

    assert interleaved == [(item, item) for item in expected]


@every_pipe
def test_a_pipe_is_copied_and_pickled_as_if_never_iterated(name: str) -> None:
    pipe = SAMPLES[name](IterableWrapper(list(range(20))))
    copies = [copy.deepcopy(pipe), pickle.loads(pickle.dumps(pipe))]
    expected = list(pipe)
    if name not in RANDOM:
        copies += [copy.copy(pipe), pickle.loads(pickle.dumps(pipe))]

    assert [list(again) for again in copies] == [expected] * len(copies)


@every_pipe
def test_the_length_is_the_number_of_items_where_it_is_known(name: str) -> None:
    pipe = made(name)
    if name in UNCOUNTED:
        with pytest.raises(TypeError):
            len(pipe)
    else:
        assert len(pipe) == (7 if name == "set_length" else len(list(pipe)))


@pytest.mark.parametrize("name", [n for n in SAMPLES if n not in COUNTED_OTHERWISE])
def test_the_length_is_unknown_where_that_of_the_source_is(name: str) -> None:
    with pytest.raises(TypeError):
        len(made(name, IterableWrapper(n for n in range(20))))


@every_pipe
def test_what_cannot_be_iterated_is_no_source(name: str) -> None:
    with pytest.raises(TypeError, match="got int"):
        made(name, 5)  # type: ignore[arg-type]


@every_pipe
def test_a_bare_async_iterable_is_refused_with_advice(name: str) -> None:
    async def numbers() -> Any:
        yield 1

    with pytest.raises(TypeError, match="IterableWrapper"):
        made(name, numbers())
