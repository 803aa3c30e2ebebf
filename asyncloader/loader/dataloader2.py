"""The data loader.

This file is about ``DataLoader2``: a graph of pipes, changed once by adapters, run by a
reading service, and iterated with ``async for`` or ``for``.
"""

from __future__ import annotations

import copy
import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Self, TypeVar, Unpack, overload

from asyncloader.adapters.base import AdapterFn, adapted
from asyncloader.arguments import checked_flag, kind_name
from asyncloader.datapipes.base import IterDataPipe, MapDataPipe, is_iter_pipe, is_map_pipe
from asyncloader.datapipes.converting import MapToIterConverter
from asyncloader.datapipes.full_sync import Uneven
from asyncloader.datapipes.rollout_calls import InFlight
from asyncloader.datapipes.running.cursors import set_numbers
from asyncloader.errors import IteratorInvalidated, LoaderClosed
from asyncloader.graph.cut import places_of
from asyncloader.graph.edit import as_run, copy_graph
from asyncloader.graph.outline import nodes_of
from asyncloader.graph.recorded import as_recorded, unrepeatable
from asyncloader.graph.refusals import Purpose, check_graph
from asyncloader.graph.walk import Graph
from asyncloader.loader.engine import CLOSED, Engine
from asyncloader.loader.from_dataset import DataSetSettings, WorkerKind
from asyncloader.loader.item_buffer import ItemBuffer
from asyncloader.loader.iterators import AsyncIterator, DataLoader2Iterator, SyncIterator
from asyncloader.loader.lifecycle import Lifecycle
from asyncloader.loader.long_waits import Wait
from asyncloader.loader.page.asking import is_asked_for
from asyncloader.loader.paused import Paused
from asyncloader.loader.stats import LoaderStats, stats_of
from asyncloader.loader.torch_names import batcher_of, dataset_of, no_sampler, no_set_epoch
from asyncloader.places.elastic import Role
from asyncloader.places.snapshot import without_graph
from asyncloader.places.states import LoaderStates, own_state, unpickled_graph, workers_of
from asyncloader.services.base import ReadingServiceInterface
from asyncloader.services.hooks import ServiceHooks
from asyncloader.services.in_process import InProcessReadingService

if TYPE_CHECKING:
    from torch import Tensor

    from asyncloader.loader.collated import CollatingOptions, Keyed, Number, Text, Unknown
    from asyncloader.loader.page.watch import Watch

T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
K = TypeVar("K")
Latest = TypeVar("Latest", bound=DataLoader2Iterator[Any])


_F = TypeVar("_F", bound=Callable[..., None])


def _leading_to_from_dataset(init: _F) -> _F:
    """Let a constructor that gets arguments of torch's ``DataLoader`` say where they belong."""

    own = inspect.signature(init).parameters

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in kwargs.keys() - own.keys():
            if name in inspect.signature(type(self).from_dataset).parameters:
                raise TypeError(
                    f"DataLoader2 has no parameter {name!r}; to pass it as to torch's DataLoader,"
                    " use DataLoader2.from_dataset(dataset, ...). For a graph of pipes, batch and"
                    " shuffle are pipes, and num_workers belongs to"
                    " reading_service=MultiProcessingReadingService(...)"
                )
        init(self, *args, **kwargs)

    return checked  # type: ignore[return-value]  # it takes what init takes


class DataLoader2(Generic[T_co]):
    """Load the items of a graph, by ``async for`` or ``for``.

    The graph and the service are copied (the data inside the pipes is not), so both can be
    used again elsewhere. Adapters are applied once, here. Nothing runs before the first item is
    asked for, ``await loader.start()``, or ``with`` or ``async with``, which also shut the loader
    down at the end; but where worker processes will need torch, and your program has it, the
    process that forks them begins to import it now. ``seed=1`` is the same as ``loader.seed(1)`` at
    once. With ``acknowledge=True`` a state counts the items for which ``ack`` was called, and not
    those that were yielded.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> with DataLoader2(IterableWrapper(range(4)).batch(2)) as loader:
    ...     list(loader)
    [[0, 1], [2, 3]]
    """

    @overload
    def __init__(
        self,
        datapipe: IterDataPipe[T_co] | MapDataPipe[T_co],
        datapipe_adapter_fn: Iterable[AdapterFn] | AdapterFn | None = None,
        reading_service: ReadingServiceInterface | None = None,
        *,
        seed: int | None = None,
        acknowledge: bool = False,
    ) -> None: ...

    # One of torch's pipes, or None if load_state_dict will bring the graph.
    @overload
    def __init__(
        self: DataLoader2[Any],
        datapipe: Any,
        datapipe_adapter_fn: Iterable[AdapterFn] | AdapterFn | None = None,
        reading_service: ReadingServiceInterface | None = None,
        *,
        seed: int | None = None,
        acknowledge: bool = False,
    ) -> None: ...

    @_leading_to_from_dataset
    def __init__(
        self,
        datapipe: Any,
        datapipe_adapter_fn: Iterable[AdapterFn] | AdapterFn | None = None,
        reading_service: ReadingServiceInterface | None = None,
        *,
        seed: int | None = None,
        acknowledge: bool = False,
    ) -> None:
        self.reading_service = _own_service(reading_service)
        lifecycle = Lifecycle(self.reading_service)
        self._hooks = lifecycle.hooks
        self._acknowledges = checked_flag("acknowledge", acknowledge)
        # The latest iterator's; that of the present epoch is the engine's.
        self._buffer = ItemBuffer(acknowledges=self._acknowledges)
        # Lightning sets an attribute named _iterator, which torch's loader has, to None.
        self._live_iterator: weakref.ref[DataLoader2Iterator[T_co]] | None = None
        #: The adapted graph; if none was given, None until ``load_state_dict`` brings it.
        self.datapipe: Any = None
        self._graph: Graph | None = None
        self._engine = Engine(lifecycle, self._buffer.renewed())
        self._loaded: dict[str, Any] | None = None
        self._state_has_graph = True
        _check_adapters(datapipe_adapter_fn)
        if datapipe is not None:
            self._use_graph(adapted(copy_graph(iter_pipe(datapipe)), datapipe_adapter_fn))
        if seed is not None:
            self.seed(seed)
        self._hooks.expect_start()

    @classmethod
    def from_state(
        cls,
        state: dict[str, Any] | list[dict[str, Any]],
        reading_service: ReadingServiceInterface | None = None,
        *,
        datapipe: Any = None,
        acknowledge: bool = False,
    ) -> DataLoader2[Any]:
        """Return a loader that resumes from a state, or from a list of the states of all ranks.

        Without a ``datapipe`` the graph in the state is unpickled, which may run any code:
        only do that with a state from a source you trust.
        """
        loader: DataLoader2[Any] = cls(
            datapipe, None, reading_service, **_acknowledging(acknowledge)
        )
        loader.load_state_dict(state)
        return loader

    @overload
    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        batch_size: int | None = ...,
        shuffle: bool | None = ...,
        sampler: Iterable[Any] | None = ...,
        batch_sampler: Iterable[Any] | None = ...,
        num_workers: int | Literal["auto"] = ...,
        *,
        collate_fn: Callable[[Any], U],
        pin_memory: bool = ...,
        drop_last: bool = ...,
        timeout: float = ...,
        worker_init_fn: Callable[[int], Any] | None = ...,
        multiprocessing_context: Any = ...,
        generator: Any = ...,
        prefetch_factor: int | None = ...,
        persistent_workers: bool = ...,
        pin_memory_device: str = ...,
        in_order: bool = ...,
        seed: int | None = ...,
        distributed: Any = ...,
        uneven: Uneven = ...,
        on_worker_death: Literal["raise", "restart"] = ...,
        workers: WorkerKind | None = ...,
        acknowledge: bool = ...,
    ) -> DataLoader2[U]: ...

    # Without collate_fn: what torch's default_collate makes of items of these types.
    @overload
    @classmethod
    def from_dataset(
        cls,
        dataset: Unknown,
        batch_size: int = ...,
        shuffle: bool | None = ...,
        **options: Unpack[CollatingOptions],
    ) -> DataLoader2[Any]: ...

    @overload
    @classmethod
    def from_dataset(
        cls,
        dataset: Keyed[Number],
        batch_size: int = ...,
        shuffle: bool | None = ...,
        **options: Unpack[CollatingOptions],
    ) -> DataLoader2[Tensor]: ...

    @overload
    @classmethod
    def from_dataset(
        cls,
        dataset: Keyed[Text],
        batch_size: int = ...,
        shuffle: bool | None = ...,
        **options: Unpack[CollatingOptions],
    ) -> DataLoader2[list[Text]]: ...

    @overload
    @classmethod
    def from_dataset(
        cls,
        dataset: Keyed[tuple[Number, ...]],
        batch_size: int = ...,
        shuffle: bool | None = ...,
        **options: Unpack[CollatingOptions],
    ) -> DataLoader2[list[Tensor]]: ...

    @overload
    @classmethod
    def from_dataset(
        cls,
        dataset: Keyed[Mapping[K, Number]],
        batch_size: int = ...,
        shuffle: bool | None = ...,
        **options: Unpack[CollatingOptions],
    ) -> DataLoader2[dict[K, Tensor]]: ...

    # Of others it cannot be told.
    @overload
    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        batch_size: int | None = ...,
        shuffle: bool | None = ...,
        sampler: Iterable[Any] | None = ...,
        batch_sampler: Iterable[Any] | None = ...,
        num_workers: int | Literal["auto"] = ...,
        collate_fn: Callable[[Any], Any] | None = ...,
        pin_memory: bool = ...,
        drop_last: bool = ...,
        timeout: float = ...,
        worker_init_fn: Callable[[int], Any] | None = ...,
        multiprocessing_context: Any = ...,
        generator: Any = ...,
        *,
        prefetch_factor: int | None = ...,
        persistent_workers: bool = ...,
        pin_memory_device: str = ...,
        in_order: bool = ...,
        seed: int | None = ...,
        distributed: Any = ...,
        uneven: Uneven = ...,
        on_worker_death: Literal["raise", "restart"] = ...,
        workers: WorkerKind | None = ...,
        acknowledge: bool = ...,
    ) -> DataLoader2[Any]: ...

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = True,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        distributed: Any = False,
        uneven: Uneven = "drop",
        on_worker_death: Literal["raise", "restart"] = "raise",
        workers: WorkerKind | None = None,
        acknowledge: bool = False,
    ) -> DataLoader2[Any]:
        """Return a loader of a data set, made as torch's ``DataLoader`` is made.

        The parameters are torch's, and ``loader.datapipe`` is the graph that they make.
        ``num_workers="auto"`` measures how many workers are best. Workers are processes, or
        with ``workers="threads"`` threads of this process, which share the data set and this
        process's random generators: there a function draws from those of ``get_worker_info()``.
        Where there are no worker processes, on Windows, they are threads unless that is said. They
        stay alive between epochs, whatever ``persistent_workers`` says. An iterable data set takes
        each worker's share itself, by ``get_worker_info``. A sampler is copied for each epoch and
        draws from the loader's seed, whatever generators it holds, so that it resumes; a
        ``set_epoch`` of it is called. ``seed`` is that of
        the loader; otherwise it is drawn from ``generator``, if there is one. ``distributed``
        divides the batches among the ranks of a torch.distributed run: True for all, or the
        ``group`` of a DistributedReadingService, as ``mesh["dp"]``. A DistributedSampler is taken
        for that: its shares are those of its rank, of whole batches, and of the loader's seed.
        ``uneven`` says, as there, what happens to batches that not all ranks have.
        ``acknowledge`` is that of the loader.
        """
        recipe = DataSetSettings(
            dataset=dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
            seed=seed,
            distributed=distributed,
            uneven=uneven,
            on_worker_death=on_worker_death,
            workers=workers,
        ).without_ranks_sampler()
        loader: DataLoader2[Any] = cls(
            recipe.graph(), None, recipe.service(), **_acknowledging(acknowledge)
        )
        loader._state_has_graph = False
        if (first := recipe.first_seed()) is not None:
            loader.seed(first)
        return loader

    def __iter__(self) -> SyncIterator[T_co]:
        return self._latest(SyncIterator(self._engine, self._next_buffer()))

    def __aiter__(self) -> AsyncIterator[T_co]:
        return self._latest(AsyncIterator(self._engine, self._next_buffer()))

    def __len__(self) -> int:
        """The number of items in an epoch; a TypeError if the graph does not know it.

        If the service has an init function, or changes the graph itself, that number is not
        known before the loader has started.
        """
        self._check_has_graph()
        return self._engine.lifecycle.length(self.datapipe)

    @property
    def dataset(self) -> Any:
        """The data set that the graph's only source looks up; AttributeError if there is none."""
        return dataset_of(self.datapipe)

    @property
    def batch_size(self) -> int | None:
        """The size of the batches, or None where not exactly one ``batch`` says it."""
        batcher = batcher_of(self.datapipe)
        return None if batcher is None else batcher.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether a last batch that is not full is left out."""
        batcher = batcher_of(self.datapipe)
        return batcher is not None and batcher.drop_last

    @property
    def sampler(self) -> NoReturn:
        """Not there: an AttributeError says that the graph decides the order."""
        no_sampler("sampler")

    @property
    def batch_sampler(self) -> NoReturn:
        """Not there: an AttributeError says that the graph decides the order."""
        no_sampler("batch_sampler")

    @property
    def set_epoch(self) -> NoReturn:
        """Not there: an AttributeError says that the loader counts epochs itself."""
        no_set_epoch()

    @property
    def num_workers(self) -> int:
        """In how many workers the graph runs."""
        return self._hooks.worker_count()

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of what the item that was yielded last was made of, where they are recorded.

        That is behind a pipe with ``repeatable=False``: a number is the position of an item in the
        stream that this pipe reads, and the same after a resume; before a ``sharding_filter``
        divided it, if only one-to-one pipes come in between. Elsewhere there are none.
        """
        numbers = self._engine.numbers()
        return numbers and tuple(map(self._engine.lifecycle.whole_number, numbers))

    @property
    def is_padding(self) -> bool:
        """Whether the item that was yielded last is padding, which a metric must not count.

        A rank repeats its last item where others have more and the service of the ranks has
        ``uneven="pad"``; otherwise nothing is padding.
        """
        return self._engine.is_padding(self._buffer)

    def seed(self, seed: int) -> None:
        """Begin this seed's sequence of epochs with the next epoch.

        The same seed gives the same sequence every time. Raises ValueError for anything but
        an integer from 0 to 2**64 - 1.
        """
        self._engine.seed(seed)
        self._loaded = None

    def limit(self, num_batches: int | None) -> None:
        """End iteration after ``num_batches`` more items without ending the epoch.

        ``resume`` lets as many pass again. The limit holds for this and later iterators,
        until ``limit(None)``.
        """
        self._buffer.limit(num_batches)
        self._hooks.limit(num_batches)

    def pause(self) -> None:
        """Yield nothing until ``resume``, and let no worker work; items in progress finish.

        This holds for this and later iterators, which end at once meanwhile. Pipes that run
        ahead in this process (prefetch, async_map, thread_map) read no more of their source.
        """
        self._buffer.pause(lasting=True)
        self._engine.lifecycle.pause()

    def resume(self) -> None:
        """Continue after ``pause`` or a limit."""
        self._buffer.resume()
        self._engine.lifecycle.resume()

    def paused(self, in_flight: InFlight = "wait") -> Paused:
        """Return a pause in which the graph's ``rollout`` begins no call, to send new weights.

        It is entered by ``async with``, or by ``with`` in a program without an event loop. With
        ``in_flight="wait"`` it begins once the calls that run have ended, with "keep" at once, and
        they run on. With "abort" they are cancelled, and are made again later, which is no failure:
        what a call returns all the same is taken, and it may keep a part by
        ``raise Again(partial)``. The loader goes on to yield what is finished.

        >>> from asyncloader.datapipes.iter import IterableWrapper
        >>> async def generate(prompt):
        ...     return prompt.upper()
        >>> with DataLoader2(IterableWrapper("ab").rollout(generate)) as loader:
        ...     for answer in loader:
        ...         with loader.paused():
        ...             pass  # send the weights
        """
        if in_flight not in ("wait", "keep", "abort"):
            raise ValueError(f'in_flight must be "wait", "keep" or "abort", got {in_flight!r}')
        self._check_has_graph()
        if not self._engine.lifecycle.gates():
            raise ValueError(
                "paused() is for the calls of a rollout, and this graph has none; pause() stops the"
                " whole loader"
            )
        return Paused(self._engine.lifecycle.gates, in_flight)

    def ack(self, count: int = 1) -> None:
        """Acknowledge the ``count`` oldest items that were yielded and not acknowledged.

        From then on a state counts them, so they do not come again after a resume; before that
        they do. Only the state is lasting: what was acknowledged after it comes again too. This
        needs a loader that was made with ``acknowledge=True``. It may be called from any thread,
        and after the end of an epoch until the next one begins. A ValueError says how many items
        there are to acknowledge, if those are fewer than ``count``. Where a state is loaded while
        items of before are still around, acknowledge by the iterator that yielded them: its ``ack``
        refuses those.

        >>> from asyncloader.datapipes.iter import IterableWrapper
        >>> pipe = IterableWrapper(range(5))
        >>> with DataLoader2(pipe, acknowledge=True) as loader:
        ...     items = iter(loader)
        ...     print([next(items) for _ in range(4)])
        ...     loader.ack(2)
        ...     state = loader.state_dict()
        [0, 1, 2, 3]
        >>> with DataLoader2.from_state(state, datapipe=pipe) as loader:
        ...     list(loader)
        [2, 3, 4]
        """
        self._engine.ack(count)

    @property
    def unacknowledged(self) -> int:
        """How many items were yielded and not acknowledged; 0 without ``acknowledge=True``.

        The next epoch begins only when there is none.
        """
        return self._engine.unacknowledged

    def state_dict(self, *, include_datapipe: bool | None = None) -> dict[str, Any]:
        """Return the loader's place as plain data, at any moment and without waiting.

        A loader that loads it yields exactly the items that this loader would have yielded
        next, if the functions of the graph repeat: called again with the same item, they have
        to give the same result. Where one that does not decides how many items there are (in
        ``filter`` or ``flatmap``, say), items are lost or come twice: say so by
        ``repeatable=False``, or do that in your loop, behind the loader. Only items that were
        yielded count, not those that were prefetched; with ``acknowledge=True`` only those that
        were acknowledged.
        Without ``include_datapipe`` the graph is left out, and the state is small and can be
        JSON. That is the default for a loader of ``from_dataset``, whose graph holds the data
        set.
        """
        if include_datapipe is None:
            include_datapipe = self._state_has_graph
        if self._loaded is not None and self._engine.is_set_back:
            return copy.deepcopy(self._loaded if include_datapipe else without_graph(self._loaded))
        self._check_has_graph()
        (seeds, start), role = self._engine.place(self._buffer), _role(self._hooks)
        adjustable = self._hooks.adjustable()
        if start is not None and start.position and adjustable is not None:
            cursors, workers = adjustable.portable(start.cursors, role.workers)
            start, role = replace(start, cursors=cursors), replace(role, workers=workers)
        return self._states.take(
            seeds,
            start,
            self._engine.lifecycle.checkpoint(),
            role=role,
            why_not=self._engine.lifecycle.why_no_state(),
            include_datapipe=include_datapipe,
        )

    def load_state_dict(self, state_dict: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Resume from a state, or a list of the states of all ranks, with the next iteration.

        The iterator that runs ends with an IteratorInvalidated, and what was delivered and not
        acknowledged counts no more. With as many ranks as before, each rank may load its own
        state; otherwise every rank loads the list of all of them. All ranks load at the same
        moment. The loader's graph has to be the same as in the state, or a SnapshotError says what
        differs; nothing is unpickled then. A loader that was made with ``datapipe=None`` unpickles
        the graph in the state, which may run any code: only load states that you trust. A state
        that is refused leaves the loader, and its iterator, as they were.
        A service with a state of its own that has started already is finalized at the next
        start, with the first item, and starts again from its state.
        """
        self._engine.check_open()
        own = self.datapipe
        graph = unpickled_graph(state_dict) if own is None else own
        states = self._states if own is not None else LoaderStates(Graph(graph))
        role = _role(self._hooks)
        adjustable = self._hooks.adjustable()
        is_chosen = adjustable is not None and adjustable.chooses_workers
        if is_chosen and isinstance(state_dict, dict):
            role = replace(role, workers=workers_of(state_dict, role.workers))
        seeds, start, service_state = states.read(state_dict, role)
        if adjustable is not None:
            adjustable.resume_with(role.workers)
        loaded = copy.deepcopy(own_state(state_dict, role))
        self._engine.lifecycle.restore_from(service_state)
        if own is None or self._engine.lifecycle.is_outdated:
            self._use_graph(graph)
        latest = self._former_iterator()
        if latest is None or latest.has_begun():
            self._supersede("a state was loaded, which the next iterator of the loader begins with")
            self._buffer = self._buffer.renewed()
        self._engine.begin_with(seeds, start, self._buffer.renewed())
        self._states.forget_lengths()
        self._loaded = loaded

    def stats(self) -> LoaderStats:
        """Return how the loader is doing; to be called at any moment.

        It says how many items there were, who waited for whom, and where the time went.
        Printed, it is a table, and ``stats().verdict()`` says who is the bottleneck.
        """
        adjustable, graph = self._hooks.adjustable(), self._graph
        places = () if graph is None else places_of(graph, self._hooks.worker_count())
        return stats_of(
            () if graph is None else graph.pipes,
            self._engine.watching,
            self._hooks.worker_stats(),
            () if graph is None else nodes_of(graph, places),
            epochs=self._engine.epochs,
            items=self._buffer.passed,
            restarts=self._hooks.restarts(),
            earlier=self._engine.earlier,
            choices=() if adjustable is None else tuple(adjustable.choices()),
            left_out=self._engine.left_out(),
            rollouts=self._engine.lifecycle.rollouts(),
            unacknowledged=self._engine.unacknowledged if self._acknowledges else None,
            waits=self._engine.long_waits.latest,
        )

    def why(self) -> Wait | None:
        """Return what the consumer waits for now, and who holds it up; None if it does not wait.

        ``stats().waits`` has the same of a wait that has lasted a minute. Ask in another thread:
        the consumer's own does not wait while it asks.
        """
        return self._engine.long_waits.now()

    def watch(self, name: str = "") -> Watch:
        """Show live how the loader is doing, on a page that this process serves to a browser.

        ``watch().url`` is its address on this machine, with a token that is made for it. All
        watched loaders share one page, each under its name. The page is there until ``close()``,
        or the end of a ``with``, of the last of them. Nothing is looked at while nobody looks.
        Needs the extra ``asyncloader[watch]``, otherwise it raises ImportError.
        """
        # Few programs need the server.
        from asyncloader.loader.page.watch import PAGES

        return PAGES.watch(self, name)

    async def start(self) -> None:
        """Start the reading service now, instead of with the first item."""
        await self._engine.start()

    async def aclose(self) -> None:
        """Shut down within three seconds; afterwards iterating raises LoaderClosed."""
        self._invalidate(LoaderClosed(CLOSED))
        await self._engine.aclose()

    def shutdown(self) -> None:
        """Shut down within three seconds, from a thread; the async form is ``aclose``."""
        self._engine.check_may_shut_down()
        self._invalidate(LoaderClosed(CLOSED))
        self._engine.shutdown()

    async def __aenter__(self) -> Self:
        if self.datapipe is not None:
            await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        if self.datapipe is not None:
            self._engine.start_sync()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "a DataLoader2 holds threads and processes and cannot be copied or pickled; make"
            " another one of the same graph, or one with"
            " DataLoader2.from_state(loader.state_dict())"
        )

    def __repr__(self) -> str:
        return f"DataLoader2({self.datapipe!r}, reading_service={self.reading_service!r})"

    def _use_graph(self, datapipe: Any) -> None:
        if self._acknowledges:
            check_graph(datapipe, Purpose.ACKNOWLEDGE)
        self.datapipe = datapipe
        # The user's own pipes stay as they are.
        self._graph = graph = Graph(copy_graph(datapipe))
        set_numbers(graph.pipes)
        self._states = states = LoaderStates(graph)
        hooks, lifecycle = self._hooks, self._engine.lifecycle
        lifecycle.find_whole_number = lambda: states.whole_number(_role(hooks))
        if unrepeatable(graph) is not None:
            # It is run as another one, in which nobody would find what is refused.
            check_graph(graph, Purpose.RUN)
            if not self._acknowledges:
                check_graph(graph, Purpose.DELIVER)
        lifecycle.use_graph(Graph(as_recorded(as_run(copy_graph(graph.end)))))

    def _check_has_graph(self) -> None:
        if self.datapipe is None:
            raise RuntimeError(
                "this loader was made with datapipe=None and has no graph yet: call"
                " load_state_dict first"
            )

    def _repr_html_(self) -> str:
        return self.stats()._repr_html_()

    def _next_buffer(self) -> ItemBuffer:
        self._check_has_graph()
        # Here, so that the present iterator is not invalidated.
        self._engine.check_acknowledged()
        if is_asked_for():
            from asyncloader.loader.page.watch import PAGES

            PAGES.show(self)
        self._buffer = self._buffer.renewed()
        return self._buffer

    def _latest(self, iterator: Latest) -> Latest:
        self._supersede(
            "its loader was iterated again, and only the latest iterator of a loader is live"
        )
        self._live_iterator = weakref.ref(iterator)
        if self._engine.refusal is not None:
            iterator.invalidate(self._engine.refusal)
        return iterator

    def _supersede(self, why: str) -> None:
        """End the latest iterator, by an error if it had not yielded all its items."""
        if (former := self._former_iterator()) is not None:
            # A program may begin an epoch before it has seen the end of the one before (Ignite).
            reason = IteratorInvalidated(f"this iterator has been invalidated: {why}")
            former.supersede(reason, self._is_whole)

    def _is_whole(self, count: int | None) -> bool:
        """Whether so many items are an epoch, as far as the graph knows its length."""
        if count is None:
            return False
        try:
            return count == len(self)
        except Exception:  # noqa: BLE001 - a user's __len__ ran, and nobody asked for the length
            return False

    def _invalidate(self, reason: BaseException) -> None:
        if (iterator := self._former_iterator()) is not None:
            iterator.invalidate(reason)

    def _former_iterator(self) -> DataLoader2Iterator[T_co] | None:
        return None if self._live_iterator is None else self._live_iterator()


def _acknowledging(acknowledge: bool) -> dict[str, bool]:
    """Return the argument of a constructor; none where a subclass may not know it."""
    return {"acknowledge": True} if checked_flag("acknowledge", acknowledge) else {}


def iter_pipe(datapipe: Any) -> Any:
    """Return what a loader iterates of a pipe: a map pipe is looked up by its keys in turn."""
    if is_iter_pipe(datapipe):
        return datapipe
    if is_map_pipe(datapipe):
        return MapToIterConverter(datapipe)
    raise TypeError(
        f"DataLoader2 takes a pipe, got {kind_name(datapipe)}; {_way_to_a_pipe(datapipe)}"
    )


def _way_to_a_pipe(data: object) -> str:
    if isinstance(data, type):
        return f"make an object of it: {data.__name__}(...)"
    wrapper = "iter.IterableWrapper(...), or in map.SequenceWrapper(...) to look items up,"
    if hasattr(data, "__getitem__") and not hasattr(data, "__iter__"):
        wrapper = "map.SequenceWrapper(...)"
    return (
        f"wrap it in {wrapper} first, from asyncloader.datapipes; or use"
        " DataLoader2.from_dataset(...), which takes what torch's DataLoader takes"
    )


def _check_adapters(adapters: object) -> None:
    if isinstance(adapters, ReadingServiceInterface):
        raise TypeError(
            f"datapipe_adapter_fn must be an adapter, got the reading service {adapters!r}; pass it"
            " as reading_service=..."
        )


#: The attributes of our services that hold the user's functions.
_FUNCTIONS = ("init_fn", "reset_fn", "worker_init_fn", "worker_reset_fn")


def _own_service(service: ReadingServiceInterface | None) -> ReadingServiceInterface:
    """Return a copy of a service with the same functions; in-process if none was given."""
    if service is None:
        return InProcessReadingService()
    if not isinstance(service, ReadingServiceInterface):
        raise TypeError(
            f"reading_service must derive from ReadingServiceInterface, got {kind_name(service)}"
        )
    try:
        return copy.deepcopy(service, {id(each): each for each in _functions_of(service)})
    except Exception as error:
        raise TypeError(
            f"{service!r} cannot be copied, and a loader runs a copy of its service: {error!r};"
            " start threads, open files and make locks in initialize, not in __init__"
        ) from error


def _functions_of(service: Any) -> Iterator[Any]:
    for name in _FUNCTIONS:
        function = getattr(service, name, None)
        # A method of the service itself belongs to its copy.
        if getattr(function, "__self__", None) is not service:
            yield function
    for each in getattr(service, "reading_services", ()):
        yield from _functions_of(each)


def _role(hooks: ServiceHooks) -> Role:
    rank, ranks = hooks.rank()
    return Role(hooks.worker_count(), hooks.is_in_order(), rank, ranks, hooks.pads())
