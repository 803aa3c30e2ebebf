"""How much there is to know: counts of a checkout, and of the way one item takes through it."""
