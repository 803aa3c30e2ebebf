"""The fluent methods, as editors and type checkers see them.

``functional_datapipe`` puts the methods in place when a pipe class is defined, so here are
only their types: those of ``pipe.map(fn).batch(64)``. A test holds every declaration
against the constructor it stands for.
"""

from asyncloader.datapipes.fluent.lookups import MapFluent
from asyncloader.datapipes.fluent.streams import IterFluent

__all__ = ["IterFluent", "MapFluent"]
