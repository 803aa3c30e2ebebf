"""Pipes that put items together, take them apart, or give them another order."""
