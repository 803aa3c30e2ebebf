"""What a loader and its workers say to one another."""
