"""Train with TRL's AsyncGRPOTrainer on answers that a loader generates, and resume exactly.

Start:  python examples/trl_rollouts.py (needs trl==1.16.0 and requests)
Expect: ten steps of TRL, then five more from a checkpoint, and each prompt trained once; then five
        in which each answer is of the policy that it trains.

``RolloutWorker`` is what TRL asks of whatever makes its samples, its ``RolloutWorkerProtocol``,
over a loader that yields groups of a ``rollout``. Here a tiny model that is made, not downloaded,
is trained on the CPU, and a copy of it answers. With a server, ``generate`` asks that, and the
weight transfer of TRL brings it the weights.
"""

import asyncio
import contextlib
import queue
import random
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AttentionInterface,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    TrainerCallback,
)
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample
from trl.experimental.async_grpo.packing import TREE_ATTENTION

from asyncloader import DataLoader2, Version
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.errors import LoaderClosed

GROUP, SAMPLES_PER_STEP, MAX_LAG = 4, 16, 2


class RolloutWorker:
    """Gives TRL the answers of a loader, and acknowledges the prompts that TRL has trained.

    A step of TRL trains ``samples_per_step`` samples in the order in which they came, and then
    sends the weights: so with each new version so many more are trained.
    """

    def __init__(self, loader: DataLoader2[Any], version: Version, samples_per_step: int) -> None:
        self.loader, self.version, self.samples_per_step = loader, version, samples_per_step
        self.rollout_buffer: queue.Queue[RolloutSample] = queue.Queue()
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue()
        self.numbers: list[int] = []
        self.trained = 0
        self._first_version: int | None = None
        self._thread = threading.Thread(target=self._run, name="rollouts", daemon=True)

    def start(self) -> None:
        self._first_version, self._last_at = self.version.number, time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        self.loader.shutdown()
        if self._thread.is_alive():
            self._thread.join()

    def update_model_version(self, model_version: int) -> None:
        while self.version.number < model_version:
            self.version.advance()
        if self._first_version is not None:
            steps = model_version - self._first_version
            trained = steps * self.samples_per_step // GROUP
            self.loader.ack(trained - self.trained)
            self.trained = trained

    def check_health(self, stale_after_s: float) -> None:
        if not self._thread.is_alive():
            raise RuntimeError("there are no more prompts, or the loader has failed")
        if time.monotonic() - self._last_at > stale_after_s:
            raise TimeoutError(f"no answers for {stale_after_s} s: {self.loader.stats()}")

    def _run(self) -> None:
        with contextlib.suppress(LoaderClosed):  # by stop()
            for group in self.loader:
                self._last_at = time.monotonic()
                self.numbers += self.loader.numbers
                rewards = [answer["reward"] for answer in group]
                mean, spread = statistics.mean(rewards), statistics.pstdev(rewards) + 1e-4
                for answer, reward in zip(group, rewards, strict=True):
                    sample = RolloutSample(
                        **answer["sample"],
                        advantage=(reward - mean) / spread,
                        group_id=self.numbers[-1],
                        metrics={"reward": reward},
                        enqueued_at=time.time(),
                    )
                    self.rollout_buffer.put(sample)


class OnPolicyTrainer(AsyncGRPOTrainer):
    """TRL's trainer for ``max_lag=0``, in one process.

    What Accelerate makes of TRL's loader reads the samples of the next step before it gives those
    of this one, to know whether they are the last. With ``max_lag=0`` there are none before this
    step is trained, so each would wait for the other.
    """

    def get_train_dataloader(self) -> Any:
        return super().get_train_dataloader().base_dataloader


# What TRL trains, and what answers ------------------------------------------------------------

WORDS = {"<end>": 0} | {str(number): number + 1 for number in range(9)}


def save_model(folder: Path) -> None:
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = Tokenizer(WordLevel(WORDS, unk_token="<end>"))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>"
    ).save_pretrained(folder)


class Copy:
    """The model that answers, with the weights that came last: a WeightTransfer of TRL."""

    def __init__(self, folder: Path) -> None:
        self.model = LlamaForCausalLM.from_pretrained(folder)
        self.loader: Any = None

    async def generate(self, prompt: int, *, version: int) -> dict[str, Any]:
        tokens, log_probs = [1 + prompt % 9], [0.0]
        for _ in range(3):
            await asyncio.sleep(0.001 * random.random())
            with torch.no_grad():
                odds = self.model(torch.tensor([tokens])).logits[0, -1].log_softmax(0)
            tokens.append(int(torch.multinomial(odds.exp(), 1)))
            log_probs.append(odds[tokens[-1]].item())
        reward = sum(token == tokens[0] for token in tokens[1:]) / 3
        sample = {
            "prompt": [],
            "completion": [],
            "input_ids": np.array(tokens),
            "completion_mask": np.array([0, 1, 1, 1]),
            "old_log_probs": np.array(log_probs, dtype=np.float32),
            "model_version": version,
        }
        return {"sample": sample, "reward": reward}

    def init_weight_transfer(self) -> None:
        """Nothing is needed in one process."""

    def pause(self) -> None:
        self._pause = self.loader.paused()
        self._pause.__enter__()

    def send_weights(self, iterator: Any) -> None:
        self.model.load_state_dict(dict(iterator), strict=False)

    def resume(self) -> None:
        self._pause.__exit__(None, None, None)

    def destroy(self) -> None:
        """Nothing is needed in one process."""


def plain_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    *,
    tree_kv_index: torch.Tensor,
    tree_cu_seqlens_q: torch.Tensor,
    tree_cu_seqlens_k: torch.Tensor,
    scaling: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Do what the attention of TRL does, whose kernel runs on a GPU only."""
    outs = []
    begins_q, begins_k = tree_cu_seqlens_q.tolist(), tree_cu_seqlens_k.tolist()
    for number in range(len(begins_q) - 1):
        at = tree_kv_index[begins_k[number] : begins_k[number + 1]]
        asks = query[:, :, begins_q[number] : begins_q[number + 1]]
        # The last of those that ask sees all that is before it and itself.
        seen = torch.ones(asks.shape[2], len(at), dtype=torch.bool).tril(len(at) - asks.shape[2])
        outs.append(
            torch.nn.functional.scaled_dot_product_attention(
                asks, key[:, :, at], value[:, :, at], attn_mask=seen, scale=scaling
            )
        )
    return torch.cat(outs, dim=2).transpose(1, 2), None


class SaveLoader(TrainerCallback):
    """Saves the loader's state with each checkpoint of TRL."""

    def __init__(self, loader: DataLoader2[Any]) -> None:
        self.loader = loader

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        torch.save(self.loader.state_dict(include_datapipe=False), folder / "loader.pt")


def train(
    folder: Path, steps: int, checkpoint: Path | None = None, max_lag: int = MAX_LAG
) -> tuple[list[int], int]:
    """Train with TRL; return the prompts that were trained, and how much later at most."""
    copy, version = Copy(folder / "model"), Version()
    prompts = IterableWrapper(range(100)).shuffle().cycle()
    groups = prompts.rollout(
        copy.generate,
        group=GROUP,
        version=version,
        max_lag=max_lag,
        per_step=SAMPLES_PER_STEP // GROUP,
    )
    with DataLoader2(groups, acknowledge=True, seed=0) as loader:
        copy.loader = loader
        if checkpoint is not None:
            loader.load_state_dict(torch.load(checkpoint / "loader.pt"))
        worker = RolloutWorker(loader, version, SAMPLES_PER_STEP)
        # It asks for the name of a GPU.
        async_grpo_trainer.get_peak_flops_per_device = lambda *_: None
        trainer_class = AsyncGRPOTrainer if max_lag else OnPolicyTrainer
        trainer = trainer_class(
            str(folder / "model"),
            args=AsyncGRPOConfig(
                str(folder / "out"),
                max_steps=steps,
                save_steps=10,
                learning_rate=0.02,
                per_device_train_batch_size=SAMPLES_PER_STEP,
                token_budget=0,
                max_staleness=max_lag,
                use_cpu=True,
                bf16=False,
                logging_strategy="no",
                report_to=[],
            ),
            train_dataset=Dataset.from_dict({"prompt": ["unused"]}),
            callbacks=[SaveLoader(loader)],
            rollout_worker=worker,
            weight_transfer=copy,
        )
        AttentionInterface.register(TREE_ATTENTION, plain_attention)
        trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
        (rollout,) = loader.stats().rollouts
    return worker.numbers[: worker.trained], max(rollout.lags)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(folder / "model")
        trained, _ = train(folder, 10)
        print(f"trained: {len(trained)} prompts in 10 steps of TRL")
        trained += train(folder, 15, folder / "out" / "checkpoint-10")[0]
        once = sorted(trained) == list(range(len(trained)))
        print(f"resumed: {len(trained)} prompts in 15 steps, each once: {once}")
        trained, lag = train(folder, 5, max_lag=0)
        print(f"with max_lag=0: {len(trained)} prompts in 5 steps, at most {lag} versions later")


if __name__ == "__main__":
    main()
