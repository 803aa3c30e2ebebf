"""Ask a server about a file of prompts, and write each answer once however often it is killed.

Start:  python examples/batch_inference.py
Expect: two kills, and a file with one answer for each prompt.

An answer is appended to the file, then acknowledged, and then the loader's state is saved with the
length of the file. What a killed program wrote after its last state is cut off, since the loader
yields those prompts again. So the file and the state always tell of the same prompts, and
``loader.numbers`` says which line of the prompts an answer belongs to.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper

PROMPTS, BATCH_SIZE = 600, 20
KILLED_AFTER_BATCHES = [8, 12]  # of each of the first two runs


# The server -----------------------------------------------------------------------------------


async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a prompt, or fail now and then."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        prompt = (await reader.readexactly(int(head.rpartition(":")[2]))).decode()
    except asyncio.IncompleteReadError:
        return  # who asked was killed
    await asyncio.sleep(random.expovariate(100))
    status = "503 Busy" if random.random() < 0.1 else "200 OK"
    writer.write(f"HTTP/1.0 {status}\r\n\r\n{prompt.upper()} {random.random():.6f}".encode())
    writer.close()


async def serve() -> None:
    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()


async def ask(prompt: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
    body = prompt.encode()
    writer.write(f"POST / HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    head, _, answer = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    if " 200 " not in head:
        raise ConnectionError(head)  # rollout tries it again
    return answer


# The program that is killed -------------------------------------------------------------------


def append(answers: TextIO, batch: list[str], numbers: Sequence[int]) -> None:
    for number, answer in zip(numbers, batch, strict=True):
        answers.write(json.dumps({"number": number, "answer": answer}) + "\n")
    answers.flush()
    os.fsync(answers.fileno())


def save(path: Path, state: Any, length: int) -> None:
    # Whoever dies while writing leaves the state before whole.
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("w") as file:
        json.dump({"loader": state, "length": length}, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


async def answer_all(folder: Path) -> None:
    """Answer all prompts of a file, from where the last state was saved."""
    state_path = folder / "state.json"
    saved = json.loads(state_path.read_text()) if state_path.exists() else None
    prompts = IterableWrapper((folder / "prompts.txt").read_text().splitlines())
    graph = prompts.rollout(ask, concurrency=32, attempts=5).batch(BATCH_SIZE)
    with (folder / "answers.jsonl").open("a") as answers:
        answers.truncate(saved["length"] if saved else 0)
        async with DataLoader2(graph, acknowledge=True) as loader:
            if saved:
                loader.load_state_dict(saved["loader"])
            async for batch in loader:
                append(answers, batch, loader.numbers)
                print("written", flush=True)
                loader.ack()
                save(state_path, loader.state_dict(include_datapipe=False), answers.tell())
            print(sum(loader.stats().left_out.values()), flush=True)


# Both, and the kills --------------------------------------------------------------------------


def started(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as name, started("serve") as server:
        try:
            folder = Path(name)
            (folder / "prompts.txt").write_text("".join(f"prompt {n}\n" for n in range(PROMPTS)))
            assert server.stdout is not None
            port = server.stdout.readline().strip()
            for killed_after in [*KILLED_AFTER_BATCHES, None]:
                last_line = run(port, folder, killed_after)
            verify(folder, left_out=int(last_line))
        finally:
            server.terminate()


def run(port: str, folder: Path, killed_after: int | None) -> str:
    """Run the program, kill it after so many batches, and return the last line it printed."""
    line = ""
    with started("answer", port, str(folder)) as program:
        assert program.stdout is not None
        for count, line in enumerate(program.stdout, 1):  # noqa: B007 - the last line
            if count == killed_after:
                program.send_signal(signal.SIGKILL)
                lines = (folder / "answers.jsonl").read_text().count("\n")
                print(f"killed when {lines} answers were written", flush=True)
    return line


def verify(folder: Path, left_out: int) -> None:
    lines = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    once = len({line["number"] for line in lines}) == len(lines)
    right = all(line["answer"].startswith(f"PROMPT {line['number']} ") for line in lines)
    print(f"{len(lines)} answers, each prompt once: {once}, all as asked: {right}")
    print(f"left out after five failures: {left_out}")
    print(f"all of {PROMPTS}: {len(lines) + left_out == PROMPTS}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve"]:
            asyncio.run(serve())
        case ["answer", port, folder]:
            PORT = int(port)
            asyncio.run(answer_all(Path(folder)))
        case _:
            main()
