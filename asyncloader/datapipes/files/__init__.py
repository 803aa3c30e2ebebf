"""Pipes that find, open, unpack, parse, check and write files."""
