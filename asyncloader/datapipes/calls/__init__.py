"""Pipes that do many things at once, or ahead of their consumer."""
