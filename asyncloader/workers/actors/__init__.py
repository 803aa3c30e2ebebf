"""Workers that are actors of a Ray cluster.

Frames of a worker's conversation travel as arguments and results of the actor's calls. What lies
in slots of the worker's arena goes beside them, as Ray's objects.

    loader                                  actor
    FarEnd.send ─── Actor.tell.remote ───▶  Mailbox.put ──▶ receive ──▶ the worker's program
    FarEnd.attach ◀─ Actor.fetch.remote ──  Mailbox.fetch ◀── send ◀───────────┘

Two fetches wait at a time. Each call of Ray, which may block, is made by a thread; results wake
it. There is one for each actor, so that one that does not answer keeps no other waiting. An actor
that is dealt items by another one holds a ``FarEnd`` of that one.
"""
