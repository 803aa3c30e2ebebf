"""LitServe's server: ``python -m tests.benchmarks.served.with_litserve PORT SECONDS``.

A batch that is not full waits so many seconds for company.
"""

from __future__ import annotations

import sys

import litserve

from tests.benchmarks.served.model import SIZE, answers


class Answering(litserve.LitAPI):
    def setup(self, device: str) -> None:
        pass

    # An annotation would say to LitServe what the request has to be.
    def decode_request(self, request):  # type: ignore[no-untyped-def]
        return request["input"]

    def predict(self, numbers: list[float]) -> list[float]:
        return answers(list(numbers))

    def encode_response(self, output: float) -> dict[str, float]:
        return {"output": output}


if __name__ == "__main__":
    answering = Answering(max_batch_size=SIZE, batch_timeout=float(sys.argv[2]))
    server = litserve.LitServer(answering, accelerator="cpu")
    server.run(port=int(sys.argv[1]), log_level="error", generate_client_file=False)
