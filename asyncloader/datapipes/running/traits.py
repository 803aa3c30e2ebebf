"""What a pipe can do, be it ours, a user's or torch's.

This file is about the questions that others ask of a pipe whose class they do not know. It is the
only one that looks for methods and attributes that a pipe may lack, that tells our classes from
a user's, and that knows pipes by their fluent names, which torch's have as well. A pipe may
change its mind while it is set up (a shuffle can be switched off), so it is asked each time.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterator
from typing import Any

# Whose it is ----------------------------------------------------------------------------


def is_of_package(defined: Any) -> bool:
    """Whether a class, or a function, is defined in this package, not by a user."""
    return bool(defined.__module__.startswith("asyncloader."))


def is_module_of_package(name: str) -> bool:
    """Whether a module is one of this package's."""
    return name.startswith("asyncloader.")


def is_ours(pipe: Any) -> bool:
    """Whether a pipe is of a class of this package, not of a user's subclass."""
    return type(pipe).__module__.startswith("asyncloader.")


def torch_pipes(kind: str) -> tuple[type, ...]:
    """Return torch's ``IterDataPipe`` or ``MapDataPipe``, or nothing where there is none.

    It is not imported here: without torch's module there can be no torch pipe.
    """
    module = sys.modules.get("torch.utils.data.datapipes.datapipe")
    found = getattr(module, kind, None)
    return () if found is None else (found,)


def torch_methods(kind: str) -> dict[str, Any]:
    """Return what is registered with torch's ``functional_datapipe``, to add to it."""
    (pipes,) = torch_pipes(kind) or (None,)
    methods: dict[str, Any] = getattr(pipes, "functions", {})
    return methods


# What it holds --------------------------------------------------------------------------

#: Attributes that belong to a running iteration, not to the graph.
_PASSING = frozenset({"_tree", "_datapipe_iter", "_datapipe_iterator"})


def attributes(pipe: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of a pipe's own attributes, slots included."""
    yield from (item for item in list(vars_of(pipe).items()) if item[0] not in _PASSING)
    for name in slots_of(type(pipe)):
        if hasattr(pipe, name):
            yield name, getattr(pipe, name)


def vars_of(pipe: Any) -> dict[str, Any]:
    """Return the attributes that a pipe keeps in its ``__dict__``; none of its code is run."""
    fields: dict[str, Any] = getattr(pipe, "__dict__", {})
    return fields


def slots_of(cls: type) -> list[str]:
    """Return the attribute names that a class and its bases keep in ``__slots__``."""
    names: list[str] = []
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            hides = name.startswith("__") and not name.endswith("__")
            names.append(f"_{base.__name__.lstrip('_')}{name}" if hides else name)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def setting(pipe: Any, name: str, otherwise: Any) -> Any:
    """Return what a pipe has under the name of one of its parameters; a property of it may run."""
    return getattr(pipe, name, otherwise)


def can(pipe: Any, *methods: str) -> bool:
    """Whether a pipe has all these methods."""
    for method in methods:
        # Our pipes look for a name that they do not have in many places.
        if not hasattr(type(pipe), method) and _has_only_own(pipe) and method not in vars_of(pipe):
            return False
        if not callable(getattr(pipe, method, None)):
            return False
    return True


def _has_only_own(pipe: Any) -> bool:
    found = getattr(type(pipe), "__getattr__", None)
    return found is not None and is_of_package(found)


# How it is called -----------------------------------------------------------------------


def known_as(pipe: object) -> str:
    """Return the name that a pipe has in messages, if it is not that of its class, or ""."""
    return str(getattr(pipe, "known_as", ""))


def class_name(pipe: object) -> str:
    """Return the fluent name of a pipe's class where the class has one, else its own name."""
    cls = type(pipe)
    return getattr(cls, "functional_name", None) or cls.__name__


def functional_name(pipe: Any) -> str | None:
    """Return the name by which a pipe is made fluently, ours or torch's."""
    name: str | None = getattr(type(pipe), "functional_name", None)
    return name or _torch_names().get(type(pipe))


def has_name(pipe: Any, *names: str) -> bool:
    """Whether a pipe is made fluently by one of these names, which a user gave."""
    return functional_name(pipe) in names


def _torch_names() -> dict[type, str]:
    # torch keeps each method as a partial function over the class that it builds.
    return {
        function.args[0]: name
        for kind in ("IterDataPipe", "MapDataPipe")
        for name, function in torch_methods(kind).items()
        if getattr(function, "args", ())
    }


# How it is run --------------------------------------------------------------------------


def is_our_stream(pipe: Any) -> bool:
    """Whether a pipe derives from our ``IterDataPipe``."""
    return hasattr(type(pipe), "has_passes")


def has_passes(pipe: Any) -> bool:
    """Whether a pipe is run by passes; users' and torch's pipes are just iterated."""
    # Not by ``is_our_stream``: this and those that follow are asked of every pipe in every epoch.
    return hasattr(type(pipe), "has_passes") and bool(pipe.has_passes())


def is_async_pipe(pipe: Any) -> bool:
    """Whether an event loop iterates a pipe without a thread; never so for torch's pipes."""
    return hasattr(type(pipe), "has_passes") and bool(pipe.is_async())


def waits(pipe: Any) -> bool:
    """Whether a pipe needs an event loop in a ``for``; torch's pipes never do."""
    return hasattr(type(pipe), "has_passes") and bool(pipe.waits())


def reads_ahead(pipe: Any) -> bool:
    """Whether a pipe may have read more of its source than its reader asked for."""
    return is_async_pipe(pipe) or bool(getattr(pipe, "reads_ahead", False))


def hands_over(pipe: Any) -> bool:
    """Whether a pipe's items are in flight to a device until the consumer takes them."""
    return getattr(pipe, "hands_over", False) and has_passes(pipe)


def picks(pipe: Any) -> bool:
    """Whether a pipe can make single items without making all before them."""
    return is_ours(pipe) and hasattr(pipe, "picks") and bool(pipe.picks())


def can_share(pipe: Any) -> bool:
    """Whether a pipe can make the items of one share alone."""
    return is_ours(pipe) and hasattr(pipe, "can_share") and bool(pipe.can_share())


def begins_anywhere(pipe: Any) -> bool:
    """Whether a pipe without passes can begin at any of its items."""
    return is_ours(pipe) and hasattr(pipe, "iter_from")


def yields_groups(pipe: Any) -> bool:
    """Whether a pipe yields its items in groups, to be asked for instead."""
    return hasattr(pipe, "groups")


def requested_for(pipe: Any) -> float:
    """Return for how many seconds somebody has waited for an answer of a pipe's items.

    Infinite for a pipe whose items need no request: they are always wanted.
    """
    return float(pipe.requested_for()) if can(pipe, "requested_for") else math.inf


def stands_in(pipe: Any) -> bool:
    """Whether a pipe replaces pipes that run in another process."""
    return bool(getattr(pipe, "is_stand_in", False))


def times_with(pipe: Any) -> str:
    """Return whose time a pipe's is, its "source"'s or its "reader"'s, or "" for its own."""
    return str(getattr(pipe, "times_with", ""))


def stands_in_for_dealt(pipe: Any) -> bool:
    """Whether a pipe replaces one that deals items to workers."""
    return bool(getattr(pipe, "is_dealt", False))


# What is read, and how often ------------------------------------------------------------


def is_splitter(pipe: Any) -> bool:
    """Whether a pipe is read through branches that share what it holds (fork, demux)."""
    if can(pipe, "is_splitter"):
        return bool(pipe.is_splitter())
    # torch's splitters are recognised by the method that their branches call.
    return can(pipe, "get_next_element_by_instance")


def is_branch(pipe: Any) -> bool:
    """Whether a pipe is one of the streams that a splitter of ours makes, which share a pass."""
    return is_ours(pipe) and hasattr(type(pipe), "split_in")


def shares_passes(pipe: Any) -> bool:
    """Whether a splitter's readers share a pass; each share of a random split has its own."""
    return is_splitter(pipe) and functional_name(pipe) != "random_split"


def reads_again(pipe: Any) -> bool:
    """Whether a pipe reads its source more than once in a pass (cycle)."""
    return functional_name(pipe) == "cycle" and getattr(pipe, "count", None) not in (0, 1)


def reads_in_turn(pipe: Any) -> bool:
    """Whether a pipe reads its sources one after another."""
    return bool(getattr(pipe, "reads_in_turn", False))


def may_drop(pipe: Any) -> bool:
    """Whether a pipe may yield fewer items than it takes, and how many depends on them."""
    return functional_name(pipe) in {"filter", "flatmap", "demux", "header", "groupby"}


def skips_errors(pipe: Any) -> bool:
    """Whether a pipe leaves out the items that fail."""
    return getattr(pipe, "on_error", "raise") == "skip"


def raises_errors(pipe: Any) -> bool:
    """Whether a pipe raises what goes wrong, and so counts nothing that does."""
    return getattr(pipe, "on_error", "raise") == "raise"


def calls_for_each(pipe: Any) -> bool:
    """Whether a pipe yields what a function, called ahead for each item, makes of it."""
    # async_map_batches with flatten=False yields lists.
    return getattr(pipe, "calls_for_each", False) and getattr(pipe, "flattens", True)


# What it draws, and when ----------------------------------------------------------------


def is_random(pipe: Any) -> bool:
    """Whether a pipe takes a seed."""
    return can(pipe, "set_seed")


def has_no_seed(pipe: Any) -> bool:
    """Whether the seed of a pipe is not set, as far as the pipe says it; ours and torch's do."""
    return getattr(pipe, "_seed", "") is None


def is_shuffler(pipe: Any) -> bool:
    """Whether a pipe shuffles, and can be told not to."""
    return can(pipe, "set_shuffle", "set_seed")


def is_switched_on(shuffler: Any) -> bool:
    """Whether a pipe that shuffles was not told to leave it."""
    # torch's shufflers hold it under the second name.
    return bool(getattr(shuffler, "shuffles", getattr(shuffler, "_enabled", True)))


def shuffles_items(pipe: Any) -> bool:
    """Whether a pipe shuffles its items, not what is in each of them."""
    return is_shuffler(pipe) and functional_name(pipe) != "in_batch_shuffle"


def draws(pipe: Any) -> bool:
    """Whether a pipe draws an order, or a choice, from its seed."""
    return is_switched_on(pipe) if is_shuffler(pipe) else is_random(pipe)


def is_repeatable(pipe: Any) -> bool:
    """Whether a pipe's function gives the same result for the same item; yes, unless it says no."""
    return getattr(pipe, "repeatable", True) is not False or not is_ours(pipe)


def keeps_results(pipe: Any) -> bool:
    """Whether a state has the results of a pipe's function that are not settled."""
    return getattr(pipe, "keep_results", False) is True and is_ours(pipe)


def is_without_order(pipe: Any) -> bool:
    """Whether a pipe yields items as they are ready, in an order that may differ each time."""
    return bool(pipe.has_no_order()) if can(pipe, "has_no_order") else False


def goes_by_clock(pipe: Any) -> bool:
    """Whether what a pipe yields depends on the time."""
    return bool(pipe.goes_by_clock()) if can(pipe, "goes_by_clock") else False


# Where it may run -----------------------------------------------------------------------


def is_replicable(pipe: Any) -> bool:
    """Whether each worker may run a copy of a pipe; yes, unless the pipe says no."""
    return bool(pipe.is_replicable()) if can(pipe, "is_replicable") else True


def lives_with_loader(pipe: Any) -> bool:
    """Whether a pipe stays with the loader while its readers may run in workers."""
    return bool(pipe.lives_with_loader()) if can(pipe, "lives_with_loader") else False


def is_filter_of_shards(pipe: Any) -> bool:
    """Whether a pipe keeps one shard of its items, once it is told which."""
    return can(pipe, "apply_sharding")


def keeps_one_of_several(pipe: Any) -> bool:
    """Whether a pipe is a filter of shards that was told one of several."""
    return is_filter_of_shards(pipe) and getattr(pipe, "num_of_instances", 1) > 1


def takes_turns(pipe: Any) -> bool:
    """Whether a pipe gives every n-th item to the same worker; a user's own pipe may not."""
    return functional_name(pipe) == "sharding_filter"


def is_dispatch(pipe: Any) -> bool:
    """Whether the dispatching process runs a pipe and deals it: each item to one worker."""
    return functional_name(pipe) == "sharding_round_robin_dispatch"


def shards_itself(pipe: Any) -> bool:
    """Whether a source itself gives each worker different items."""
    return bool(getattr(type(pipe), "is_replicable", None)) and bool(
        getattr(pipe, "shards_itself", False)
    )


def is_sharding(pipe: Any) -> bool:
    """Whether a pipe makes the items of different workers differ."""
    return is_filter_of_shards(pipe) or is_dispatch(pipe) or shards_itself(pipe)


def sharding_group(pipe: Any) -> Any:
    """Return the only group for which a sharding pipe shards, or None if it does for all."""
    return getattr(pipe, "sharding_group_filter", None)


def acts_for(pipe: Any, group: int) -> bool:
    """Whether a sharding pipe shards for a group; one without a group shards for all."""
    return sharding_group(pipe) in (None, group)


def takes_a_group(pipe: Any) -> bool:
    """Whether a filter of shards can be told for which group it is told its shard."""
    parameters = inspect.signature(pipe.apply_sharding).parameters
    return len(parameters) > 2 or any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    )


# What adapters look for -----------------------------------------------------------------


def does_same_to_each(pipe: Any) -> bool:
    """Whether a pipe does the same to every item, so that fewer items do not change the others."""
    return functional_name(pipe) in {
        "map",
        "collate",
        "async_map",
        "thread_map",
        "threadpool_map",
        "prefetch",
        "pin_memory",
    }


def is_batch(pipe: Any) -> bool:
    """Whether a pipe puts so many items in each batch."""
    return functional_name(pipe) == "batch"


def is_prefetch(pipe: Any) -> bool:
    """Whether a pipe holds items ready, and does nothing else."""
    return functional_name(pipe) == "prefetch"


def is_fullsync(pipe: Any) -> bool:
    """Whether a pipe yields as many items on each rank."""
    return functional_name(pipe) == "fullsync"


def is_pinned(pipe: Any) -> bool:
    """Whether a pipe's items are in pinned memory, or on a device."""
    return functional_name(pipe) in ("pin_memory", "to_device")


# What a state has of it -----------------------------------------------------------------


def has_own_state(pipe: Any) -> bool:
    """Whether a pipe is a source with ``state_dict`` and ``load_state_dict``."""
    if hasattr(type(pipe), "has_own_state"):
        return bool(pipe.has_own_state())
    # Our pipes look for a method that they lack in other modules, which takes long.
    return not is_ours(pipe) and hasattr(pipe, "load_state_dict")


def makes_again(pipe: Any) -> bool:
    """Whether to resume may make items of a pipe again; a user's or torch's pipe always does."""
    return bool(getattr(pipe, "makes_again", True))
