"""W2: integers from two workers, one by one and in batches of 64.

Peers get fewer of them, since an epoch of 100,000 would take some of them many seconds.
"""

from __future__ import annotations

from tests.benchmarks.bare_channel import BARE, BARE_ASYNC, bare_rate
from tests.benchmarks.cases import Case
from tests.benchmarks.comparison import Comparison, Target
from tests.benchmarks.job import Job
from tests.benchmarks.measuring import Take, one, our_rate, peer_rate
from tests.benchmarks.peers.catalogue import PROCESSES, TORCH
from tests.benchmarks.peers.peer import cases
from tests.benchmarks.sizes import sized

BATCH_SIZE = 64
SINGLE = Job(sized(102_400, 1_024))
BATCHES = Job(sized(1_024_000, 10_240), batch_size=BATCH_SIZE)
PEERS_SINGLE = Job(sized(20_480, 1_024))
PEERS_BATCHES = Job(sized(409_600, 10_240), batch_size=BATCH_SIZE)
EPOCHS = 2

FOR, ASYNC = "asyncloader, for", "asyncloader, async for"


def cases_of(job: Job, peers_job: Job, take: Take) -> list[Case]:
    ours = Case(ASYNC, our_rate, args=(job, "async", take))
    return [
        ours,
        ours.portable(),
        Case("asyncloader, uvloop", our_rate, ("uvloop",), (job, "uvloop", take)),
        Case(FOR, our_rate, args=(job, "sync", take)),
        Case(BARE_ASYNC, bare_rate, args=(job, "async", take)),
        Case(BARE, bare_rate, args=(job, "sync", take)),
        *cases(PROCESSES, peer_rate, peers_job, take, EPOCHS),
    ]


COMPARISONS = [
    Comparison(
        "W2a: integers one by one from 2 workers",
        "items/s",
        cases_of(SINGLE, PEERS_SINGLE, one),
        against=[TORCH, BARE, BARE_ASYNC],
        targets=[Target(ASYNC, 100, TORCH), Target(FOR, 0.8, BARE), Target(ASYNC, 0.8, BARE_ASYNC)],
    ),
    Comparison(
        "W2b: integers from 2 workers, in batches of 64 made there",
        "items/s",
        cases_of(BATCHES, PEERS_BATCHES, len),
        against=[TORCH, BARE, BARE_ASYNC],
        targets=[Target(ASYNC, 10, TORCH), Target(FOR, 0.7, BARE), Target(ASYNC, 0.7, BARE_ASYNC)],
    ),
]
