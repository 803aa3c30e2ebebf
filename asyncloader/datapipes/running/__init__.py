"""Where a pass runs, and how items cross between its threads and loops."""
