"""Tree of thought: several ways of going on from each thought, judged and searched for the best."""

from reasond_server.strategies.tree_of_thought.config import TreeOfThoughtConfig
from reasond_server.strategies.tree_of_thought.strategy import TreeOfThought

__all__ = ["TreeOfThought", "TreeOfThoughtConfig"]
