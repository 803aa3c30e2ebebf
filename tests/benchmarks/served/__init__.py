"""Servers that answer requests by a model, in batches: a feed beside LitServe and BentoML."""
