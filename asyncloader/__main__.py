"""``python -m asyncloader``: a graph drawn, and a graph examined."""

from __future__ import annotations

import sys

from asyncloader.tools.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
