"""Train one model that two ranks hold together, on data that two such pairs divide.

Start:  torchrun --nproc-per-node=4 examples/mesh_training.py
Expect: 16 steps on each rank in each epoch, the same batches in a pair, and what was learnt.

The four ranks are a mesh of pipeline, data, context and tensor parallelism, of which the data
and the tensor dimension have two ranks each. Only the data dimension divides the data: both
ranks of a pair hold half of the weights and need the same batches. No seed is given; the
ranks agree on one.
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from asyncloader import DataLoader2

EPOCHS = 30
WEIGHTS = torch.tensor([3.0, -2.0, 1.0, 0.5])


def measurements() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return places, and what was measured there."""
    chance = torch.Generator().manual_seed(0)
    places = torch.rand(256, len(WEIGHTS), generator=chance) * 2 - 1
    return [(place, place @ WEIGHTS) for place in places]


def train() -> None:
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (1, 2, 1, 2), mesh_dim_names=("pp", "dp", "cp", "tp"))
    pair, pairs = mesh["tp"].get_group(), mesh["dp"].get_group()
    own = slice(2 * dist.get_rank(pair), 2 * dist.get_rank(pair) + 2)
    weights = torch.zeros(2)

    with DataLoader2.from_dataset(
        measurements(), batch_size=8, shuffle=True, num_workers=1, distributed=mesh["dp"]
    ) as loader:
        for epoch in range(EPOCHS):
            seen = []
            for places, heights in loader:
                # Each rank of the pair adds what its half of the weights says.
                found = places[:, own] @ weights
                dist.all_reduce(found, group=pair)
                slope = places[:, own].T @ (found - heights) / len(heights)
                dist.all_reduce(slope, group=pairs)
                weights -= 0.5 * slope
                seen.append(heights.sum())
            if epoch == 0:
                say_what_was_seen(torch.stack(seen))

    halves = [torch.zeros(2) for _ in range(2)]
    dist.all_gather(halves, weights, group=pair)
    if dist.get_rank() == 0:
        print("learnt", *(f"{weight:.1f}" for weight in torch.cat(halves)), flush=True)


def say_what_was_seen(seen: torch.Tensor) -> None:
    """Print how many batches each rank had, and who had the same."""
    of_ranks = [torch.zeros_like(seen) for _ in range(dist.get_world_size())]
    dist.all_gather(of_ranks, seen)
    if dist.get_rank() == 0:
        first, second, third, fourth = of_ranks
        same = bool((first == second).all() and (third == fourth).all())
        print(f"steps: {len(seen)}, the same in a pair: {same}", flush=True)
        print(f"the same in both pairs: {bool((first == third).any())}", flush=True)


if __name__ == "__main__":
    if not dist.is_torchelastic_launched():
        sys.exit("torchrun starts this on several ranks: see the command at the top of this file")
    dist.init_process_group("gloo")
    try:
        train()
    finally:
        dist.destroy_process_group()
