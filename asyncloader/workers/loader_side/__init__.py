"""The workers as their loader sees them."""
