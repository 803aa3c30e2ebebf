"""Serve a model over HTTP: decode in worker processes, batch as requests come, answer each.

Start:  python examples/inference_server.py   (needs the extra `serve`; serves until Ctrl-C)
Expect: `curl --data-binary @image.jpg http://127.0.0.1:8000/predict` prints its mean colour.

Two worker processes decode JPEGs, the loop puts what is decoded into batches of up to 32 that
wait at most 5 ms, and the model steps in a thread. The event loop never waits for any of it. Too
many requests are refused at once (503), late ones are given up (504), and on SIGTERM what was
accepted is finished first. A worker that dies is replaced; its requests are tried once more.
"""

import asyncio
import contextlib
import io
import os
from collections.abc import AsyncIterator

import torch
import uvicorn
from PIL import Image
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from torch import nn

from asyncloader import DataLoader2, Feed, MultiProcessingReadingService
from asyncloader.errors import LoaderError

SIDE = 64
CLASSES = 3
WORKERS = int(os.environ.get("WORKERS", "2"))
TIMEOUT = float(os.environ.get("PREDICT_TIMEOUT", "5"))

feed = Feed(max_pending=int(os.environ.get("MAX_PENDING", "256")))


def decode(jpeg: bytes) -> torch.Tensor:
    """Return an image as the model takes it; runs in a worker."""
    with Image.open(io.BytesIO(jpeg)) as image:
        pixels = image.convert("RGB").resize((SIDE, SIDE)).tobytes()
    flat = torch.frombuffer(bytearray(pixels), dtype=torch.uint8)
    return flat.view(SIDE, SIDE, 3).permute(2, 0, 1) / 255


class MeanColour(nn.Module):
    """A model that anybody can check: its answer is the mean of each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, CLASSES, 1, bias=False)
        self.layer.weight.data = torch.eye(3).view(3, 3, 1, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layer(images).mean(dim=(2, 3))


def step(model: nn.Module, images: list[torch.Tensor]) -> list[list[float]]:
    """Return the answers to a batch; runs in a thread."""
    with torch.inference_mode():
        return model(torch.stack(images)).tolist()


async def answer(loader: DataLoader2, model: nn.Module) -> None:
    """Reply to batch after batch; a batch that fails fails by itself."""
    async for batch in loader:
        try:
            batch.reply(await asyncio.to_thread(step, model, batch.data))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the batch's own
            batch.fail(error)


@contextlib.asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    torch.set_num_threads(1)
    graph = feed.map(decode).batch(32)
    service = MultiProcessingReadingService(WORKERS)
    async with DataLoader2(graph, reading_service=service) as loader:
        model_task = asyncio.create_task(answer(loader, MeanColour().eval()))
        yield
        await feed.drain(timeout=10)
        await model_task


async def predict(request: Request) -> JSONResponse:
    try:
        scores = await feed.ask(await request.body(), timeout=TIMEOUT, idempotent=True)
    except TimeoutError as error:
        return JSONResponse({"error": str(error)}, status_code=504)
    except LoaderError as error:  # overloaded, closing, or the worker died twice
        return JSONResponse({"error": str(error)}, status_code=503)
    except OSError as error:  # Pillow's word for what is no image
        return JSONResponse({"error": str(error)}, status_code=400)
    return JSONResponse({"scores": scores})


async def stats(request: Request) -> JSONResponse:
    return JSONResponse(vars(feed.stats()))


async def health(request: Request) -> JSONResponse:
    is_ready = feed.stats().is_ready
    return JSONResponse({"is_ready": is_ready}, status_code=200 if is_ready else 503)


app = Starlette(
    routes=[
        Route("/predict", predict, methods=["POST"]),
        Route("/stats", stats),
        Route("/health", health),
    ],
    lifespan=lifespan,
)


def main() -> None:
    port = int(os.environ.get("PORT", "8000"))
    uvicorn.run(app, host="127.0.0.1", port=port, loop="uvloop", log_level="warning")


if __name__ == "__main__":
    main()
