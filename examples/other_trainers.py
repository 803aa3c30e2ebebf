"""Give the trainers of slime, AReaL and tinker-cookbook the groups of a loader.

Start:  python examples/other_trainers.py
Expect: for each of the three, five steps and five more from what was saved, and each prompt
        trained once.

Each of the three parts has what its trainer calls, in less than 60 lines. The trainers need GPUs or
a service; the loops at the end call the same methods in the same order.
"""

import asyncio
import random
import tempfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from asyncloader import DataLoader2, Version
from asyncloader.datapipes.iter import IterableWrapper

# slime ----------------------------------------------------------------------------------------


class SlimeSource:
    """A DataSource for slime's ``train_async.py``, by ``--data-source-path``.

    ``generate_rollout`` goes with it, by ``--rollout-function-path``. A rollout is asked for when
    the one before the last is trained.
    """

    def __init__(self, args: Any) -> None:
        self.args, self.version, self._trained = args, Version(), -1
        prompts = IterableWrapper(args.prompts, deepcopy=False).shuffle()
        groups = prompts.rollout(
            args.generate,
            group=args.n_samples_per_prompt,
            version=self.version,
            max_lag=1,
            per_step=args.rollout_batch_size,
        )
        batches = groups.batch(args.rollout_batch_size)
        self.loader = DataLoader2(batches, acknowledge=True, seed=args.rollout_seed)
        self._batches: Any = None

    def rollout(self, rollout_id: int) -> list[list[Any]]:
        self._note_trained(rollout_id - 2)
        self._batches = self._batches or iter(self.loader)
        groups: list[list[Any]] = next(self._batches)
        return groups

    def _note_trained(self, rollout_id: int) -> None:
        while self._trained < rollout_id:
            self.version.advance()
            self.loader.ack()
            self._trained += 1

    def save(self, rollout_id: int) -> None:
        self._note_trained(rollout_id)
        torch.save(self.loader.state_dict(include_datapipe=False), self._file(rollout_id))

    def load(self, rollout_id: int | None = None) -> None:
        if rollout_id is not None and self._file(rollout_id).exists():
            self.loader.load_state_dict(torch.load(self._file(rollout_id)))
            self._trained, self._batches = rollout_id, None

    def _file(self, rollout_id: int) -> Path:
        return Path(self.args.save, f"loader_{rollout_id}.pt")

    def get_samples(self, num_samples: int) -> list[list[Any]]:
        raise NotImplementedError("the loader generates: use --rollout-function-path as well")

    def __len__(self) -> int:
        return len(self.args.prompts)


def generate_rollout(
    args: Any, rollout_id: int, data_source: SlimeSource, evaluation: bool = False
) -> list[list[Any]]:
    return data_source.rollout(rollout_id)


# AReaL ----------------------------------------------------------------------------------------


class ArealRollouts:
    """What AReaL's trainer calls of its rollout engine; ``engine`` is what a workflow asks."""

    def __init__(self, engine: Any, max_staleness: int) -> None:
        self.engine, self.max_staleness, self.version = engine, max_staleness, Version()
        self.loader: Any = None
        self._state: Any = None
        self._pause: Any = None

    def prepare_batch(
        self, dataloader: Any, workflow: Any, should_accept_fn: Callable[[Any], bool] | None = None
    ) -> list[dict[str, Any]]:
        if self.loader is None:
            self._begin(dataloader, workflow, should_accept_fn or (lambda trajectory: True))
        batch: list[dict[str, Any]] = next(self._batches)
        return batch

    def _begin(self, dataloader: Any, workflow: Any, accepts: Callable[[Any], bool]) -> None:
        async def episode(data: Any) -> Any:
            return await workflow.arun_episode(self.engine, data)

        prompts = IterableWrapper(dataloader.dataset, deepcopy=False).shuffle()
        trajectories = prompts.rollout(
            episode,
            version=self.version,
            max_lag=self.max_staleness,
            per_step=dataloader.batch_size,
        )
        accepted = trajectories.filter(lambda each: each is not None and accepts(each))
        batches = accepted.batch(dataloader.batch_size)
        self.loader = DataLoader2(batches, acknowledge=True, seed=1)
        if self._state is not None:
            self.loader.load_state_dict(self._state)
        self._batches = iter(self.loader)

    def pause(self) -> None:
        self._pause = self.loader.paused(in_flight="keep")
        self._pause.__enter__()

    def resume(self) -> None:
        self._pause.__exit__(None, None, None)

    def set_version(self, version: int) -> None:
        while self.version.number < version:
            self.version.advance()
            if self.loader is not None:
                self.loader.ack()

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.loader.state_dict(include_datapipe=False)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state = state


# tinker-cookbook ------------------------------------------------------------------------------


async def train_like_tinker(
    cfg: Any,
    training_client: Any,
    builders: list[Any],
    do_group_rollout: Callable[[Any, Any], Any],
    state: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Train as ``do_async_training`` does: at most so many steps off policy; return the state.

    ``do_group_rollout(sampling_client, builder)`` returns None for a group that teaches nothing.
    """
    version = Version()
    sampling_client = await training_client.save_weights_and_get_sampling_client_async()

    async def group_of(builder: Any) -> Any:
        return await do_group_rollout(sampling_client, builder)

    groups = IterableWrapper(builders, deepcopy=False).rollout(
        group_of,
        version=version,
        max_lag=cfg.max_steps_off_policy,
        per_step=cfg.groups_per_batch,
    )
    batches = groups.filter(lambda group: group is not None).batch(cfg.groups_per_batch)
    async with DataLoader2(batches, acknowledge=True) as loader:
        if state is not None:
            loader.load_state_dict(state)
        async for batch in loader:
            await training_client.forward_backward_async(batch)
            await training_client.optim_step_async()
            sampling_client = await training_client.save_weights_and_get_sampling_client_async()
            version.advance()
            loader.ack()
            if version.number == cfg.max_steps:
                break
        return loader.state_dict(include_datapipe=False)


# The loops of the three -----------------------------------------------------------------------

PROMPTS, BATCH, STEPS = 200, 8, 5


async def answer(prompt: int) -> dict[str, int]:
    await asyncio.sleep(random.random() / 200)
    return {"prompt": prompt}


def prompts_of_slime(folder: str) -> list[int]:
    args = Namespace(
        prompts=range(PROMPTS),
        generate=answer,
        n_samples_per_prompt=4,
        rollout_batch_size=BATCH,
        rollout_seed=1,
        save=folder,
    )
    trained: list[int] = []
    for start in (0, STEPS):
        source = SlimeSource(args)
        source.load(start - 1)
        with source.loader:
            coming = generate_rollout(args, start, source)
            for rollout_id in range(start, start + STEPS):
                groups, coming = coming, generate_rollout(args, rollout_id + 1, source)
                trained += [group[0]["prompt"] for group in groups]
            source.save(rollout_id)
    return trained


class Workflow:
    async def arun_episode(self, engine: Any, data: int) -> dict[str, int] | None:
        return await engine(data)


def prompts_of_areal(folder: str) -> list[int]:
    data = Namespace(dataset=range(PROMPTS), batch_size=BATCH)
    trained: list[int] = []
    for start in (0, STEPS):
        rollouts = ArealRollouts(answer, max_staleness=2)
        rollouts.set_version(start)
        if start:
            rollouts.load_state_dict(torch.load(Path(folder, "rollouts.pt")))
        for step in range(start, start + STEPS):
            batch = rollouts.prepare_batch(data, Workflow(), lambda each: each["prompt"] % 5 > 0)
            trained += [trajectory["prompt"] for trajectory in batch]
            rollouts.pause()
            rollouts.set_version(step + 1)
            rollouts.resume()
            torch.save(rollouts.state_dict(), Path(folder, "rollouts.pt"))
        rollouts.loader.shutdown()
    return trained


class TrainingClient:
    def __init__(self) -> None:
        self.trained: list[int] = []

    async def forward_backward_async(self, groups: list[dict[str, int]]) -> None:
        self.trained += [group["prompt"] for group in groups]

    async def optim_step_async(self) -> None:
        await asyncio.sleep(0.01)

    async def save_weights_and_get_sampling_client_async(self) -> Callable[[int], Any]:
        return answer


async def prompts_of_tinker() -> list[int]:
    async def do_group_rollout(client: Callable[[int], Any], builder: int) -> Any:
        return None if builder % 7 == 0 else await client(builder)

    cfg = Namespace(max_steps_off_policy=2, groups_per_batch=BATCH, max_steps=STEPS)
    client, state = TrainingClient(), None
    for _ in range(2):
        state = await train_like_tinker(cfg, client, list(range(PROMPTS)), do_group_rollout, state)
    return client.trained


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "slime": prompts_of_slime(folder),
            "AReaL": prompts_of_areal(folder),
            "tinker-cookbook": asyncio.run(prompts_of_tinker()),
        }
    for name, prompts in found.items():
        once = len(set(prompts)) == len(prompts)
        print(f"{name}: {len(prompts)} prompts in {2 * STEPS} steps, each once: {once}")


if __name__ == "__main__":
    main()
