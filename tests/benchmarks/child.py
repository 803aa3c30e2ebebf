"""The process of one case: the function is called, and its number is written to a file."""

from __future__ import annotations

import base64
import importlib
import pickle
import sys
from pathlib import Path


def main() -> None:
    what, answer = sys.argv[1:]
    module, function, args = pickle.loads(base64.b64decode(what))
    number = getattr(importlib.import_module(module), function)(*args)
    # In one step: a file that is there has a number in it.
    written = Path(answer + ".new")
    written.write_text(repr(float(number)))
    written.rename(answer)


if __name__ == "__main__":
    main()
