"""The graph of README's picture; docs/contributing.md has the command that draws it."""

from asyncloader.datapipes.iter import IterableWrapper, SampleMultiplexer


async def download(url: str) -> bytes:
    """Stand for a request over the network."""
    return url.encode()


def read(path: str) -> bytes:
    """Stand for a file that is read."""
    return path.encode()


def decode(image: bytes) -> list[int]:
    """Stand for what makes a tensor of an image."""
    return list(image)


web = IterableWrapper(["https://example.org/1.jpg"]).shuffle().sharding_filter()
disk = IterableWrapper(["images"]).list_files("*.jpg").shuffle().sharding_filter()
mixed = SampleMultiplexer({web.async_map(download): 1, disk.map(read): 3})
graph = mixed.thread_map(decode).batch(64).collate().pin_memory()
