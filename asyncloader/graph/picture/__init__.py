"""A graph as a picture: how its boxes lie in rows, and how they are drawn as SVG."""
