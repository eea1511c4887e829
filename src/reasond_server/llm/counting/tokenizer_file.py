"""A model's own tokenizer, from the `tokenizer.json` that is published beside its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.errors import SettingsError, shown
from reasond_server.llm.counting.encoded import EncodedCounter

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import Tokenizer

    from reasond_server.llm.counting.template import TemplateAllowance


class TokenizerFileCounter(EncodedCounter):
    """Counts with a tokenizer of the package `tokenizers`.

    Names of special tokens in a text are counted as the plain text that they are: a server that takes them for
    special tokens counts fewer.
    """

    def __init__(self, tokenizer: Tokenizer, *, template: TemplateAllowance | None = None) -> None:
        super().__init__(template=template)
        # Files often carry the settings of training, which cut every text to one length or fill it up.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer

    def _count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _beginning(self, text: str, tokens: int) -> int:
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return offsets[tokens - 1][1] if 0 < tokens <= len(offsets) else 0

    def _end(self, text: str, tokens: int) -> int:
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return len(text) - offsets[-tokens][0] if 0 < tokens <= len(offsets) else 0


def tokenizer_file(path: Path, *, template: TemplateAllowance | None = None) -> TokenizerFileCounter:
    """Return a counter with the tokenizer in the file `path`.

    Raises:
        SettingsError: the package `tokenizers` is missing, or the file is, or it is no tokenizer.
    """
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 - an optional package
    except ImportError as error:
        raise SettingsError(
            "a tokenizer file needs the package 'tokenizers', which is not installed",
            remedy="Install reasond-server[tokenizers], or leave the tokenizer file out.",
        ) from error
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        # The package raises bare Exceptions, whose texts tell nothing that a person could use.
        raise SettingsError(
            f"{shown(str(path))} is no tokenizer file that can be read",
            remedy="Name the tokenizer.json of the model.",
        ) from error
    return TokenizerFileCounter(tokenizer, template=template)
