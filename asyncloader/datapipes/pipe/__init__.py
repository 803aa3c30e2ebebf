"""What every pipe is, what it may be made of, and how a user's function is called in it."""
