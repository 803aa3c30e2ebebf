"""Loops that are written for torchdata's StatefulDataLoader, as trainers have them.

What verl, torchtitan, SkyRL and torchdata's own tests count on when they call a loader: which
moments there are, and what each yields.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, DistributedSampler, RandomSampler, Sampler

from asyncloader import DataLoader2
from tests.leaks import leaves_nothing

EPOCHS = 3


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    file = f"file://{tmp_path}/ranks"
    torch.distributed.init_process_group("gloo", init_method=file, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


class Prompts(Dataset[int]):
    def __len__(self) -> int:
        return 13

    def __getitem__(self, number: int) -> int:
        return number


PROMPTS = Prompts()


class WithoutSampler(DataLoader2[Any]):
    """A loader for loops that ask of which class the sampler is."""

    sampler = None  # type: ignore[assignment]  # a property of the base


def prompts(workers: int, **settings: Any) -> DataLoader2[Any]:
    """Return a loader that is made as verl makes one for prompts: four steps an epoch."""
    sampler = RandomSampler(PROMPTS, generator=torch.Generator())
    return WithoutSampler.from_dataset(
        dataset=PROMPTS,
        batch_size=3,
        num_workers=workers,
        drop_last=True,
        collate_fn=torch.tensor,
        sampler=sampler,
        seed=7,
        **settings,
    )


class Job:
    """A run that is killed after some steps, and what it trained on."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        self.workers = workers
        self.seen: list[list[int]] = []
        self.step = 0

    def save(self, loader: DataLoader2[Any]) -> None:
        self.folder.mkdir(exist_ok=True)
        torch.save(loader.state_dict(), self.folder / f"{self.step}.pt")

    def load(self, loader: DataLoader2[Any]) -> None:
        if steps := [int(each.stem) for each in self.folder.glob("*.pt")]:
            self.step = max(steps)
            file = self.folder / f"{self.step}.pt"
            loader.load_state_dict(torch.load(file, weights_only=False))


def by_epochs(job: Job, until: int) -> None:
    """The number of the epoch follows from the step, and the state is saved before its end."""
    with prompts(job.workers) as loader, DataLoader2.from_dataset(PROMPTS, 4) as validation:
        assert (len(loader), len(validation)) == (4, 4)
        job.load(loader)
        for _ in range(job.step // len(loader), EPOCHS):
            for batch in loader:
                job.step += 1
                job.seen.append(batch.tolist())
                if job.step % 3 == 0:
                    assert sum(len(each) for each in validation) == len(PROMPTS)
                job.save(loader)
                assert not isinstance(loader.sampler, RandomSampler)
                if job.step == until:
                    return


def by_an_iterator_that_is_kept(job: Job, until: int) -> None:
    """Batches are fetched one by one, over the ends of epochs."""
    with prompts(job.workers) as loader:
        job.load(loader)
        batches: Iterator[Any] | None = None
        while job.step < until:
            try:
                batches = batches or iter(loader)
                batch = next(batches)
            except StopIteration:
                batches = iter(loader)
                batch = next(batches)
            job.step += 1
            job.seen.append(batch.tolist())
            job.save(loader)


def with_a_sampler_of_ranks(job: Job, until: int) -> None:
    """The sampler is told the epoch, which the loader counts itself."""
    sampler = DistributedSampler(PROMPTS, num_replicas=1, rank=0, shuffle=True, drop_last=True)
    with DataLoader2.from_dataset(
        PROMPTS, batch_size=3, sampler=sampler, num_workers=job.workers, drop_last=True
    ) as loader:
        job.load(loader)
        for epoch in range(job.step // len(loader), EPOCHS):
            sampler.set_epoch(epoch)
            for batch in loader:
                job.step += 1
                job.seen.append(batch.tolist())
                job.save(loader)
                if job.step == until:
                    return


Loop = Callable[[Job, int], None]


def run(loop: Loop, folder: Path, workers: int, *ends: int) -> list[list[int]]:
    seen = []
    for until in ends:
        job = Job(folder, workers)
        loop(job, until)
        seen += job.seen
    return seen


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("loop", [by_epochs, by_an_iterator_that_is_kept])
def test_a_loop_of_a_trainer_resumes_with_what_would_have_come(
    loop: Loop, workers: int, tmp_path: Path
) -> None:
    whole = run(loop, tmp_path / "whole", workers, 12)
    assert len(whole) == 12
    with leaves_nothing():
        for killed in (1, 3, 5, 11):
            assert run(loop, tmp_path / f"{killed}", workers, killed, 12) == whole


def test_a_loop_with_a_sampler_of_ranks_resumes(one_rank: None, tmp_path: Path) -> None:
    whole = run(with_a_sampler_of_ranks, tmp_path / "whole", 2, 12)
    assert len(whole) == 12
    assert run(with_a_sampler_of_ranks, tmp_path / "killed", 2, 5, 12) == whole


def test_a_state_of_the_last_batch_is_an_empty_rest_as_torchdatas(tmp_path: Path) -> None:
    # A loop that begins with the next epoch, by its step, finds no batch in it; one that keeps an
    # iterator goes on.
    assert len(run(by_epochs, tmp_path / "epochs", 0, 4, 12)) == 8
    kept = by_an_iterator_that_is_kept
    assert run(kept, tmp_path / "kept", 0, 4, 12) == run(kept, tmp_path / "whole", 0, 12)


async def test_a_plain_for_in_a_task_yields_states_that_resume() -> None:
    def fed(loader: DataLoader2[Any]) -> Iterator[Any]:
        for _ in range(2):
            yield from iter(loader)

    seen, states = [], []

    async def feed(loader: DataLoader2[Any]) -> None:
        for batch in fed(loader):
            await asyncio.sleep(0)
            seen.append(batch.tolist())
            states.append(loader.state_dict())

    async with prompts(2) as loader:
        with pytest.warns(RuntimeWarning, match="use `async for`"):
            await feed(loader)
    async with prompts(2) as loader:
        loader.load_state_dict(states[5])
        assert [batch.tolist() async for batch in loader] == seen[6:]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_that_is_made_before_a_state_is_loaded_begins_there(workers: int) -> None:
    # A trainer may take its iterator when it is made, load a checkpoint, and then the beginning,
    # from which it skips by itself; and it goes back to the beginning for each epoch.
    with prompts(workers) as loader:
        beginning, batches = loader.state_dict(), enumerate(loader)
        first = [batch.tolist() for _, batch in batches]
        loader.load_state_dict(beginning)
        assert [batch.tolist() for batch in loader] == first
    with prompts(workers) as loader:
        beginning, batches = loader.state_dict(), iter(loader)
        next(batches)
        later = loader.state_dict()
    with prompts(workers) as loader:
        beginning, batches = loader.state_dict(), iter(loader)
        loader.load_state_dict(later)
        assert next(batches).tolist() == first[1]
    with prompts(workers) as loader:
        beginning, batches = loader.state_dict(), iter(loader)
        loader.load_state_dict(later)
        loader.load_state_dict(beginning)
        assert [batch.tolist() for batch in batches] == first


class CountingSampler(Sampler[int]):
    """A sampler that counts, goes back at its end, and has a state for who asks."""

    def __init__(self) -> None:
        self.position = 0
        self.generator = torch.Generator().manual_seed(3)
        self.plan: list[int] | None = None

    def __iter__(self) -> Iterator[int]:
        if self.plan is None:
            self.plan = torch.randperm(len(PROMPTS), generator=self.generator).tolist()
        while self.position < len(self.plan):
            self.position += 1
            yield self.plan[self.position - 1]
        self.position, self.plan = 0, None

    def __len__(self) -> int:
        return len(PROMPTS)

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


@pytest.mark.sweep
@pytest.mark.parametrize("sampler", [RandomSampler(PROMPTS), CountingSampler()])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_thread_takes_the_next_batch_while_the_state_before_it_is_kept(
    workers: int, sampler: Any
) -> None:
    # A trainer that collates ahead takes the state, lets a thread take the next batch, trains, and
    # saves the state that it has taken. Its iterator is used by this thread at the ends of epochs.
    def train(start: int, state: Any = None) -> tuple[list[Any], list[Any]]:
        with (
            DataLoader2.from_dataset(
                PROMPTS, 3, sampler=sampler, num_workers=workers, drop_last=True, seed=2
            ) as loader,
            ThreadPoolExecutor(1) as ahead,
        ):
            if state is not None:
                loader.load_state_dict(state)
            trained, states, batches = [], [], iter(loader)
            coming = ahead.submit(next, batches, None)
            for _ in range(start, 10):
                if (batch := coming.result()) is None:
                    batches = iter(loader)
                    batch = next(batches)
                states.append(loader.state_dict())
                coming = ahead.submit(next, batches, None)
                trained.append(batch.tolist())
            return trained, states

    whole, states = train(0)
    for step in (1, 3, 4, 7):
        assert train(step, states[step - 1])[0] == whole[step:]


class OfOneRank:
    """A loader as torchtitan holds one: a Stateful, with the state of its data-parallel rank."""

    def __init__(self, workers: int, *, pickles: bool) -> None:
        self.loader = DataLoader2.from_dataset(
            PROMPTS, batch_size=2, shuffle=True, num_workers=workers, seed=5
        )
        self.pickles = pickles

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        state = self.loader.state_dict()
        return {"dp_rank_0": pickle.dumps(state) if self.pickles else state, "world_size": 1}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        own = state["dp_rank_0"]
        self.loader.load_state_dict(pickle.loads(own) if self.pickles else own)


class ExhaustedError(Exception):
    pass


def microbatches(loader: OfOneRank) -> Iterator[list[int]]:
    batches = iter(loader)
    while True:
        try:
            batch = next(batches)
        except StopIteration as end:
            raise ExhaustedError from end
        yield batch.tolist()


@pytest.mark.soak
@pytest.mark.sweep
@pytest.mark.parametrize("pickles", [False, True], ids=["as it is", "pickled"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_in_a_distributed_checkpoint_resumes_between_two_steps(
    workers: int, pickles: bool, one_rank: None, tmp_path: Path
) -> None:
    from torch.distributed import checkpoint

    def train(steps: int, load: int | None = None) -> list[list[list[int]]]:
        held, trained = OfOneRank(workers, pickles=pickles), []
        with held.loader:
            if load is not None:
                # It asks for a state first, to know what to load.
                checkpoint.load({"loader": held}, checkpoint_id=tmp_path / f"{load}")
            batches = microbatches(held)
            for step in range(load or 0, steps):
                try:
                    trained.append([next(batches), next(batches)])
                except ExhaustedError:
                    break
                if load is None:
                    folder = tmp_path / f"{step + 1}"
                    checkpoint.save({"loader": held}, checkpoint_id=folder)
        return trained

    whole = train(9)
    assert len(whole) == 3
    with leaves_nothing():
        for saved in (1, 2, 3):
            assert train(9, saved) == whole[saved:]
