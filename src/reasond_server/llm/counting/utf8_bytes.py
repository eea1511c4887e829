"""UTF-8 bytes: an upper bound on the tokens of any text, whatever the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import Message

_CONTINUATION_MASK = 0b1100_0000
_CONTINUATION = 0b1000_0000


class ByteCounter:
    """Counts UTF-8 bytes: every tokenizer's token covers at least one byte, so no text has more tokens.

    What a provider's chat template adds is not in the text and cannot be known here: the two overheads are
    allowances for it, generous for the templates in common use.

    Args:
        message_overhead: tokens allowed for the marks around each message.
        prompt_overhead: tokens allowed once per call, for what a template puts before the first message.
    """

    def __init__(self, *, message_overhead: int = 16, prompt_overhead: int = 64) -> None:
        self._message_overhead = message_overhead
        self._prompt_overhead = prompt_overhead

    @property
    def is_exact(self) -> bool:
        """Whether the counts are the model's own: they are upper bounds."""
        return False

    def count_text(self, text: str) -> int:
        """Return the UTF-8 bytes of `text`."""
        return len(_encoded(text))

    def count_prompt(self, messages: Sequence[Message]) -> int:
        """Return the bytes of all contents and the allowances for the template."""
        contents = sum(self._message_overhead + self.count_text(message.content) for message in messages)
        return self._prompt_overhead + contents

    def head(self, text: str, tokens: int) -> str:
        """Return the longest beginning of `text` of at most `tokens` bytes; characters stay whole."""
        if tokens <= 0:
            return ""
        encoded = _encoded(text[:tokens])
        end = min(tokens, len(encoded))
        while end < len(encoded) and _is_continuation(encoded[end]):
            end -= 1
        return _decoded(encoded[:end])

    def tail(self, text: str, tokens: int) -> str:
        """Return the longest end of `text` of at most `tokens` bytes; characters stay whole."""
        if tokens <= 0:
            return ""
        encoded = _encoded(text[-tokens:])
        start = max(0, len(encoded) - tokens)
        while start < len(encoded) and _is_continuation(encoded[start]):
            start += 1
        return _decoded(encoded[start:])


def _encoded(text: str) -> bytes:
    """Return `text` in UTF-8; a lone surrogate, which a model may write, counts as three bytes."""
    return text.encode("utf-8", "surrogatepass")


def _decoded(encoded: bytes) -> str:
    return encoded.decode("utf-8", "surrogatepass")


def _is_continuation(byte: int) -> bool:
    return byte & _CONTINUATION_MASK == _CONTINUATION
