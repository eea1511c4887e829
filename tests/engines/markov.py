"""Writes tiny language models with prescribed output, for a real engine to run.

Such a model is a Markov chain over tokens. Its single block adds nothing to its input, the embedding of token i is the
i-th unit vector, and column i of the output matrix is log P(next | i), divided by the length that the last norm gives a
unit vector. So the logits after token i are log P(. | i): a greedy engine follows the most probable path, and a
sampling engine walks the chain. No weights are trained or downloaded; a file has 4.5 MB.

The chain sees only the last token: the length of a prompt matters, but not its content.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

SIZE = 512
"""Tokens of the vocabulary, and so the width of the model."""

TRAINED_WINDOW = 32_768
# One narrow head: attention adds nothing, and a test may write a hundred thousand tokens.
_HEAD_WIDTH = 16
_FEED_FORWARD = 32
_IMPOSSIBLE = 1e-9
_UNKNOWN, _BEGIN, _END = "<unk>", "<s>", "</s>"
_SPEAKERS = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
_START = "<|assistant|>"
# From the template the engine derives the marks of reasoning and tool calls.
_TEMPLATE = (
    "{% if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}"
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% if message['reasoning_content'] %}<think>{{ message['reasoning_content'] }}</think>{% endif %}"
    "{% if message['content'] %}{{ message['content'] }}{% endif %}"
    "{% for call in message['tool_calls'] or [] %}{% set called = call['function'] %}<tool_call>\n"
    """{"name": "{{ called['name'] }}", "arguments": {{ called['arguments'] | tojson }}}"""
    "\n</tool_call>{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# Whole words of our own prompts, so that they are not tokenized letter by letter.
KNOWN: Sequence[str] = (
    *(" the", " and", " to", " of", " a", " in", " that", " is", " for", " with", " one", " you", " text", " notes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saying:
    """A sequence of tokens and its probability. It ends the reply, or repeats from `back_to` for ever.

    No word may occur twice, because the chain could not tell its place. Sayings may share their first words.
    """

    words: Sequence[str]
    weight: float = 1.0
    back_to: str | None = None

    @property
    def steps(self) -> Sequence[tuple[str, str]]:
        """Each token with its successor."""
        words = (_START, *self.words)
        return tuple(zip(words, (*self.words, self.back_to or _END), strict=True))


_THINKING = ("Let", " me", " see", ":", " six", " times", " seven", " makes")
_ANSWER = ("<answer>", "42", "</answer>")
_CALL = ("<tool_call>", '\n{"name": "', "add", '", "arguments": {"a": ', "6", ', "b": ', "7", "}}", "\n</tool_call>")
# The same call in other tokens, because no word may occur twice.
_OTHER_CALL = (
    *("\n<tool", '_call>\n{"name', '": "', "halve", '", "argu', 'ments": {"c": ', "8", "}", "}\n"),
    "</tool_call>",
)
_GOING_ON = ("<continue>", " So", " far", ",", " progress", " was", " made", ".", "</continue>")
# Longer than the pieces by which a loop is known: this model is to fill its windows.
_ENDLESS = tuple(f" {begin}{vowel}lond" for begin in "bcdfghjklmnprstw" for vowel in "aeiou")

CHAINS: Mapping[str, Sequence[Saying]] = {
    "answer": (Saying(words=(*_THINKING, *_ANSWER)),),
    "continue": (Saying(words=(*_THINKING[:4], *_GOING_ON)),),
    "mixed": (
        Saying(words=(*_THINKING, *_ANSWER), weight=0.6),
        Saying(words=(*_THINKING[:4], *_GOING_ON), weight=0.4),
    ),
    "think": (Saying(words=("<think>", " Hm", ",", " easy", "</think>", *_ANSWER)),),
    "untagged": (Saying(words=(*_THINKING, " forty", "-", "two", ".")),),
    "endless": (Saying(words=_ENDLESS, back_to=_ENDLESS[0]),),
    "chatty": (Saying(words=("Let", *_ENDLESS), back_to=_ENDLESS[0]),),
    "score": tuple(
        Saying(words=(" So", "<answer>", digit, "</answer>"), weight=weight)
        for digit, weight in (("7", 0.6), ("3", 0.3), ("9", 0.1))
    ),
    "call": (Saying(words=_CALL),),
    "calls": (Saying(words=(*_CALL, *_OTHER_CALL)),),
    "silent": (Saying(words=()),),
}
"""The available models, by name."""


def write_model(path: Path, chain: str) -> None:
    """Write the model named `chain` to `path` in GGUF format."""
    import gguf  # noqa: PLC0415 - only tests with an engine need it

    vocabulary = _vocabulary()
    writer = gguf.GGUFWriter(str(path), "llama")
    _describe(writer, chain)
    writer.add_token_list([text for text, _ in vocabulary])
    # Later tokens are merged later; the order does not matter to a vocabulary of whole words and single letters.
    writer.add_token_scores([-float(number) for number in range(len(vocabulary))])
    writer.add_token_types([int(kind) for _, kind in vocabulary])
    for name, tensor in _tensors(CHAINS[chain], [text for text, _ in vocabulary]).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _vocabulary() -> list[tuple[str, Any]]:
    """Return each token's text and kind: specials, bytes, words of the sayings, letters, and padding."""
    import gguf  # noqa: PLC0415 - as above

    kind = gguf.TokenType
    said = [word for sayings in CHAINS.values() for saying in sayings for word in saying.words]
    letters = [*string.printable.replace(" ", ""), "▁"]  # the tokenizer's own sign for a space
    words = [word for word in dict.fromkeys((*said, *KNOWN)) if word not in letters]
    tokens: list[tuple[str, Any]] = [(_UNKNOWN, kind.UNKNOWN), (_BEGIN, kind.CONTROL), (_END, kind.CONTROL)]
    tokens += [(f"<0x{byte:02X}>", kind.BYTE) for byte in range(256)]
    tokens += [(speaker, kind.CONTROL) for speaker in _SPEAKERS]
    tokens += [(word, kind.USER_DEFINED) for word in words]
    tokens += [(letter, kind.NORMAL) for letter in letters]
    return tokens + [(f"<unused {number}>", kind.UNUSED) for number in range(len(tokens), SIZE)]


def _describe(writer: Any, chain: str) -> None:
    """Write the model's dimensions and the tokenizer's settings."""
    writer.add_name(f"markov-{chain}")
    writer.add_context_length(TRAINED_WINDOW)
    writer.add_embedding_length(SIZE)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_FEED_FORWARD)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_key_length(_HEAD_WIDTH)
    writer.add_value_length(_HEAD_WIDTH)
    writer.add_rope_dimension_count(_HEAD_WIDTH)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(SIZE)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)
    writer.add_chat_template(_TEMPLATE)


def _tensors(sayings: Sequence[Saying], texts: Sequence[str]) -> dict[str, Any]:
    """Return the weights: zero everywhere except in the output matrix (shapes: output first, then input)."""
    import numpy as np  # noqa: PLC0415 - as above

    def silence(*shape: int) -> Any:
        return np.zeros(shape, np.float32)

    chances = np.full((SIZE, SIZE), _IMPOSSIBLE)
    numbers = {text: number for number, text in enumerate(texts)}
    for saying in sayings:
        for now, following in saying.steps:
            chances[numbers[now], numbers[following]] = saying.weight
    chances /= chances.sum(axis=1, keepdims=True)
    block = {
        "attn_norm": np.ones(SIZE, np.float32),
        "attn_q": silence(_HEAD_WIDTH, SIZE),
        "attn_k": silence(_HEAD_WIDTH, SIZE),
        "attn_v": silence(_HEAD_WIDTH, SIZE),
        "attn_output": silence(SIZE, _HEAD_WIDTH),
        "ffn_norm": np.ones(SIZE, np.float32),
        "ffn_gate": silence(_FEED_FORWARD, SIZE),
        "ffn_up": silence(_FEED_FORWARD, SIZE),
        "ffn_down": silence(SIZE, _FEED_FORWARD),
    }
    return {
        "token_embd.weight": np.eye(SIZE, dtype=np.float32),
        **{f"blk.0.{name}.weight": weights for name, weights in block.items()},
        "output_norm.weight": np.ones(SIZE, np.float32),
        "output.weight": (np.log(chances).T / np.sqrt(SIZE)).astype(np.float32),
    }
