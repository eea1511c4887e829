"""Counting tokens before a call: exactly, with a local tokenizer, with a calibrated estimate, or in bytes.

Nothing here calls a server. `ChatModel.count_exactly` returns the count of a server.
"""

from reasond_server.llm.counting.estimates import ByteCounter, EstimatingCounter
from reasond_server.llm.counting.learners import Forkable, Learner, make_fork
from reasond_server.llm.counting.tokenizers import WordPieceCounter, choose_counter

__all__ = ["ByteCounter", "EstimatingCounter", "Forkable", "Learner", "WordPieceCounter", "choose_counter", "make_fork"]
