"""Pipes that keep what was made once, in memory or in files."""
