"""The live picture: a page that shows how the loaders of a program are doing."""
