"""Tree of thought: several next thoughts for each thought, judged, and a search for the best path."""

from reasond_server.strategies.tree_of_thought.prompts import TreeOfThoughtConfig
from reasond_server.strategies.tree_of_thought.strategy import TreeOfThought

__all__ = ["TreeOfThought", "TreeOfThoughtConfig"]
