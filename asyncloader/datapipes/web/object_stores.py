"""What is read from object stores.

This file is about read_from_object_store: S3, Google Cloud Storage, Azure and local
directories through obstore, many objects at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from asyncloader.datapipes.calls.async_mapping import AsyncMapper
from asyncloader.datapipes.pipe.arguments import checked_count
from asyncloader.datapipes.pipe.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.pipe.tolerance import OnError
from asyncloader.datapipes.web.bodies import form_of, too_large, whole_body
from asyncloader.datapipes.web.extras import imported


@functional_datapipe("read_from_object_store")
class ObjectStoreReader(AsyncMapper[Any]):
    """Yield ``(path, stream)`` for each path in a store, the stream holding the whole object.

    ``store`` is a URL (``s3://bucket/prefix``, ``gs://…``, ``az://…``, ``file:///…``), for
    which a store is made with ``store_settings`` (``config``, ``client_options``,
    ``retry_config``, ``region`` …) on every pass in each process that reads; or a store of
    obstore's; or a function that makes one. ``as_bytes=True`` yields ``(path, bytes)``.

    Up to ``concurrency`` objects are read at a time, in the source's order, or with
    ``ordered=False`` as they are ready. An object may take ``timeout`` seconds; within
    them the store tries again by itself. One that is not there is a
    ``FileNotFoundError``, one of more than ``max_bytes`` a ``ResourceExhausted``.
    ``on_error`` and ``max_errors`` are those of ``async_map``. Needs obstore (the extra
    ``cloud``).

    >>> import pathlib, tempfile
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = pathlib.Path(folder, "a").write_text("hello")
    ...     paths = IterableWrapper(["a"])
    ...     list(paths.read_from_object_store(f"file://{folder}", as_bytes=True))
    [('a', b'hello')]
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[str],
        store: Any,
        *,
        concurrency: int = 64,
        ordered: bool = True,
        timeout: float | None = None,
        max_bytes: int = 1 << 30,
        as_bytes: bool = False,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        **store_settings: Any,
    ) -> None:
        if store_settings and not isinstance(store, str):
            raise TypeError(
                f"{', '.join(store_settings)}: settings go with the URL of a store, and store is"
                f" a {type(store).__name__}"
            )
        if not (isinstance(store, str) or callable(store) or hasattr(store, "get_async")):
            raise TypeError(
                "store must be the URL of a store, one of obstore's, or a function that makes one,"
                f" got {type(store).__name__}"
            )
        self.store = store
        self.max_bytes = checked_count("max_bytes", max_bytes, at_least=1)
        self.as_bytes = as_bytes
        # The store's settings may hold secrets, which are no matter for a fingerprint.
        super().__init__(
            source_datapipe,
            GetObject(self.max_bytes, as_bytes),
            concurrency=concurrency,
            ordered=ordered,
            timeout=timeout,
            resource=Stores(store, store_settings),
            on_error=on_error,
            max_errors=max_errors,
        )


class Stores:
    """Opens a store: from a URL, by a function, or one that is there."""

    def __init__(self, store: Any, settings: dict[str, Any]) -> None:
        self.store = store
        self.settings = settings

    @contextlib.asynccontextmanager
    async def __call__(self) -> AsyncIterator[Any]:
        # A store has nothing to close: its connections end when nobody holds it.
        obstore = await imported("obstore.store", "read_from_object_store")
        if isinstance(self.store, str):
            yield obstore.from_url(self.store, **self.settings)
        else:
            yield self.store() if callable(self.store) else self.store


class GetObject:
    """Reads one object of a store."""

    def __init__(self, max_bytes: int, as_bytes: bool) -> None:
        self.max_bytes = max_bytes
        self.form = form_of(as_bytes)

    async def __call__(self, path: str, store: Any) -> tuple[str, Any]:
        if not isinstance(path, str):
            raise TypeError(f"read_from_object_store reads paths, got {type(path).__name__}")
        found = await store.get_async(path)
        if found.meta["size"] > self.max_bytes:
            raise too_large(path, self.max_bytes)
        body = await whole_body(found.stream(), path, self.max_bytes)
        return path, self.form(body)
