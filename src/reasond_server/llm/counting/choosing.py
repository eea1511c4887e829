"""Which counter a model gets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from reasond_server.llm.counting.estimate import EstimatingCounter
from reasond_server.llm.counting.tiktoken_counter import KNOWN_RANKS, TiktokenCounter, local_encoding, ranks_of
from reasond_server.llm.counting.tokenizer_file import tokenizer_file
from reasond_server.llm.counting.utf8_bytes import ByteCounter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from reasond_server.llm.counting.template import TemplateAllowance
    from reasond_server.llm.counting.tiktoken_counter import Ranks
    from reasond_server.llm.model import TokenCounter


def counter_for(
    kind: Literal["auto", "bytes"],
    model: str,
    *,
    tokenizer: Path | None = None,
    folders: Sequence[Path] = (),
    template: TemplateAllowance | None = None,
    known: Sequence[Ranks] = KNOWN_RANKS,
) -> TokenCounter:
    """Return a counter for `model`; it may read a file of some megabytes, which takes a fraction of a second.

    "auto" is the tokenizer file if there is one, else tiktoken if one of `folders` has the ranks of `model`, else an
    estimate. "bytes" is the hard upper bound. `template` is what a chat template is known to add.

    Raises:
        SettingsError: the tokenizer file cannot be used.
    """
    if kind == "bytes":
        return ByteCounter()
    if tokenizer is not None:
        return tokenizer_file(tokenizer, template=template)
    # tiktoken takes 1.3 MB, for nothing where there is no file for it.
    if any(os.access(path, os.R_OK) for ranks in known for path in ranks.files_in(folders)):
        encoding = local_encoding(ranks_of(model), folders, known=known)
        if encoding is not None:
            return TiktokenCounter(encoding, template=template)
    return EstimatingCounter()
