"""Where a member of an archive is said to be.

This file is about ``member_path``. Names in an archive are data that may be hostile.
"""

from __future__ import annotations

import os


def member_path(archive: str, name: str) -> str:
    """Return an archive's path with a member's name after it.

    The name leads never out of the archive: it is taken as relative, and ``..`` goes no
    further up than to the archive itself.
    """
    steps: list[str] = []
    for step in name.replace("\\", "/").split("/"):
        if step == "..":
            del steps[-1:]
        elif step not in ("", "."):
            steps.append(step)
    # What is before a member may be a URL, in which "//" means something.
    folder = archive if "://" in archive else os.path.normpath(archive)
    return "/".join([folder, *steps])
