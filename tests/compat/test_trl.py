"""TRL trains on the answers of a rollout, through the worker of the example."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.compat

ROOT = Path(__file__).parents[2]


def test_trl_trains_each_prompt_once_over_a_resume() -> None:
    pytest.importorskip("trl", reason="needs trl")
    done = subprocess.run(
        [sys.executable, "examples/trl_rollouts.py"],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)},
        timeout=240,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "trained: 40 prompts in 10 steps of TRL\n" in done.stdout
    assert "resumed: 60 prompts in 15 steps, each once: True\n" in done.stdout
    assert done.stdout.endswith("with max_lag=0: 20 prompts in 5 steps, at most 0 versions later\n")
