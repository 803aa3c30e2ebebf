"""What runs in a worker's process, or in the dispatching process."""
