"""Where a member of an archive is said to be.

This file is about ``member_path``. Names in an archive are data that may be hostile.
"""

from __future__ import annotations

import os


def member_path(archive: str, name: str, refusal: type[Exception]) -> str:
    """Return an archive's path with a member's name after it.

    The name never leads out of the archive: it is taken as relative, and ``..`` goes no
    further up than to the archive itself. A name that leads to the archive itself, or has a
    NUL, is a ``refusal``: whoever saves such a file would overwrite the archive.
    """
    steps: list[str] = []
    for step in name.replace("\\", "/").split("/"):
        if step == "..":
            del steps[-1:]
        elif step not in ("", "."):
            steps.append(step)
    if not steps or "\0" in name:
        raise refusal(
            f"{archive}: its member {name!r} is not named below the archive; pack the archive"
            " without it, or leave the archive out by on_error"
        )
    # What is before a member may be a URL, in which "//" means something.
    folder = archive if "://" in archive else os.path.normpath(archive)
    return "/".join([folder, *steps])
