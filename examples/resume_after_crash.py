"""Be killed in the middle of an epoch, start again, and end with the very same loss.

Start:  python examples/resume_after_crash.py
Expect: the loss of an undisturbed run, then the same loss of a run that was killed and resumed.

A model learns a surface from noisy points that two worker processes make. Every 25 steps the
state of the model, the optimizer and the loader is written to one file. This script trains
three times: once undisturbed, once in a process that kills itself, and once in another process,
from the file that the second left.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

SAMPLES = 4_000
BATCH_SIZE = 32
EPOCHS = 3
STEPS_BETWEEN_CHECKPOINTS = 25
KILLED_AT_STEP = 190  # of 378: in the second epoch, and 15 steps after a checkpoint


def noisy_point(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a point of a surface, a little off in a way that differs with each epoch."""
    x, y = number % 61 / 61, number % 47 / 47
    height = x * y + 0.5 * x + random.gauss(0, 0.01)
    return torch.tensor([x, y]), torch.tensor([height])


class Trainer:
    """Everything that has a state, and the file it is saved in."""

    def __init__(self, checkpoint: Path) -> None:
        # The model is so small that several threads would only wait for one another.
        torch.set_num_threads(1)
        torch.manual_seed(0)
        numbers = IterableWrapper(range(SAMPLES)).shuffle().sharding_filter()
        graph = numbers.map(noisy_point).batch(BATCH_SIZE).collate()
        service = MultiProcessingReadingService(num_workers=2)
        self.loader = DataLoader2(graph, reading_service=service)
        self.loader.seed(0)
        self.model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        self.epoch = 0
        self.step = 0
        self.checkpoint = checkpoint

    def save(self) -> None:
        state = {
            "loader": self.loader.state_dict(include_datapipe=False),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epoch": self.epoch,
            "step": self.step,
        }
        # Whoever dies while writing leaves the checkpoint before whole.
        unfinished = self.checkpoint.with_suffix(".unfinished")
        torch.save(state, unfinished)
        unfinished.replace(self.checkpoint)

    def load(self) -> None:
        state = torch.load(self.checkpoint, weights_only=True)
        self.loader.load_state_dict(state["loader"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch, self.step = state["epoch"], state["step"]
        print(f"resumed after step {self.step}, in epoch {self.epoch + 1}", flush=True)

    async def train(self, killed_at: int) -> str:
        """Train to the end and return the result, or be killed after so many steps."""
        async with self.loader:
            while self.epoch < EPOCHS:
                # Where a state was loaded, the first of these epochs is the rest of one.
                async for points, heights in self.loader:
                    loss = self.learn(points, heights)
                    self.step += 1
                    if self.step % STEPS_BETWEEN_CHECKPOINTS == 0:
                        self.save()
                    if self.step == killed_at:
                        print(f"killed after step {self.step}, in epoch {self.epoch + 1}")
                        sys.stdout.flush()
                        os.kill(os.getpid(), signal.SIGKILL)
                self.epoch += 1
        return f"loss {loss!r} after {self.step} steps"

    def learn(self, points: torch.Tensor, heights: torch.Tensor) -> float:
        loss = nn.functional.mse_loss(self.model(points), heights)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def train(checkpoint: Path, killed_at: int = 0) -> str:
    trainer = Trainer(checkpoint)
    if checkpoint.exists():
        trainer.load()
    result = asyncio.run(trainer.train(killed_at))
    print(result, flush=True)
    return result


def train_in_a_process(checkpoint: Path, killed_at: int = 0) -> str:
    """Train in a process of its own; return the last line that it printed."""
    command = [sys.executable, __file__, str(checkpoint), str(killed_at)]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    print(run.stdout, end="", flush=True)
    assert run.returncode == (-signal.SIGKILL if killed_at else 0)
    return run.stdout.splitlines()[-1]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        undisturbed = train(Path(folder, "undisturbed.pt"))
        train_in_a_process(Path(folder, "killed.pt"), KILLED_AT_STEP)
        resumed = train_in_a_process(Path(folder, "killed.pt"))
    print("the same to the last bit:", resumed == undisturbed)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        main()
