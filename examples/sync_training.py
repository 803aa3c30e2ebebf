"""Train with a plain `for`: the same loader and the same order, without an event loop.

Start:  python examples/sync_training.py
Expect: three epochs, and the plane that was learnt, which is the one the points lie on.
"""

import torch
from torch import nn

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper


def sample(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a point of the plane y = 3a - 2b + 1."""
    a, b = number % 31 / 31, number % 17 / 17
    return torch.tensor([a, b]), torch.tensor([3 * a - 2 * b + 1])


def main() -> None:
    # The model is so small that several threads would only wait for one another.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    graph = IterableWrapper(range(2_000)).shuffle().map(sample).batch(32).collate()

    with DataLoader2(graph) as loader:
        loader.seed(0)
        for epoch in range(1, 4):
            for points, heights in loader:
                loss = nn.functional.mse_loss(model(points), heights)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch}: loss {loss.item():.5f}")

    (a, b), c = model.weight[0].tolist(), model.bias.item()
    print(f"the points lie on y = 3a - 2b + 1; learnt y = {a:.1f}a {b:+.1f}b {c:+.1f}")


if __name__ == "__main__":
    main()
