"""The process that takes the text out of one PDF or Word document; `documents` starts it and bounds it.

It reads the file from stdin and writes one JSON object to stdout. What a hostile file does to its libraries ends with
the process: its memory and CPU time are bounded before the file is read.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import resource
import sys
import zipfile
from typing import TYPE_CHECKING, Any, BinaryIO, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pypdf import PdfReader

MOST_PAGES: Final = 5000
MOST_UNPACKED_BYTES: Final = 256 * 1024 * 1024


class UnreadableError(Exception):
    """The text cannot be taken out; the argument is the word for it, which `documents` explains."""


class _Text:
    """Collects text up to `most_bytes` of UTF-8."""

    def __init__(self, most_bytes: int) -> None:
        self._room = most_bytes
        self._parts: list[str] = []

    def add(self, part: str) -> bool:
        """Add `part` unless it is blank; return whether it was added."""
        # Fonts without a table of characters give lone surrogates.
        clean = part.encode("utf-8", "replace")
        if not clean.strip():
            return False
        self._room -= len(clean) + 1
        if self._room < 0:
            raise UnreadableError("too_much_text")
        self._parts.append(clean.decode())
        return True

    def __str__(self) -> str:
        """Return all of it."""
        return "\n".join(self._parts)


def read_pdf(file: BinaryIO, most_bytes: int) -> Mapping[str, Any]:
    """Return the text of a PDF page by page, with the number of its pages and of those without text.

    Raises:
        UnreadableError: the file is encrypted, has too many pages, too much text, or parts that unpack to too much.
    """
    # Imported here: the parent and readers of other documents need it not.
    from pypdf import PdfReader  # noqa: PLC0415 - see above
    from pypdf.errors import LimitReachedError  # noqa: PLC0415 - see above

    try:
        return _read_pages(PdfReader(file), most_bytes)
    except LimitReachedError:
        raise UnreadableError("unpacks") from None


def _read_pages(reader: PdfReader, most_bytes: int) -> Mapping[str, Any]:
    # Many files have only a password of their owner, against changes.
    if reader.is_encrypted and not reader.decrypt(""):
        raise UnreadableError("encrypted")
    pages = len(reader.pages)
    if pages > MOST_PAGES:
        raise UnreadableError("too_many_pages")
    text = _Text(most_bytes)
    blank = sum(not text.add(page.extract_text()) for page in reader.pages)
    return {"text": str(text), "pages": pages, "blank": blank}


def read_docx(file: BinaryIO, most_bytes: int) -> Mapping[str, Any]:
    """Return the text of a Word document: paragraphs and rows of tables in their order.

    Raises:
        UnreadableError: the file is too large when unpacked, or has too much text.
    """
    with zipfile.ZipFile(file) as packed:
        if sum(one.file_size for one in packed.infolist()) > MOST_UNPACKED_BYTES:
            raise UnreadableError("too_large")
    from docx import Document  # noqa: PLC0415 - as pypdf

    file.seek(0)
    text = _Text(most_bytes)
    for line in _lines_of(Document(file).iter_inner_content()):
        text.add(line)
    return {"text": str(text), "pages": 1, "blank": 0 if str(text) else 1}


def _lines_of(blocks: Iterable[Any]) -> Iterator[str]:
    """Yield the text of paragraphs, and of each row of a table with tabs between its cells."""
    for block in blocks:
        if not hasattr(block, "rows"):
            yield block.text
            continue
        for row in block.rows:
            # Cells that are merged come once for each column that they span.
            cells = {id(cell._tc): cell for cell in row.cells}  # noqa: SLF001 - the only name of a cell's identity
            yield "\t".join(" ".join(_lines_of(cell.iter_inner_content())) for cell in cells.values())


READERS: Final[Mapping[str, Callable[[BinaryIO, int], Mapping[str, Any]]]] = {"pdf": read_pdf, "docx": read_docx}


def main(arguments: Sequence[str]) -> None:
    """Read stdin as `arguments` say: kind, most bytes of text, seconds of CPU time, bytes of memory."""
    kind, most_bytes, cpu_s, memory_bytes = arguments[0], *map(int, arguments[1:4])
    for limit, value in ((resource.RLIMIT_CPU, cpu_s), (resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_CORE, 0)):
        # Not every system can bound all of them; the parent ends the process in any case.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(limit, (value, value))
    # The libraries tell of every small fault.
    logging.disable(logging.CRITICAL)
    content = io.BytesIO(sys.stdin.buffer.read())
    try:
        told = READERS[kind](content, most_bytes)
    except UnreadableError as error:
        told = {"problem": str(error)}
    except MemoryError:
        told = {"problem": "too_large"}
    except Exception:  # noqa: BLE001 - whatever a library raises for a damaged file, the file is damaged
        told = {"problem": "damaged"}
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1:])
