"""A random graph as plain data: the lines of Python that build it.

This file is about ``Recipe``: how one is drawn from a seed, and which smaller ones there are.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from operator import attrgetter
from typing import Any

from tests.random_graphs import pieces


class Effect(Enum):
    """What a step does to the items."""

    SOURCE = "yields ids"
    SHARES = "yields ids, of which each worker has its own"
    ONE = "one item for each, in order"
    EACH = "some items for each, in order"
    MIXED = "the same items in an order that is drawn"
    PLACED = "what an item becomes depends on its place, or on those beside it"
    KINDS = "each item in one of several branches, by itself"
    TURNS = "each item in one of several branches, by its place"
    COPIES = "each item in each of several branches"
    CHAINED = "the items of all sources, as they are"
    PAIRED = "one item of each source, as long as all have one"
    SHARD = "divides the items among workers"
    DEAL = "is run once, and deals to the workers"
    LOADER = "one item for each, in the loader's process"
    GATHER = "groups of items, made in the loader's process"


E = Effect

#: Lines over one result, what they do, and how often each id comes out for once that it goes
#: in (-1: once or not at all). {n} and {m} are drawn, a small number and a larger one.
OVER_ONE = [
    ("{0}.map(tag)", E.ONE, 1),
    ("{0}.map(tag_soon)", E.ONE, 1),
    ("{0}.async_map(tag_soon, concurrency={n})", E.ONE, 1),
    ("{0}.thread_map(tag, concurrency={n})", E.ONE, 1),
    ("{0}.threadpool_map(tag, max_workers={n})", E.ONE, 1),
    ("{0}.map_batches(tag_all, {n})", E.ONE, 1),
    ("{0}.async_map_batches(tag_soon, {n})", E.ONE, 1),
    ("{0}.prefetch({n})", E.ONE, 1),
    ("{0}.in_memory_cache()", E.ONE, 1),
    ("{0}.in_memory_cache(0)", E.ONE, 1),
    ("cached_on_disk({0})", E.ONE, 1),
    ("Waiting({0})", E.ONE, 1),
    ("{0}.batch({n}).unbatch()", E.ONE, 1),
    ("{0}.filter(is_kept)", E.EACH, -1),
    ("{0}.flatmap(thrice)", E.EACH, 3),
    ("{0}.repeat(2)", E.EACH, 2),
    ("Twice({0})", E.EACH, 2),
    ("{0}.shuffle()", E.MIXED, 1),
    ("{0}.shuffle(buffer_size={n})", E.MIXED, 1),
    ("{0}.shuffle(buffer_size={n}).set_shuffle(False)", E.MIXED, 1),
    ("{0}.batch({n}).shuffle(buffer_size={n}, unbatch_level=1)", E.MIXED, 1),
    ("{0}.shuffled_flatmap(thrice, buffer_size={n})", E.MIXED, 3),
    ("{0}.batch({n}).in_batch_shuffle().unbatch()", E.MIXED, 1),
    ("{0}.batch({n}).in_batch_shuffle()", E.PLACED, 1),
    ("{0}.batch({n})", E.PLACED, 1),
    ("{0}.batch({n}, drop_last=True)", E.PLACED, -1),
    ("{0}.batch({n}).collate(tag)", E.PLACED, 1),
    ("{0}.groupby(kind, group_size={n})", E.PLACED, 1),
    ("{0}.groupby(size, group_size={n}, guaranteed_group_size=1, buffer_size=5)", E.PLACED, 1),
    ("{0}.bucketbatch({n}, batch_num={n}, sort_key=by_size)", E.PLACED, 1),
    ("{0}.bucketbatch({n}, batch_num={n}, use_in_batch_shuffle=False)", E.PLACED, 1),
    ("{0}.max_token_bucketize(8, len_fn=size, buffer_size={n})", E.PLACED, 1),
    ("{0}.pack_sequences(6, len_fn=size, open_packs={n})", E.PLACED, 1),
    ("{0}.enumerate().map(texted)", E.PLACED, 1),
    ("{0}.cycle(2)", E.PLACED, 2),
    ("{0}.header({m})", E.PLACED, -1),
    ("split_and_joined({0}, {n})", E.PLACED, 1),
    ('{0}.random_split({{"a": 1, "b": 2}}, {n}, 1000, target="b")', E.PLACED, -1),
    ("EveryOther({0})", E.PLACED, -1),
    ("Held({0})", E.PLACED, 1),
    ("ReadTwice({0})", E.PLACED, 2),
    ("{0}.zip({0})", E.PLACED, -2),
    ("{0}.batch({n}, across_workers=True)", E.GATHER, 1),
    ("{0}.pin_memory(pin_memory_fn=as_it_is)", E.LOADER, 1),
    ("Alone({0})", E.LOADER, 1),
]
#: What yields ids, and how often each of them.
SOURCES = [
    ("IterableWrapper(ids({source}, {count}))", 1),
    ("IterableWrapper(range({source}000, {source}000 + {count}))", 1),
    ("IterableWrapper(Later({source}, {count}))", 1),
    ("WithState({source}, {count})", 1),
    ("SequenceWrapper(ids({source}, {count})).to_iter_datapipe()", 1),
    ("SequenceWrapper(ids({source}, {count})).to_iter_datapipe(range(0, {count}, 2))", -1),
    ("SequenceWrapper(ids({source}, {count})).map(tag).shuffle()", 1),
    ("SequenceWrapper(ids({source}, {count})).batch(3).shuffle()", 1),
    ("SequenceWrapper(ids({source}, {count})).in_memory_cache().shuffle()", 1),
    ("SequenceWrapper(ids({source}, {count})).shuffle(indices=range(1, {count}, 2))", -1),
    ("zipped_rows({data}, {data}).shuffle()", 2),
    ("chained_rows({data}, {data}).shuffle()", 2),
    ("columns({data}).shuffle()", 2),
    ("SequenceWrapper({data}).map(plain).shuffle()", 1),
    ("SequenceWrapper({data}).to_iter_datapipe().map(plain)", 1),
    ("IterableWrapper(array({source}, {count})).map(plain)", 1),
    ("IterableWrapper(dicts({source}, {count})).map(plain)", 1),
    ("IterableWrapper(ids({source}, {count})).enumerate().to_map_datapipe().shuffle()", 1),
    ("SharedSequence(ids({source}, {count})).shuffle()", 1),
    ("SharedSequence(dicts({source}, {count})).shuffle()", 1),
]
#: Graphs of ``from_dataset``, which divide their items themselves.
SHARES = [
    ("from_data_set({data}, batch_size={n})", 1),
    ("from_data_set({data}, batch_size={n}, shuffle=True)", 1),
    ("from_data_set({data}, batch_size={n}, shuffle=True, drop_last=True)", -1),
    ("from_data_set({data}, batch_size=None, shuffle=True)", 1),
    ("from_data_set({data}, batch_size=None, sampler={sampler})", 1),
    ("from_data_set({data}, batch_size={n}, sampler={sampler})", 1),
    ("from_data_set({data}, batch_size={n}, sampler={sampler})", 1),
    ("from_data_set({data}, batch_sampler=BatchSampler({sampler}, {n}, False))", 1),
    ("from_data_set({data}, batch_sampler=BatchSampler({sampler}, {n}, True))", -1),
    ("from_data_set({data}, batch_sampler=InBuckets({count}, {n}))", 1),
    ("from_data_set({data}, batch_sampler=InBuckets({count}, {n}, random.Random(3)))", 1),
    ("from_data_set(Named({source}, {count}), sampler=list(map(str, ids({source}, {count}))))", 1),
    ("from_data_set({stream}, batch_size=None)", 1),
    ("from_data_set({stream}, batch_size={n})", 1),
]
#: Data sets that are looked up.
DATA = [
    "Rows({source}, {count})",
    "Rows({source}, {count}, tag)",
    "ManyRows({source}, {count})",
    "ReadAgain({source}, {count})",
    "ids({source}, {count})",
    "tensors({source}, {count})",
    "array({source}, {count})",
    "dicts({source}, {count})",
    "put_together({source}, {count})",
]
STREAMS = ["Streamed({source}, {count})", "Continued({source}, {count})"]
SAMPLERS = [
    "SequentialSampler(range({count}))",
    "RandomSampler(range({count}))",
    "RandomSampler(range({count}), generator=torch.Generator())",
    "RandomSampler(range({count}), replacement=True)",
    "SubsetRandomSampler(range({count}))",
    "SubsetRandomSampler(range({count}), torch.Generator().manual_seed(3))",
    "WeightedRandomSampler([1.0] * {count}, {count}, replacement=True)",
    "OfNumpy({count})",
    "OfPython({count})",
    "OfTorch({count})",
    "WithRandom({count})",
    "WithRandom({count}, None)",
    "WithNumpy({count})",
    "WithNumpy({count}, None)",
    "WithNumpyState({count})",
    "WithSeveral({count})",
    "Around(RandomSampler(range({count})))",
    "Around(WithRandom({count}))",
    "Around(WithNumpy({count}))",
    "Counting({count})",
    "Told({count})",
    "Resumed({count})",
]
SPLITS = [
    ("{0}.fork({branches})", E.COPIES),
    ("{0}.demux({branches}, kind)", E.KINDS),
    ("{0}.round_robin_demux({branches})", E.TURNS),
    ("pairs({0})", E.COPIES),
]
JOINS = [
    ("{0}.zip({others})", E.PAIRED, 1),
    ("{0}.zip({others})", E.PAIRED, 1),
    ("{0}.zip_longest({others})", E.PLACED, 1),
    ("{0}.concat({others})", E.CHAINED, 1),
    ("{0}.concat({others})", E.CHAINED, 1),
    ("{0}.mux({others})", E.PLACED, -1),
    ("{0}.mux_longest({others})", E.CHAINED, 1),
    ("SampleMultiplexer({mixed})", E.MIXED, 1),
]
DIVISIONS = [
    ("{0}.sharding_filter()", E.SHARD),
    ("{0}.sharding_filter(SHARDING_PRIORITIES.MULTIPROCESSING)", E.SHARD),
    ("{0}.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)", E.DEAL),
]
NOISE = ("{0}.map(noisy)", E.ONE, 1)
#: What a loader is given beside its graph, and what that does.
ADAPTERS = [
    ("ad.Shuffle(False)", E.ONE),
    ("ad.Shuffle(False)", E.ONE),
    ("ad.Shuffle()", E.MIXED),
    ("ad.Shuffle(None)", E.ONE),
    ("ad.CacheTimeout(5)", E.ONE),
    ("ad.InvalidateCache()", E.ONE),
    ("ad.PinMemory()", E.LOADER),
    ("ad.FullSync()", E.LOADER),
    ("ad.PrefetchPolicy({n})", E.ONE),
    ("ad.PrefetchPolicy(after=dict({name}={n}))", E.ONE),
    ("ad.ShardingPolicy()", E.SHARD),
    ("ad.ShardingPolicy({place})", E.SHARD),
    ("ad.ShardingPolicy(dispatch=True)", E.DEAL),
    ("ad.ShardingPolicy({place}, dispatch=True)", E.DEAL),
    ("ad.ShardingPolicy(dispatch=False)", E.SHARD),
]
PLACES = ("after_source", "after_shuffle", "after_batch", "end")
SERVICES = ["Rekeyed()", "Spawned()", "Resetting()"]


#: How often a loader is given adapters, or services of a user's.
HAS_ADAPTERS = 0.3
HAS_SERVICES = 0.15
#: How many of the sources are graphs of ``from_dataset``.
OF_DATA_SETS = 0.4

#: How often a graph ends in what has to be its last pipe.
ENDS_ON_DEVICE = 0.1
TO_DEVICE = ("{0}.to_device('cpu')", E.LOADER, 1)


@dataclass(frozen=True)
class Step:
    """One line: ``outs = text``, where {0}, {1} … are the sources."""

    text: str
    effect: Effect
    sources: tuple[int, ...]
    outs: tuple[int, ...]
    #: How often each id comes out; if that is negative, at most so often.
    times: int = 1
    #: Of a source: the number that its ids begin with, and how many there are.
    source: int = 0
    count: int = 0

    @property
    def draws(self) -> bool:
        """Whether the seed of the epoch says what comes out."""
        words = ("shuffle", "bucketbatch", "SampleMultiplexer", "sampler")
        return any(word in self.text for word in words)

    @property
    def makes_batches_of_shares(self) -> bool:
        """Whether each worker iterates its share of a data set, and makes batches of that."""
        is_iterated = any(name in self.text for name in ("Streamed", "Continued"))
        return is_iterated and "batch_size=None" not in self.text

    def __str__(self) -> str:
        named = ", ".join(f"p{out}" for out in self.outs)
        read = (f"p{source}" for source in self.sources)
        return f"{named} = {self.text.format(*read, source=self.source, count=self.count)}"


@dataclass(frozen=True)
class Recipe:
    """The lines of a graph; the last one's result is its end."""

    steps: tuple[Step, ...]
    #: What the loader is given beside the graph.
    adapters: tuple[Step, ...] = ()
    services: tuple[str, ...] = ()

    def __str__(self) -> str:
        adapters = ", ".join(each.text for each in self.adapters)
        services = ", ".join(self.services)
        given = [f"adapters = [{adapters}]"] * bool(adapters)
        given += [f"services = [{services}]"] * bool(services)
        return "\n".join([*map(str, self.steps), *given])

    @property
    def effects(self) -> set[Effect]:
        """What its lines and the adapters do."""
        return {each.effect for each in (*self.steps, *self.adapters)}

    @property
    def end(self) -> int:
        return self.steps[-1].outs[0]

    @property
    def is_noisy(self) -> bool:
        """Whether functions draw from global generators."""
        return any("noisy" in step.text for step in self.steps)

    @property
    def keeps_numbers(self) -> bool:
        """Whether numbers that functions draw may be kept: other processes would draw others."""
        return self.is_noisy and any("in_memory_cache" in step.text for step in self.steps)

    @property
    def draws_at_once(self) -> bool:
        """Whether functions may draw from global generators for two readers at a time.

        Or while these are a sampler's, which has them seeded while it draws, in another thread.
        """
        words = ("zip({0})", "sampler")
        return self.is_noisy and any(word in step.text for word in words for step in self.steps)

    @property
    def reads_twice(self) -> bool:
        """Whether a user's pipe reads its source twice, which nobody knows before it does."""
        return any("ReadTwice" in step.text for step in self.steps)

    @property
    def counts_epochs(self) -> bool:
        """Whether a sampler has another order each time for a reason that nobody can know."""
        return any("Counting" in step.text for step in self.steps)

    @property
    def stays_here(self) -> bool:
        """Whether a part of the graph is run in the loader's process in any case."""
        return bool(self.effects & {Effect.LOADER, Effect.GATHER})

    def made(self) -> tuple[Any, list[Any], list[Any]]:
        """Build the graph, the adapters and the services."""
        names = {**vars(pieces), "adapters": [], "services": []}
        exec(str(self), names)
        return names[f"p{self.end}"], names["adapters"], names["services"]


# Drawing one ------------------------------------------------------------------------------------


def drawn(seed: int) -> Recipe:
    """Return the recipe of a seed, the same each time."""
    return _Drawing(random.Random(seed)).recipe()


class _Drawing:
    """Draws line after line, each over results that nothing has read yet."""

    def __init__(self, luck: random.Random) -> None:
        self.luck = luck
        self.steps: list[Step] = []
        self.open: list[int] = []
        self.results = 0
        self.division = luck.choice(DIVISIONS)
        # Most graphs give each worker its share of every source, as programs should.
        self.share_of_divided = luck.choice([1, 1, 1, 1, 1, 1, 0.5, 0])
        self.is_divided = False

    def recipe(self) -> Recipe:
        count = self.luck.randint(2, 8)
        divided_at = self.luck.randint(0, count)
        noisy_at = self.luck.randint(divided_at, 5 * count + 5)
        self._add_source()
        for number in range(count + 1):
            if number == divided_at:
                self._divide_all()
            if number == noisy_at:
                self._over(self._pick(), *NOISE)
            if number < count:
                self._add_any()
        while len(self.open) > 1:
            self._join()
        if self.luck.random() < ENDS_ON_DEVICE:
            self._over(self._pick(), *TO_DEVICE)
        adapters = [self._adapter() for _ in range(self._few(HAS_ADAPTERS))]
        services = [self.luck.choice(SERVICES) for _ in range(self._few(HAS_SERVICES))]
        return Recipe(tuple(self.steps), tuple(adapters), tuple(services))

    def _few(self, share: float) -> int:
        return self.luck.choice([1, 1, 2]) if self.luck.random() < share else 0

    def _adapter(self) -> Step:
        text, effect = self.luck.choice(ADAPTERS)
        made = [step.text.removeprefix("{0}.").split("(")[0] for step in self.steps]
        names = [name for name in made if name in ("map", "batch", "shuffle", "filter", "cycle")]
        text = text.replace("{name}", self.luck.choice(names or ["sharding_filter"]))
        text = text.replace("{place}", repr(self.luck.choice(PLACES)))
        return Step(self._with_numbers(text), effect, (), ())

    def _add_any(self) -> None:
        chance = self.luck.random()
        if chance < 0.12 and len(self.open) < 3:
            self._add_source()
        elif chance < 0.3 and len(self.open) < 3:
            self._split()
        elif chance < 0.5 and len(self.open) > 1:
            self._join()
        else:
            source, line, draws = self._pick(), self.luck.choice(OVER_ONE), attrgetter("draws")
            # What is drawn is not to be kept or split; a graph that is refused says little.
            while self._comes_from(source, draws) and any(
                word in line[0] for word in ("cache", "split")
            ):
                if self.luck.random() < 0.1:
                    break
                line = self.luck.choice(OVER_ONE)
            self._over(source, *line)

    def _comes_from(self, result: int, is_so: Callable[[Step], bool]) -> bool:
        needed = {result}
        for step in reversed(self.steps):
            if needed & set(step.outs):
                needed |= set(step.sources)
                if is_so(step):
                    return True
        return False

    def _add_source(self) -> None:
        number = sum(not step.sources for step in self.steps)
        count = self.luck.choice([0, 1, 2, 5, 8, 12, 17, 24]) if number else 0
        count = count if number else self.luck.randint(6, 30)
        is_divided = self.luck.random() < OF_DATA_SETS
        text, times = self.luck.choice(SHARES if is_divided else SOURCES)
        for name, lines in (("{data}", DATA), ("{stream}", STREAMS), ("{sampler}", SAMPLERS)):
            while name in text:
                text = text.replace(name, self.luck.choice(lines), 1)
        if is_divided:
            # What it meets is to be divided like it.
            self._divide_all()
            # torch's random samplers are not for none.
            count = max(1, count)
        effect = Effect.SHARES if is_divided else Effect.SOURCE
        text = self._with_numbers(text)
        self._add(Step(text, effect, (), self._new(1), times, source=number, count=count))
        if self.is_divided:
            self._divide(self.open[-1])

    def _split(self) -> None:
        text, effect = self.luck.choice(SPLITS)
        branches = self.luck.choice([2, 2, 3]) if "{branches}" in text else 2
        text = text.replace("{branches}", str(branches))
        self._add(Step(text, effect, (self._pick(),), self._new(branches)))

    def _join(self) -> None:
        text, effect, times = self.luck.choice(JOINS)
        chosen = self.luck.sample(self.open, self.luck.randint(2, len(self.open)))
        names = [f"{{{place}}}" for place in range(len(chosen))]
        mixed = ", ".join(f"{name}: {weight}" for weight, name in enumerate(names, 1))
        text = text.replace("{others}", ", ".join(names[1:]))
        text = text.replace("{mixed}", f"{{{{{mixed}}}}}")
        for each in chosen:
            self.open.remove(each)
        self._add(Step(text, effect, tuple(chosen), self._new(1), times))

    def _divide_all(self) -> None:
        if not self.is_divided:
            self.is_divided = True
            for each in list(self.open):
                self._divide(each)

    def _divide(self, result: int) -> None:
        if self._comes_from(result, lambda step: step.effect is Effect.SHARES):
            return
        if self.luck.random() < self.share_of_divided:
            self.open.remove(result)
            self._over(result, *self.division, 1)

    def _over(self, source: int, text: str, effect: Effect, times: int) -> None:
        self._add(Step(self._with_numbers(text), effect, (source,), self._new(1), times))

    def _with_numbers(self, text: str) -> str:
        for name, most in (("{n}", 4), ("{m}", 20)):
            while name in text:
                text = text.replace(name, str(self.luck.randint(1, most)), 1)
        return text

    def _add(self, step: Step) -> None:
        self.steps.append(step)
        self.open.extend(step.outs)

    def _new(self, count: int) -> tuple[int, ...]:
        self.results += count
        return tuple(range(self.results - count, self.results))

    def _pick(self) -> int:
        return self.open.pop(self.luck.randrange(len(self.open)))


# Smaller ones -----------------------------------------------------------------------------------


def smaller(recipe: Recipe) -> Iterator[Recipe]:
    """Yield recipes with less in them: without a line, or with fewer items."""
    for name in ("adapters", "services"):
        given = getattr(recipe, name)
        for at in range(len(given)):
            yield replace(recipe, **{name: (*given[:at], *given[at + 1 :])})
    for step in reversed(recipe.steps):
        for source in step.sources:
            yield from _without(recipe, step, source)
    for at, step in enumerate(recipe.steps):
        for count in sorted({0, 1, 2, step.count // 2, step.count - 1}):
            if 0 <= count < step.count:
                fewer = replace(step, count=count)
                yield replace(recipe, steps=(*recipe.steps[:at], fewer, *recipe.steps[at + 1 :]))


def _without(recipe: Recipe, left_out: Step, source: int) -> Iterator[Recipe]:
    """Yield the recipe in which a source takes a step's place, if it is one."""

    def instead(result: int) -> int:
        return source if result in left_out.outs else result

    needed, steps = {instead(recipe.end)}, []
    for step in reversed(recipe.steps):
        if step is not left_out and needed & set(step.outs):
            changed = replace(step, sources=tuple(map(instead, step.sources)))
            needed |= set(changed.sources)
            steps.append(changed)
    # Without its fork a pipe would be read twice, which is another matter.
    reads = Counter(result for step in steps for result in step.sources)
    is_end = bool(steps) and steps[0].outs[0] == instead(recipe.end)
    if is_end and all(count == 1 for count in reads.values()):
        yield replace(recipe, steps=tuple(reversed(steps)))
