"""Where passes stand, as plain data, and how they go on from there: cursors."""
