"""Pipes with several sources or several readers, and those that divide a stream."""
