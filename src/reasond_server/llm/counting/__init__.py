"""Counting tokens before a call: exactly, by a tokenizer at hand, by a calibrated estimate, or by bytes.

Nothing here calls a server; what a server counts is `ChatModel.count_exactly`.
"""

from reasond_server.llm.counting.estimates import ByteCounter, EstimatingCounter
from reasond_server.llm.counting.learning import Forkable, Learner, fork_of
from reasond_server.llm.counting.tokenizers import choose_counter
from reasond_server.llm.counting.word_pieces import WordPieceCounter

__all__ = ["ByteCounter", "EstimatingCounter", "Forkable", "Learner", "WordPieceCounter", "choose_counter", "fork_of"]
