"""Every peer that is installed hands over all of a job, epoch after epoch."""

import pytest

from tests.benchmarks.job import Job
from tests.benchmarks.peers.catalogue import IN_PROCESS, PROCESSES, THREADS

JOB = Job(256, batch_size=32)
SINGLE = Job(256)
LIMIT = 100


def total_of_an_epoch(open_, job):
    """Return the sum of the numbers of the second epoch."""
    loader = open_(job)
    for _ in loader:
        pass
    return sum(sum(item) if job.batch_size else item for item in loader)


@pytest.mark.soak
@pytest.mark.sweep
@pytest.mark.parametrize("job", [JOB, SINGLE], ids=["batches", "single"])
@pytest.mark.parametrize(
    "peer",
    [
        *[pytest.param(peer, id=f"in-process-{peer.name}") for peer in IN_PROCESS],
        *[pytest.param(peer, id=f"threads-{peer.name}") for peer in THREADS],
        *[pytest.param(peer, id=f"processes-{peer.name}") for peer in PROCESSES],
    ],
)
def test_a_peer_hands_over_every_number(peer, job):
    case = peer.case(total_of_an_epoch, job)
    if not case.is_possible():
        pytest.skip(f"needs {', '.join(case.missing())}")
    assert case.measure(LIMIT) == sum(range(job.count))
