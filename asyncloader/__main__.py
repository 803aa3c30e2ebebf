"""``python -m asyncloader``: a graph drawn, a graph examined, programs of torchdata rewritten."""

from __future__ import annotations

import sys

from asyncloader.tools.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
