"""BentoML's service, for ``bentoml serve tests.benchmarks.served.with_bentoml:Answering``."""

from __future__ import annotations

import bentoml

from tests.benchmarks.served.model import SIZE, answers


@bentoml.service(workers=1)
class Answering:
    @bentoml.api(batchable=True, max_batch_size=SIZE, max_latency_ms=10_000)
    def predict(self, input: list[float]) -> list[float]:
        return answers(list(input))
