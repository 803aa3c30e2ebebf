"""Child processes: how they are born, watched and ended. Nothing here knows of pipes."""
