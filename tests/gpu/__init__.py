"""Tests and measurements that need a GPU: ``python -m pytest tests/gpu -q``.

They need nothing but pytest and pytest-asyncio beside the package, so that they run on a bare
machine with torch. Without a GPU they are skipped.
"""
