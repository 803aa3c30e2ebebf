"""Workers that are threads of the loader's own process.

The programs and their conversation are those of workers that are processes. Frames go from one
queue to the other, with the items as they are.

    loader                          a worker's thread
    NearLoopEnd.send ──────────────▶ NearEnd.receive ──▶ the worker's program
    NearLoopEnd.attach ◀──────────── NearEnd.send ◀──────────────┘

A thread cannot be killed. One that is told to end does so after the item in progress; one that does
not end in time is given up, with a warning.
"""
