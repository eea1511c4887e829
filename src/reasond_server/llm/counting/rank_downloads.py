"""Downloads a file of ranks when an operator asks for it, never during a model call."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from reasond_server.errors.base import show
from reasond_server.errors.model import ModelProtocolError, ModelUnavailableError

if TYPE_CHECKING:
    from reasond_server.llm.counting.tokenizers import Ranks

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
