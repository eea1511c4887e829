"""Counters that run a real tokenizer from a local file, and the choice among all counters.

No call of a model downloads or deletes anything. tiktoken's own loader downloads a missing file inside the call,
without a time limit, and deletes a file that it considers damaged. So only its encoder is used; this module reads and
checks the files. It downloads a file of ranks when an operator asks for it.

The demo model has its own tokens, pieces of words, which are counted in linear time.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import re
import tempfile
from abc import ABC, abstractmethod
from copy import copy
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from reasond_server.errors.base import SettingsError, show
from reasond_server.errors.model import ModelProtocolError, ModelUnavailableError
from reasond_server.llm.counting.estimates import ByteCounter, EstimatingCounter
from reasond_server.llm.counting.learners import TemplateAllowance
from reasond_server.llm.model import PIECE_CHARACTERS, Message, TokenCounter
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import tiktoken
    from tokenizers import Tokenizer

    from reasond_server.types import Json


_SURROGATE = re.compile("[\ud800-\udfff]")
_FIRST_GUESS = 4
# Learning encodes a prompt once more, and short prompts show the template's tokens just as well.
_LEARNT_FROM_CHARACTERS = 20_000


class EncodedCounter(ABC):
    """Counts by encoding. A million characters take tens of milliseconds, so long texts should be counted in a thread.

    A prefix of a text may have one token more than the whole text. So `head` and `tail` cut between two tokens and
    count the result: it never has more tokens than requested, and is hardly ever shorter than necessary. Lone
    surrogates, which a model may write, count as U+FFFD. The tokens of each message in addition to its content are
    learnt, so prompts are not counted exactly.
    """

    is_exact = False

    def __init__(self) -> None:
        self._template = TemplateAllowance()

    def count_text(self, text: str) -> int:
        """Return the tokens of `text` alone; names of special tokens in it count as plain text."""
        return self._count(_to_encodable(text))

    def count_prompt(self, messages: Sequence[Message]) -> int:
        """Return the tokens of all contents plus those of the template."""
        return self._count_contents(messages) + self._template.count_tokens(len(messages))

    def learn(self, messages: Sequence[Message], reported: int) -> None:
        """Learn that a prompt of `messages` had `reported` tokens; long prompts are ignored."""
        if sum(len(message.content) for message in messages) <= _LEARNT_FROM_CHARACTERS:
            texts = self._count_contents(messages)
            self._template.learn(messages=len(messages), text_tokens=texts, reported=reported)

    def fork(self) -> Self:
        """Return a counter with the same tokenizer that learns the template on its own."""
        forked = copy(self)
        forked._template = self._template.fork()  # noqa: SLF001 - another of the same class
        return forked

    def snapshot(self) -> Json:
        """Return what was learnt of the template."""
        return self._template.snapshot()

    def restore(self, snapshot: Json) -> None:
        """Replace what was learnt of the template. Raises InternalError: `snapshot` is of another kind of counter."""
        self._template.restore(snapshot)

    def head(self, text: str, tokens: int) -> str:
        """Return a prefix of `text` with at most `tokens` tokens, as long as possible."""
        return self._fit(text, tokens, lambda whole, size: whole[:size], self._measure_head)

    def tail(self, text: str, tokens: int) -> str:
        """Return a suffix of `text` with at most `tokens` tokens, as long as possible."""
        return self._fit(text, tokens, lambda whole, size: whole[max(0, len(whole) - size) :], self._measure_tail)

    def _fit(self, text: str, tokens: int, cut: Callable[[str, int], str], measure: Callable[[str, int], int]) -> str:
        """Return what fits of the end of `text` from which `cut` takes characters and `measure` counts them."""
        if tokens <= 0:
            return ""
        guess = tokens * _FIRST_GUESS
        while guess < len(text) and self.count_text(cut(text, guess)) <= tokens:
            guess *= 2
        window = _to_encodable(cut(text, guess))
        most, kept = tokens, window
        while kept and self._count(kept) > tokens:
            kept = cut(window, measure(window, most))
            most -= max(1, self._count(kept) - tokens)
        return cut(text, len(kept))

    def _count_contents(self, messages: Sequence[Message]) -> int:
        return sum(self.count_text(message.content) for message in messages)

    @abstractmethod
    def _count(self, text: str) -> int:
        """Return the tokens of `text`, which has no lone surrogates."""

    @abstractmethod
    def _measure_head(self, text: str, tokens: int) -> int:
        """Return how many whole characters the first `tokens` tokens of `text` cover; 0 for none."""

    @abstractmethod
    def _measure_tail(self, text: str, tokens: int) -> int:
        """Return how many whole characters the last `tokens` tokens of `text` cover; 0 for none."""


def _to_encodable(text: str) -> str:
    """Return `text` with U+FFFD for lone surrogates, which no tokenizer accepts; the length does not change."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


_log = logging.getLogger("reasond.llm.counting")

_SOURCE = "https://openaipublic.blob.core.windows.net/encodings/{name}.tiktoken"
_LETTER_GROUP = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"


@value
class Ranks:
    """An encoding: its name, the SHA-256 of its file, and the pattern that splits a text before tokens are merged."""

    name: str
    sha256: str
    pattern: str

    @property
    def source(self) -> str:
        """Where OpenAI publishes the file."""
        return _SOURCE.format(name=self.name)

    @property
    def file_names(self) -> tuple[str, str]:
        """The names that the file may have: its name in tiktoken's cache, and its plain name."""
        key = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        return key, f"{self.name}.tiktoken"

    def find_files(self, folders: Sequence[Path]) -> list[Path]:
        """Return the paths in `folders` that the file may have."""
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

# The two differ only in their special tokens, which are never encoded here.
_SAME_TEXT = {"o200k_harmony": "o200k_base"}


class TiktokenCounter(EncodedCounter):
    """Counts with one of OpenAI's encodings: exact for OpenAI's own models, unreliable for others."""

    def __init__(self, encoding: tiktoken.Encoding) -> None:
        super().__init__()
        self._encoding = encoding

    def _count(self, text: str) -> int:
        # `encode` raises an error if a text has the name of a special token.
        return len(self._encoding.encode_ordinary(text))

    def _measure_head(self, text: str, tokens: int) -> int:
        first = self._encoding.decode_bytes(self._encoding.encode_ordinary(text)[:tokens])
        return len(first.decode("utf-8", "ignore"))

    def _measure_tail(self, text: str, tokens: int) -> int:
        last = self._encoding.decode_bytes(self._encoding.encode_ordinary(text)[-tokens:])
        return len(last.decode("utf-8", "ignore"))


def find_ranks(model: str) -> str:
    """Return the name of the encoding of an OpenAI model; empty if tiktoken does not know the model."""
    from tiktoken.model import encoding_name_for_model  # noqa: PLC0415 - only when used

    try:
        name = encoding_name_for_model(model.rpartition("/")[2])
    except KeyError:
        return ""
    return _SAME_TEXT.get(name, name)


def find_local_encoding(
    name: str, folders: Sequence[Path], *, known: Sequence[Ranks] = KNOWN_RANKS
) -> tiktoken.Encoding | None:
    """Return the encoding `name`; None if no folder has its complete file.

    A file with another checksum is logged and not changed.
    """
    ranks = next((one for one in known if one.name == name), None)
    if ranks is None:
        return None
    for path in ranks.find_files(folders):
        content = _read_checked(path, ranks.sha256)
        if content is not None:
            return _build_encoding(ranks, content)
    return None


def _read_checked(path: Path, sha256: str) -> bytes | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    if hashlib.sha256(content).hexdigest() == sha256:
        return content
    _log.warning("a file of ranks is not what it should be and is not used", extra={"path": str(path)})
    return None


def _build_encoding(ranks: Ranks, content: bytes) -> tiktoken.Encoding | None:
    """Return the encoding of a file that has on each line a token in base64 and its rank."""
    import tiktoken  # noqa: PLC0415 - only when used

    try:
        pairs = (line.split() for line in content.splitlines() if line)
        merges = {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
        return tiktoken.Encoding(ranks.name, pat_str=ranks.pattern, mergeable_ranks=merges, special_tokens={})
    except ValueError:
        _log.warning("a file of ranks cannot be read", extra={"encoding": ranks.name})
        return None


class TokenizerFileCounter(EncodedCounter):
    """Counts with a tokenizer of the package `tokenizers`.

    Names of special tokens in a text count as plain text. A server that treats them as special tokens counts fewer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        # Files often contain settings of the training, which truncate or pad every text to one length.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer

    def _count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _measure_head(self, text: str, tokens: int) -> int:
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return offsets[tokens - 1][1] if 0 < tokens <= len(offsets) else 0

    def _measure_tail(self, text: str, tokens: int) -> int:
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return len(text) - offsets[-tokens][0] if 0 < tokens <= len(offsets) else 0


def load_tokenizer_file(path: Path) -> TokenizerFileCounter:
    """Return a counter with the tokenizer in the file `path`.

    Raises:
        SettingsError: the package `tokenizers` or the file is missing, or the file is not a tokenizer.
    """
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415 - an optional package
    except ImportError as error:
        raise SettingsError(
            "a tokenizer file needs the package 'tokenizers', which is not installed",
            remedy="Install reasond-server[tokenizers], or leave the tokenizer file out.",
        ) from error
    refusal = SettingsError(
        f"{show(str(path))} is no tokenizer file that can be read", remedy="Name the tokenizer.json of the model."
    )
    # A pipe or a device would be read for ever.
    if path.exists() and not path.is_file():
        raise refusal
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        # The package raises bare Exceptions, whose texts do not help an operator.
        raise refusal from error
    return TokenizerFileCounter(tokenizer)


def choose_counter(
    kind: Literal["auto", "bytes"],
    model: str,
    *,
    tokenizer: Path | None = None,
    folders: Sequence[Path] = (),
    known: Sequence[Ranks] = KNOWN_RANKS,
) -> TokenCounter:
    """Return a counter for `model`. It may read a file of some megabytes, which takes a fraction of a second.

    "auto" uses the tokenizer file if there is one, else tiktoken if one of `folders` has the ranks of `model`, else an
    estimate. "bytes" is the hard upper bound.

    Raises:
        SettingsError: the tokenizer file cannot be used.
    """
    if kind == "bytes":
        return ByteCounter()
    if tokenizer is not None:
        return load_tokenizer_file(tokenizer)
    # tiktoken takes 1.3 MB of memory, so it is imported only if it has a file to read.
    if any(os.access(path, os.R_OK) for ranks in known for path in ranks.find_files(folders)):
        encoding = find_local_encoding(find_ranks(model), folders, known=known)
        if encoding is not None:
            return TiktokenCounter(encoding)
    return EstimatingCounter()


_TIMEOUT_S = 30.0
_MAX_BYTES = 32 * 1024 * 1024


def fetch_ranks(ranks: Ranks, *, source: str, folder: Path) -> Path:
    """Copy the file of `ranks` from `source`, a URL or a path, into `folder`, and return the path of the copy.

    The file is stored only if it is complete and has the right checksum.

    Raises:
        ModelUnavailableError: the source cannot be read, or the folder cannot be written.
        ModelProtocolError: the content of the source has another checksum.
    """
    try:
        content = _read(source)
    except (OSError, URLError, ValueError) as error:
        raise ModelUnavailableError(
            f"The ranks of {ranks.name} cannot be read from {show(source)}",
            remedy=f"Check the network, or bring {ranks.name}.tiktoken here and name it with --source.",
        ) from error
    if len(content) > _MAX_BYTES or hashlib.sha256(content).hexdigest() != ranks.sha256:
        raise ModelProtocolError(
            f"What {show(source)} holds is not the file of ranks of {ranks.name}: its checksum is another",
            remedy=f"The right file has the SHA-256 {ranks.sha256}.",
        )
    try:
        return _write_file(content, folder / f"{ranks.name}.tiktoken")
    except OSError as error:
        raise ModelUnavailableError(
            f"The ranks of {ranks.name} cannot be written to {show(str(folder))}",
            remedy="Choose a folder that may be written with --folder.",
        ) from error


def _read(source: str) -> bytes:
    """Return the content of `source`, cut one byte above the largest size of a file of ranks."""
    if urlsplit(source).scheme in {"http", "https"}:
        with urlopen(source, timeout=_TIMEOUT_S) as response:  # noqa: S310 - the scheme was checked just above
            return bytes(response.read(_MAX_BYTES + 1))
    with Path(source).open("rb") as file:
        return file.read(_MAX_BYTES + 1)


def _write_file(content: bytes, target: Path) -> Path:
    """Write `content` so that a reader sees the whole file or none."""
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    return Path(name).replace(target)


_MAX_LETTERS = 8
_MAX_BLANKS = 16
_MAX_PIECE_CHARACTERS = max(_MAX_LETTERS + 1, _MAX_BLANKS)

_LETTERS = rf"[^\W\d_]{{1,{_MAX_LETTERS}}}"
_DIGITS = r"\d{1,3}"
_REST = rf"\s{{1,{_MAX_BLANKS}}}|[\s\S]"
_FORWARD = re.compile(rf" ?(?:{_LETTERS}|{_DIGITS})|{_REST}")
_BACKWARD = re.compile(rf"(?:{_LETTERS}|{_DIGITS}) ?|{_REST}")


class WordPieceCounter:
    """The demo model's tokenizer: it splits any text into pieces by fixed rules.

    A piece is up to 8 letters or 3 digits with at most one space before them, or up to 16 characters of white
    space, or any other single character. So a token is at least one byte and at most 16 characters, and

    - the pieces of a text, joined, are the text;
    - `count_text(a + b) <= count_text(a) + count_text(b)`;
    - no prefix and no suffix of a text has more tokens than the whole text.

    Args:
        message_overhead: tokens of every message of a prompt in addition to its content.
    """

    def __init__(self, *, message_overhead: int = 4) -> None:
        self._message_overhead = message_overhead

    @property
    def is_exact(self) -> bool:
        """Always True: the counts are those of the demo model."""
        return True

    def split(self, text: str) -> list[str]:
        """Return the tokens of `text`, in order."""
        return list(chain.from_iterable(_cut(_FORWARD, text)))

    def count_text(self, text: str) -> int:
        """Return the tokens of `text` alone."""
        return sum(map(len, _cut(_FORWARD, text)))

    def count_prompt(self, messages: Sequence[Message]) -> int:
        """Return the tokens of all contents plus a constant for each message."""
        return sum(self._message_overhead + self.count_text(message.content) for message in messages)

    def head(self, text: str, tokens: int) -> str:
        """Return the longest prefix of `text` with at most `tokens` tokens."""
        if tokens <= 0:
            return ""
        window = text[: tokens * _MAX_PIECE_CHARACTERS]
        return "".join(islice(chain.from_iterable(_cut(_FORWARD, window)), tokens))

    def tail(self, text: str, tokens: int) -> str:
        """Return the longest suffix of `text` with at most `tokens` tokens.

        It may begin inside a piece of `text`, because the suffix is split into pieces on its own.
        """
        if tokens <= 0:
            return ""
        # Splitting from the right gives as many pieces as splitting from the left, and gives the longest suffix.
        window = text[-tokens * _MAX_PIECE_CHARACTERS :][::-1]
        return "".join(islice(chain.from_iterable(_cut(_BACKWARD, window)), tokens))[::-1]


def _cut(pieces: re.Pattern[str], text: str) -> Iterator[list[str]]:
    """Yield the pieces of `text` in batches, each of at most `PIECE_CHARACTERS` characters.

    The last piece of a batch may continue behind the end of the batch, so it is read again with the next one.
    """
    place = 0
    while place < len(text):
        end = min(place + PIECE_CHARACTERS, len(text))
        found = pieces.findall(text, place, end)
        if end < len(text):
            end -= len(found.pop())
        yield found
        place = end
