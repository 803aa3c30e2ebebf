"""The example that loses a node."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="needs pip install 'asyncloader[ray]'")

ROOT = Path(__file__).parent.parent.parent
LIMIT_SECONDS = 280
PRINTS = (
    r"100 batches, 0 restarts, loss (0\.\d+)\n(?s:.*)100 batches, [1-3] restarts, loss \1\n"
    r"(?s:.*)the same loss, to the last bit\n"
)


def test_the_example_ends_with_the_same_loss_although_a_node_is_lost():
    command = [sys.executable, str(ROOT / "examples" / "ray_training.py")]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(PRINTS, done.stdout), done.stdout
