"""The server with a feed: ``python -m tests.benchmarks.served.with_feed PORT``."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from asyncloader import DataLoader2, Feed
from tests.benchmarks.served.model import SIZE, answers

feed = Feed()


@contextlib.asynccontextmanager
async def serving(_: FastAPI) -> AsyncIterator[None]:
    async with feed.serve(DataLoader2(feed.batch(SIZE).map(answers))):
        yield


app = FastAPI(lifespan=serving)


class Question(BaseModel):
    input: float


@app.post("/predict")
async def predict(question: Question) -> dict[str, float]:
    return {"output": await feed.ask(question.input)}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False)
