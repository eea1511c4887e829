"""OpenAI's tokenizer, from files of ranks that are on this machine already: nothing is fetched, nothing is deleted.

tiktoken's own loader fetches a missing file inside the call, without a time limit, and deletes a file that it takes
for damaged. Here only its encoder is used; files are read and checked by us.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reasond_server.llm.counting.encoded import EncodedCounter

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import tiktoken

    from reasond_server.llm.counting.template import TemplateAllowance

_log = logging.getLogger("reasond.llm.counting")

_SOURCE = "https://openaipublic.blob.core.windows.net/encodings/{name}.tiktoken"
_LETTER_GROUP = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """An encoding: its name, the SHA-256 of its file, and the pattern that cuts texts before they are merged."""

    name: str
    sha256: str
    pattern: str

    @property
    def source(self) -> str:
        """Where OpenAI publishes the file."""
        return _SOURCE.format(name=self.name)

    @property
    def file_names(self) -> tuple[str, str]:
        """Under which names the file may lie: that of tiktoken's cache, and its plain one."""
        key = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        return key, f"{self.name}.tiktoken"

    def files_in(self, folders: Sequence[Path]) -> list[Path]:
        """Return where in `folders` the file may lie."""
        return [folder / name for folder in folders for name in self.file_names]


KNOWN_RANKS = (
    Ranks(
        name="cl100k_base",
        sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        pattern=(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
            r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
        ),
    ),
    Ranks(
        name="o200k_base",
        sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        pattern=(
            rf"{_LETTER_GROUP}{_UPPER}*{_LOWER}+{_CONTRACTION}|{_LETTER_GROUP}{_UPPER}+{_LOWER}*{_CONTRACTION}"
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
    ),
)
"""The encodings of OpenAI's chat models, as tiktoken 0.14 (MIT) defines them."""

# Without its special tokens, which are never looked for here, it is the same encoding.
_SAME_TEXT = {"o200k_harmony": "o200k_base"}


class TiktokenCounter(EncodedCounter):
    """Counts with one of OpenAI's encodings: right for OpenAI's own models, wrong for others by any amount."""

    def __init__(self, encoding: tiktoken.Encoding, *, template: TemplateAllowance | None = None) -> None:
        super().__init__(template=template)
        self._encoding = encoding

    def _count(self, text: str) -> int:
        # `encode` raises where a text names a special token.
        return len(self._encoding.encode_ordinary(text))

    def _beginning(self, text: str, tokens: int) -> int:
        first = self._encoding.decode_bytes(self._encoding.encode_ordinary(text)[:tokens])
        return len(first.decode("utf-8", "ignore"))

    def _end(self, text: str, tokens: int) -> int:
        last = self._encoding.decode_bytes(self._encoding.encode_ordinary(text)[-tokens:])
        return len(last.decode("utf-8", "ignore"))


def ranks_of(model: str) -> str:
    """Return the name of the encoding of an OpenAI model; empty where tiktoken is missing or knows none."""
    try:
        from tiktoken.model import encoding_name_for_model  # noqa: PLC0415 - an optional package
    except ImportError:
        return ""
    try:
        name = encoding_name_for_model(model.rpartition("/")[2])
    except KeyError:
        return ""
    return _SAME_TEXT.get(name, name)


def local_encoding(
    name: str, folders: Sequence[Path], *, known: Sequence[Ranks] = KNOWN_RANKS
) -> tiktoken.Encoding | None:
    """Return the encoding `name` if one of `folders` has its file, whole; None otherwise, or without tiktoken.

    A file with another checksum is named in the log and left alone.
    """
    ranks = next((one for one in known if one.name == name), None)
    if ranks is None:
        return None
    for path in ranks.files_in(folders):
        content = _checked(path, ranks.sha256)
        if content is not None:
            return _encoding(ranks, content)
    return None


def _checked(path: Path, sha256: str) -> bytes | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(content).hexdigest() == sha256:
        return content
    _log.warning("a file of ranks is not what it should be and is not used", extra={"path": str(path)})
    return None


def _encoding(ranks: Ranks, content: bytes) -> tiktoken.Encoding | None:
    """Return the encoding of a file: on each line a token in base64 and its rank."""
    try:
        import tiktoken  # noqa: PLC0415 - an optional package
    except ImportError:
        return None
    try:
        pairs = (line.split() for line in content.splitlines() if line)
        merges = {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
        return tiktoken.Encoding(ranks.name, pat_str=ranks.pattern, mergeable_ranks=merges, special_tokens={})
    except ValueError:
        _log.warning("a file of ranks cannot be read", extra={"encoding": ranks.name})
        return None
