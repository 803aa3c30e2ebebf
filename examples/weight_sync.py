"""Learn from what an actor plays, while a second task brings it the learnt weights.

Start:  python examples/weight_sync.py
Expect: the share of right answers grows from about 30 % to over 90 %.

The loop of reinforcement learning, in one event loop and no thread: the graph asks the actor
for rounds of a game, many at once; the trainer learns from batches of them; and beside both a
task carries the weights over, which takes its time and holds up neither.
"""

import asyncio
from collections import deque

import torch
from torch import nn

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper

QUESTIONS, ANSWERS = 8, 4
STEPS = 240


def new_policy() -> nn.Module:
    policy = nn.Embedding(QUESTIONS, ANSWERS)
    nn.init.zeros_(policy.weight)
    return policy


class Actor:
    """Plays with the weights that were brought to it last."""

    def __init__(self) -> None:
        self.policy = new_policy()

    async def play(self, question: int) -> tuple[int, int, float]:
        with torch.no_grad():
            odds = self.policy(torch.tensor(question)).softmax(0)
        answer = int(torch.multinomial(odds, 1))
        await asyncio.sleep(0.001)  # as long as a game takes
        return question, answer, float(answer == question % ANSWERS)


class Courier:
    """Brings weights to the actor, always the latest: those it could not bring in time are old."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.latest: dict[str, torch.Tensor] = {}
        self.is_fresh = asyncio.Event()
        self.deliveries = 0

    def hand_over(self, policy: nn.Module) -> None:
        self.latest = {name: weight.clone() for name, weight in policy.state_dict().items()}
        self.is_fresh.set()

    async def run(self) -> None:
        while await self.is_fresh.wait():
            self.is_fresh.clear()
            weights = self.latest
            await asyncio.sleep(0.02)  # as long as a network takes
            self.actor.policy.load_state_dict(weights)
            self.deliveries += 1


def learn(policy: nn.Module, optimizer: torch.optim.Optimizer, games: list[torch.Tensor]) -> float:
    questions, answers, rewards = games
    chosen = policy(questions).log_softmax(1).gather(1, answers[:, None])[:, 0]
    loss = -((rewards - rewards.mean()) * chosen).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return rewards.mean().item()


async def main() -> None:
    # The policy is so small that several threads would only wait for one another.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    policy, actor = new_policy(), Actor()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.1)
    courier = Courier(actor)
    questions = IterableWrapper(range(QUESTIONS)).cycle().shuffle(buffer_size=QUESTIONS)
    games = questions.async_map(actor.play, concurrency=32).batch(16).collate()
    recent: deque[float] = deque(maxlen=20)
    async with DataLoader2(games) as loader:
        delivering = asyncio.create_task(courier.run())
        batches = aiter(loader)
        for step in range(1, STEPS + 1):
            recent.append(learn(policy, optimizer, await anext(batches)))
            courier.hand_over(policy)
            if step in (20, STEPS):
                print(f"step {step}: {sum(recent) / len(recent):.0%} of the answers are right")
        delivering.cancel()
    print(f"new weights reached the actor {courier.deliveries} times")


if __name__ == "__main__":
    asyncio.run(main())
