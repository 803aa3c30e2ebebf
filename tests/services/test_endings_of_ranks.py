"""Ranks that train end as their program says, however they end, and print nothing else.

All endings of all kinds take many minutes; this plays them until one is wrong:

    python -m tests.services.test_endings_of_ranks
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys

import pytest

from tests.processes.scripts import ROOT, let_others_say_where
from tests.services.endings_of_ranks import ENDINGS

SCRIPT = "tests.services.endings_of_ranks"

#: How those end that do not end with 0 and print nothing: the exit code, and the last line.
OTHERWISE = {
    "raises": (1, "ValueError: the program's own"),
    "raises_within": (1, "ValueError: the program's own"),
    "exits": (3, ""),
    "exits_within": (3, ""),
    "interrupted": (-signal.SIGINT, "KeyboardInterrupt"),
    "interrupted_within": (-signal.SIGINT, "KeyboardInterrupt"),
    "interrupted_while_rank_1_is_missing": (-signal.SIGINT, "KeyboardInterrupt"),
}


def check_endings(kind: str, workers: int, size: int, names: list[str], limit: float = 280) -> None:
    settings = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", SCRIPT, kind, str(workers), str(size), *names],
        cwd=ROOT,
        env=os.environ | settings | {"PYTHONFAULTHANDLER": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            # The script prints what its ranks say as they are made to end, and is at its own.
            states = let_others_say_where(process.pid)
            stdout, stderr = process.communicate()
            raise AssertionError(f"{states}\n{stdout}\n{stderr}") from None
    assert (process.returncode, stderr) == (0, "")
    endings = [json.loads(line) for line in stdout.splitlines()]
    assert [name for name, _, _ in endings] == names, stdout
    for name, codes, printed in endings:
        code, last = OTHERWISE.get(name, (0, ""))
        assert codes == [code] * size, (name, printed)
        for text in printed:
            lines = text.splitlines()
            assert text.count("Traceback") == bool(last), (name, text)
            assert lines[-1].endswith(last) if last else not lines, (name, text)


@pytest.mark.sweep
@pytest.mark.soak
@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_whose_loader_was_not_closed_ends_with_0_and_prints_nothing(workers):
    names = ["local_then_destroyed", "global_then_destroyed", "in_a_daemon_thread"]
    check_endings("plain", workers, 2, names)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(4))
def test_two_ranks_end_as_their_program_says(first):
    check_endings(("ddp", "fsdp")[first % 2], 0, 2, list(ENDINGS)[first::4])


@pytest.mark.sweep
@pytest.mark.soak
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_four_ranks_with_workers_end_as_their_program_says(kind):
    check_endings(kind, 2, 4, ["local_then_destroyed", "exits_within", "interrupted"])


if __name__ == "__main__":
    for kind, size, workers in itertools.product(("ddp", "fsdp"), (2, 4), (0, 2)):
        check_endings(kind, workers, size, list(ENDINGS), limit=3600)
        sys.stdout.write(f"{kind}, {size} ranks, {workers} workers: {len(ENDINGS)} endings\n")
        sys.stdout.flush()
