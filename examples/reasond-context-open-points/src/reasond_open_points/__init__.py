"""A context provider that reminds the model of tools that failed."""

from reasond_open_points.provider import OpenPoints

__all__ = ["OpenPoints"]
