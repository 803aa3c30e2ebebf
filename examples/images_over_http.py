"""Train on images from a web server: many requests at once, decoded in two processes.

Start:  python examples/images_over_http.py
Expect: four epochs of 594 images; the server lacks 6 of 600, which are left out.

Each worker process keeps 32 requests running and decodes in threads what has arrived, since
the decoder releases the GIL. A busy server is asked again. The server is a small one in this
process.
"""

import asyncio
import io
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy
import torch
from PIL import Image
from torch import nn

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

IMAGES = 600
SIZE = 64
BATCH_SIZE = 24


def jpeg_of(number: int) -> bytes:
    """Return an image: stripes that lie, or that stand if its number is odd."""
    stripes = numpy.sin(numpy.arange(SIZE) * (0.4 + number % 7 / 10) + number) * 100 + 128
    picture = numpy.broadcast_to(stripes.astype(numpy.uint8), (SIZE, SIZE))
    file = io.BytesIO()
    Image.fromarray(picture if number % 2 else picture.T).save(file, "jpeg")
    return file.getvalue()


class ImageServer(ThreadingHTTPServer):
    """A server to which many may want to connect at once."""

    request_queue_size = 128


class Answers(BaseHTTPRequestHandler):
    """Answer /<number>.jpg after 20 ms; every hundredth image is missing."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        time.sleep(0.02)
        number = int(self.path.strip("/").removesuffix(".jpg"))
        body = jpeg_of(number) if number % 100 else b""
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def serving() -> Iterator[str]:
    """Serve images until the end of the block; give the address."""
    with ImageServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def decoded(download: tuple[str, bytes]) -> tuple[torch.Tensor, int]:
    """Return an image as a tensor, and whether its stripes stand."""
    url, body = download
    number = int(url.rpartition("/")[2].removesuffix(".jpg"))
    pixels = numpy.asarray(Image.open(io.BytesIO(body)), dtype=numpy.float32)
    return torch.from_numpy(pixels / 255)[None], number % 2


async def train(address: str) -> None:
    # The model is so small that several threads would only wait for one another.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 2),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    urls = IterableWrapper([f"{address}/{number}.jpg" for number in range(IMAGES)])
    downloads = (
        urls.shuffle()
        .sharding_filter()
        .read_from_http(concurrency=32, as_bytes=True, timeout=10, on_error="skip", max_errors=10)
    )
    graph = downloads.thread_map(decoded).batch(BATCH_SIZE).collate()
    service = MultiProcessingReadingService(num_workers=2)

    async with DataLoader2(graph, reading_service=service) as loader:
        loader.seed(0)
        for epoch in range(1, 5):
            seen = right = 0
            async for images, standing in loader:
                guesses = model(images)
                loss = nn.functional.cross_entropy(guesses, standing)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                seen += len(images)
                right += (guesses.argmax(dim=1) == standing).sum().item()
            print(f"epoch {epoch}: {seen} of {IMAGES} images, {right / seen:.0%} right", flush=True)


if __name__ == "__main__":
    with serving() as address:
        asyncio.run(train(address))
