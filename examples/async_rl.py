"""Train a policy on its own answers while a server generates the next ones, and be killed.

Start:  python examples/async_rl.py
Expect: a kill, a policy that has learnt, and a ledger in which each prompt stands once.

A tiny transformer learns to say three digits backwards. A server process generates the answers,
eight for each prompt; the trainer asks it for many at once, learns from those that are better than
the others of their group, and sends it the new weights after each step. It saves the model together
with the state of its loader, is killed in the middle, and goes on from there: each prompt is
trained once or left out for a reason, and by a policy that is at most one version newer than the
one that answered.
"""

import asyncio
import io
import json
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from asyncloader import DataLoader2, Version
from asyncloader.datapipes.iter import IterableWrapper

PROMPTS, GROUP, PER_STEP, MAX_LAG = 320, 8, 8, 1
DIGITS, LENGTH, WIDTH = 4, 3, 16
KILLED_AFTER_STEP = 15


class Policy(nn.Module):
    """A transformer of one layer and 3,508 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.digits, self.places = nn.Embedding(DIGITS, WIDTH), nn.Embedding(2 * LENGTH, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, DIGITS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the log-probabilities of what follows each token."""
        length = tokens.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        x = self.digits(tokens) + self.places(torch.arange(length))
        return self.head(self.layer(x, src_mask=later)).log_softmax(2)

    @torch.no_grad()
    def answered(self, tokens: Tensor) -> Tensor:
        """Return prompts, each with an answer behind it."""
        for _ in range(LENGTH):
            following = torch.multinomial(self(tokens)[:, -1].exp(), 1)
            tokens = torch.cat([tokens, following], dim=1)
        return tokens

    def log_odds(self, tokens: Tensor) -> Tensor:
        """Return the log-probability of each token of the answers."""
        answers = tokens[:, LENGTH:, None]
        return self(tokens[:, :-1])[:, LENGTH - 1 :].gather(2, answers)[:, :, 0]


def rewards_of(tokens: Tensor) -> Tensor:
    """Return how much of each answer is its prompt backwards."""
    return (tokens[:, LENGTH:] == tokens[:, :LENGTH].flip(1)).float().mean(1)


# The server -----------------------------------------------------------------------------------


async def serve() -> None:
    """Answer prompts with the weights that came last, all at once that have come."""
    policy = Policy()
    asked: asyncio.Queue[tuple[list[int], asyncio.Future[Any]]] = asyncio.Queue()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            body = await reader.readexactly(int(head.rpartition(":")[2]))
        except asyncio.IncompleteReadError:
            return  # who asked was killed
        content = b""
        if head.startswith("POST /weights "):
            policy.load_state_dict(torch.load(io.BytesIO(body)))
        else:
            answer: asyncio.Future[Any] = asyncio.Future()
            asked.put_nowait((json.loads(body), answer))
            content = json.dumps(await answer).encode()
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + content)
        writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        while True:
            batch = [await asked.get()]
            batch += [asked.get_nowait() for _ in range(asked.qsize())]
            tokens = policy.answered(torch.tensor([prompt for prompt, _ in batch]))
            log_odds = policy.log_odds(tokens)
            for (_, answer), *found in zip(batch, tokens.tolist(), log_odds.tolist(), strict=True):
                answer.set_result(dict(zip(("tokens", "log_odds"), found, strict=True)))


async def post(path: str, body: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
    writer.write(f"POST {path} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    return answer.partition(b"\r\n\r\n")[2]


# The trainer ----------------------------------------------------------------------------------


async def generate(prompt: int, *, version: int) -> dict[str, Any]:
    digits = [prompt // DIGITS**place % DIGITS for place in range(LENGTH)]
    answer = json.loads(await post("/generate", json.dumps(digits).encode()))
    reward = rewards_of(torch.tensor([answer["tokens"]])).item()
    return {**answer, "reward": reward, "version": version}


def teaches_something(group: list[dict[str, Any]]) -> bool:
    return len({answer["reward"] for answer in group}) > 1


def loss_of(policy: Policy, batch: list[list[dict[str, Any]]]) -> Tensor:
    """Return a loss that makes answers likelier which are better than the mean of their group."""
    tokens, log_odds, rewards = (
        torch.tensor([answer[key] for group in batch for answer in group])
        for key in ("tokens", "log_odds", "reward")
    )
    groups = rewards.view(-1, GROUP)
    advantages = (groups - groups.mean(1, keepdim=True)).view(-1, 1)
    # How much likelier each token is now than when it was generated.
    ratio = (policy.log_odds(tokens) - log_odds).exp()
    return -(ratio.clamp(max=2) * advantages).mean()


async def send_weights(policy: Policy) -> None:
    weights = io.BytesIO()
    torch.save(policy.state_dict(), weights)
    await post("/weights", weights.getvalue())


def saved_in(checkpoint: Path) -> Any:
    return torch.load(checkpoint) if checkpoint.exists() else None


def save(checkpoint: Path, **saved: Any) -> None:
    # Whoever dies while writing leaves the checkpoint before whole.
    unfinished = checkpoint.with_suffix(".unfinished")
    torch.save(saved, unfinished)
    unfinished.replace(checkpoint)


async def train(checkpoint: Path) -> None:
    """Train on all prompts, from the checkpoint if there is one."""
    torch.manual_seed(0)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    trained: list[int] = []
    lags: Counter[int] = Counter()
    if (saved := saved_in(checkpoint)) is not None:
        policy.load_state_dict(saved["policy"])
        optimizer.load_state_dict(saved["optimizer"])
        trained, lags = saved["trained"], Counter(saved["lags"])
    # The server may have newer weights than those that were saved.
    await send_weights(policy)

    version = Version()
    groups = (
        IterableWrapper(range(PROMPTS))
        .shuffle()
        .rollout(generate, group=GROUP, version=version, max_lag=MAX_LAG, per_step=PER_STEP)
    )
    batches = groups.filter(teaches_something).batch(PER_STEP)
    async with DataLoader2(batches, acknowledge=True, seed=1) as loader:
        if saved is not None:
            loader.load_state_dict(saved["loader"])
        async for batch in loader:
            optimizer.zero_grad()
            loss_of(policy, batch).backward()
            optimizer.step()
            trained += loader.numbers
            lags.update(version.number - min(each["version"] for each in group) for group in batch)
            async with loader.paused():
                await send_weights(policy)
                version.advance()
            loader.ack()
            save(
                checkpoint,
                policy=policy.state_dict(),
                optimizer=optimizer.state_dict(),
                loader=loader.state_dict(include_datapipe=False),
                trained=trained,
                lags=dict(lags),
            )
            print("step", flush=True)
        left_out = loader.stats().left_out
    print_ledger(trained, lags, left_out)
    print(f"right: {share_right(Policy()):.0%} at first, {share_right(policy):.0%} at the end")


def share_right(policy: Policy) -> float:
    every = torch.cartesian_prod(*[torch.arange(DIGITS)] * LENGTH)
    return rewards_of(policy.answered(every)).mean().item()


def print_ledger(trained: list[int], lags: Counter[int], left_out: Mapping[str, int]) -> None:
    print(f"trained: {len(trained)} prompts, each once: {len(set(trained)) == len(trained)}")
    print(f"left out: {', '.join(f'{count} by {why}' for why, count in left_out.items())}")
    print(f"all of {PROMPTS}: {len(trained) + sum(left_out.values()) == PROMPTS}")
    for lag, count in sorted(lags.items()):
        print(f"trained {lag} versions later: {count} prompts")


# Both, and the kill ---------------------------------------------------------------------------


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, started("serve") as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            for killed_after in (KILLED_AFTER_STEP, None):
                run_trainer(port, f"{folder}/checkpoint.pt", killed_after)
        finally:
            server.terminate()


def run_trainer(port: str, checkpoint: str, killed_after: int | None) -> None:
    with started("train", port, checkpoint) as trainer:
        assert trainer.stdout is not None
        for step, line in enumerate(trainer.stdout, 1):
            if line != "step\n":
                print(line, end="", flush=True)
            elif step == killed_after:
                trainer.send_signal(signal.SIGKILL)
                print(f"killed after step {step}", flush=True)


if __name__ == "__main__":
    # The policy is so small that several threads would only wait for one another.
    torch.set_num_threads(1)
    match sys.argv[1:]:
        case ["serve"]:
            asyncio.run(serve())
        case ["train", port, checkpoint]:
            PORT = int(port)
            asyncio.run(train(Path(checkpoint)))
        case _:
            main()
