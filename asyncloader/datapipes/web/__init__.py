"""Pipes that read over HTTP and from object stores."""
