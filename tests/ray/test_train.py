"""Loading inside of Ray Train's own workers, which hold a placement group."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs pip install 'asyncloader[ray]'")
pytest.importorskip("ray.train", reason="needs pip install 'ray[train]'", exc_type=ImportError)

import ray.train
import torch
from ray._private.state import actors
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import asyncloader.datapipes.iter as it
from asyncloader import (
    DataLoader2,
    DistributedReadingService,
    MultiProcessingReadingService,
    RayReadingService,
    SequentialReadingService,
)

RANKS, EPOCHS = 2, 2
#: Odd, so that the shares of the ranks are uneven.
ITEMS = 41
#: After how many items of a rank a checkpoint is taken, and the training fails.
SAVED, FAILED = 7, 12


def loader_of_rank(kind: str) -> DataLoader2[str]:
    services = {"actors": RayReadingService, "processes": MultiProcessingReadingService}
    service = SequentialReadingService(DistributedReadingService(), services[kind](2))
    graph: Any = it.IterableWrapper(range(ITEMS)).shuffle().sharding_filter().map(str)
    loader: DataLoader2[str] = DataLoader2(graph, reading_service=service)
    loader.seed(3)
    return loader


def train(config: dict[str, Any]) -> None:
    """Load as one rank, and write down what came."""
    with loader_of_rank(config["kind"]) as loader:
        epochs = [list(loader) for _ in range(EPOCHS)]
        nodes = [worker.node for worker in loader.stats().workers]
    rank = ray.train.get_context().get_world_rank()
    Path(config["folder"], f"{rank}.json").write_text(json.dumps([epochs, nodes]))


def train_with_checkpoints(config: dict[str, Any]) -> None:
    """Load as one rank, fail after a checkpoint, and resume from it when started again."""
    rank = ray.train.get_context().get_world_rank()
    checkpoint = ray.train.get_checkpoint()
    loader = loader_of_rank("actors")
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            loader.load_state_dict(torch.load(Path(folder, f"loader-{rank}.pt")))
    taken, name = [], "first" if checkpoint is None else "resumed"
    with loader:
        for item in loader:
            taken.append(item)
            if checkpoint is None and len(taken) == SAVED:
                save(loader, rank)
            if checkpoint is None and len(taken) == FAILED:
                break
    Path(config["folder"], f"{name}-{rank}.json").write_text(json.dumps(taken))
    if checkpoint is None:
        # Reports are taken in order: the checkpoint is safe when this one is accepted.
        ray.train.report({"taken": FAILED})
        raise ConnectionError("the first attempt is lost here")


def save(loader: DataLoader2[Any], rank: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        torch.save(loader.state_dict(), Path(folder, f"loader-{rank}.pt"))
        ray.train.report({"taken": SAVED}, checkpoint=Checkpoint.from_directory(folder))


def fit(loop: Any, folder: Path, **config: Any) -> None:
    TorchTrainer(
        loop,
        train_loop_config={"folder": str(folder), **config},
        scaling_config=ScalingConfig(num_workers=RANKS),
        run_config=RunConfig(
            storage_path=str(folder / "results"), failure_config=FailureConfig(max_failures=1)
        ),
    ).fit()


def told(folder: Path, name: str) -> list[Any]:
    return [json.loads((folder / name.format(rank)).read_text()) for rank in range(RANKS)]


def none_of_our_actors(seconds: float = 20.0) -> None:
    """Fail if one still lives after so many seconds; Train's own stay for a while."""
    end = time.monotonic() + seconds
    while (ours := our_actors()) and time.monotonic() < end:
        time.sleep(0.05)
    assert not ours


def our_actors() -> list[Any]:
    found = [each for each in actors().values() if each["ActorClassName"] == "Actor"]
    assert found, "they are called otherwise"
    return [each for each in found if each["State"] != "DEAD"]


@pytest.mark.usefixtures("nodes")
@pytest.mark.parametrize("kind", ["actors", "processes"])
def test_two_ranks_of_ray_train_load_with_two_workers_each(kind: str, tmp_path: Path):
    fit(train, tmp_path, kind=kind)
    ranks = told(tmp_path, "{}.json")
    assert all(len(nodes) == 2 for _, nodes in ranks)
    for ones, others in zip(*(epochs for epochs, _ in ranks), strict=True):
        assert len(ones) == len(others), "uneven shares are made even"
        items = sorted(map(int, [*ones, *others]))
        assert set(items) <= set(range(ITEMS))
        assert len(set(items)) == len(items) >= ITEMS - 1
    if kind == "actors":
        none_of_our_actors()


@pytest.mark.usefixtures("nodes")
def test_a_training_that_fails_resumes_its_loaders_from_the_checkpoint_of_ray_train(tmp_path: Path):
    fit(train_with_checkpoints, tmp_path)
    first, resumed = told(tmp_path, "first-{}.json"), told(tmp_path, "resumed-{}.json")
    items: list[int] = []
    for before, after in zip(first, resumed, strict=True):
        assert after[: FAILED - SAVED] == before[SAVED:]
        items += map(int, [*before[:SAVED], *after])
    assert set(items) <= set(range(ITEMS))
    assert len(set(items)) == len(items) >= ITEMS - 1
    none_of_our_actors()
