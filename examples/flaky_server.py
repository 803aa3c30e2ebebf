"""Call a server that answers differently each time, be killed again and again, and lose nothing.

Start:  python examples/flaky_server.py
Expect: three kills, and a ledger in which each prompt was trained once or left out once.

A server scores prompts: another score each time, and an error now and then. A trainer asks it for
many at once, keeps the good ones, trains on batches of them, and saves after each batch what it has
trained on together with the state of its loader. It is killed three times and started again. The
server, which lives on, keeps the ledger: nobody asks it again for a prompt that was settled.
"""

import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper

PROMPTS = 600
BATCH_SIZE = 8
KILLED_AFTER_STEPS = [7, 12, 5]  # of each of the first three runs


async def score(prompt: int) -> tuple[int, float]:
    """Ask the server; another answer each time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
    writer.write(f"GET /{prompt} HTTP/1.0\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    if " 200 " not in answer.partition("\n")[0]:
        raise ConnectionError(f"the server has no score for prompt {prompt}")
    return prompt, float(answer.rpartition("\n")[2])


def is_good(scored: tuple[int, float]) -> bool:
    return scored[1] > 0.4


def saved_in(checkpoint: Path) -> tuple[list[int], Any]:
    """Return what was trained on, and the state of the loader; nothing, and None, at first."""
    if not checkpoint.exists():
        return [], None
    saved = json.loads(checkpoint.read_text())
    return saved["trained"], saved["loader"]


def save(checkpoint: Path, trained: list[int], state: Any) -> None:
    # Whoever dies while writing leaves the checkpoint before whole.
    unfinished = checkpoint.with_suffix(".unfinished")
    unfinished.write_text(json.dumps({"trained": trained, "loader": state}))
    unfinished.replace(checkpoint)


async def train(checkpoint: Path) -> None:
    """Train on all prompts, from the checkpoint if there is one."""
    prompts = IterableWrapper(range(PROMPTS)).shuffle()
    scored = prompts.async_map(
        score, concurrency=16, ordered=False, retries=1, on_error="skip", repeatable=False
    )
    graph = scored.filter(is_good).batch(BATCH_SIZE)
    trained, state = saved_in(checkpoint)
    async with DataLoader2(graph, seed=1) as loader:
        if state is not None:
            loader.load_state_dict(state)
        async for batch in loader:
            trained += [prompt for prompt, _ in batch]
            save(checkpoint, trained, loader.state_dict(include_datapipe=False))
            print("step", flush=True)
        left_out = loader.stats().left_out
    print(json.dumps({"trained": trained, "left out": left_out}), flush=True)


class Server(BaseHTTPRequestHandler):
    """Scores prompts by chance."""

    asked: ClassVar[list[int]] = []

    def do_GET(self) -> None:
        self.asked.append(int(self.path[1:]))
        self.send_response(503 if random.random() < 0.1 else 200)
        self.end_headers()
        self.wfile.write(f"\n{random.random():.3f}".encode())

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "checkpoint.json"
        command = [sys.executable, __file__, str(checkpoint), str(server.server_port)]
        again, ledger = 0, ""
        for steps in [*KILLED_AFTER_STEPS, None]:
            known = set(saved_in(checkpoint)[0])
            Server.asked.clear()
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
                assert trainer.stdout is not None
                for count, ledger in enumerate(trainer.stdout, 1):  # noqa: B007 - the last line
                    if count == steps:
                        trainer.send_signal(signal.SIGKILL)
                        print(f"killed after {len(saved_in(checkpoint)[0])} prompts", flush=True)
            again += len(known & set(Server.asked))
    found = json.loads(ledger)
    trained, left_out = found["trained"], found["left out"]
    print(f"trained: {len(trained)} prompts, each once: {len(set(trained)) == len(trained)}")
    print(f"left out: {', '.join(f'{count} by {why}' for why, count in left_out.items())}")
    print(f"all of {PROMPTS}: {len(trained) + sum(left_out.values()) == PROMPTS}")
    print(f"asked again although they were trained on: {again}")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        PORT = int(sys.argv[2])
        asyncio.run(train(Path(sys.argv[1])))
    else:
        main()
