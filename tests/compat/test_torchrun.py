"""A script under torchrun: one name for the loader, and an exact resume in mid-epoch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.compat

#: Trains, and saves its state in the middle of the second epoch; resumes from one that is there.
SCRIPT = """
import itertools, json, os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from asyncloader import DataLoader2

folder = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
path = os.path.join(folder, f"state-{rank}.pt")
data = [(torch.tensor([number / 46]), torch.tensor([2 * number / 46 - 1])) for number in range(46)]
torch.manual_seed(0)
model = DistributedDataParallel(nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
seen, step, first = [], 0, 0
with DataLoader2.from_dataset(
    data, batch_size=4, shuffle=True, num_workers=2, distributed=True, seed=5
) as loader:
    resumes = os.path.exists(path)
    if resumes:
        state = torch.load(path, weights_only=False)
        model.load_state_dict(state["model"])
        loader.load_state_dict(state["loader"])
        step, first = state["step"], state["epoch"]
    for epoch in range(first, 3):
        seen.append([])
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            seen[-1] += [round(number * 46) for number in x.flatten().tolist()]
            step += 1
            if step == 9 and not resumes:
                state = {"model": model.state_dict(), "loader": loader.state_dict()}
                torch.save({**state, "step": step, "epoch": epoch}, path)
weights = [each.flatten().tolist() for each in model.parameters()]
with open(os.path.join(folder, f"result-{rank}.json"), "w") as file:
    json.dump({"seen": seen, "steps": step, "weights": weights}, file)
dist.destroy_process_group()
"""


#: Evaluates five samples in batches of two: one rank has a batch less, and one batch is short.
EVALUATION = """
import json, os, sys
from accelerate import Accelerator
from accelerate.utils import gather_object
from asyncloader import DataLoader2

accelerator = Accelerator(cpu=True)
loader = DataLoader2.from_dataset(range(5), batch_size=2, distributed=True, uneven="pad")
assert accelerator.prepare(loader) is loader
found, steps = [], 0
for batch in loader:
    steps += 1
    if not loader.is_padding:
        found += batch.tolist()
found = gather_object(found)
with open(os.path.join(sys.argv[1], f"result-{accelerator.process_index}.json"), "w") as file:
    json.dump({"found": sorted(found), "steps": steps}, file)
accelerator.end_training()
"""


def on_two_ranks(source: str, folder: Path) -> list[dict[str, Any]]:
    """Run a script on two ranks; return what each says at its end."""
    script = folder / "train.py"
    script.write_text(source)
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, *run, script, folder], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.soak
def test_a_script_resumes_from_mid_epoch_to_the_same_weights(tmp_path: Path) -> None:
    expected = on_two_ranks(SCRIPT, tmp_path)
    assert {rank["steps"] for rank in expected} == {3 * 6}
    for epoch in range(3):
        shares = [rank["seen"][epoch] for rank in expected]
        assert sorted(shares[0] + shares[1]) == list(range(46))
    for resumed, never_ended in zip(on_two_ranks(SCRIPT, tmp_path), expected, strict=True):
        assert resumed["weights"] == never_ended["weights"]
        # Three steps of four items into the second epoch.
        second = never_ended["seen"][1][12:]
        assert resumed["seen"] == [second, never_ended["seen"][2]]


@pytest.mark.soak
def test_accelerate_gathers_each_sample_once_where_batches_are_uneven(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="needs accelerate")
    for rank in on_two_ranks(EVALUATION, tmp_path):
        assert rank == {"found": [0, 1, 2, 3, 4], "steps": 2}
