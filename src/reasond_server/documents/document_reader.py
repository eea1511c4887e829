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
from collections import Counter
from typing import TYPE_CHECKING, Any, BinaryIO, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

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
    for line in _read_fields(reader):
        text.add(line)
    for number, page in enumerate(reader.pages, 1):
        for note in page.annotations or ():
            written = note.get_object().get("/Contents")
            if written:
                text.add(f"Note on page {number}: {written}")
    return {"text": str(text), "pages": pages, "blank": blank, "left_out": ["an XFA form"] if reader.xfa else []}


def _read_fields(reader: PdfReader) -> Iterator[str]:
    """Yield what is filled in into the fields of a form: pages show it only where a program has drawn it."""
    for name, field in (reader.get_fields() or {}).items():
        value = field.get("/V")
        values = value if isinstance(value, list) else [value]
        words = [str(one).removeprefix("/") for one in values if one is not None]
        if any(words) and words != ["Off"]:
            yield f"Field {field.get('/TU') or name}: {', '.join(words)}"


def read_docx(file: BinaryIO, most_bytes: int) -> Mapping[str, Any]:
    """Return the text of a Word document: its body in order, then headers, footers, notes and comments.

    Text that was inserted or moved under tracked changes counts, deleted text does not.

    Raises:
        UnreadableError: the file is too large when unpacked, or has too much text.
    """
    with zipfile.ZipFile(file) as packed:
        if sum(one.file_size for one in packed.infolist()) > MOST_UNPACKED_BYTES:
            raise UnreadableError("too_large")
    from docx import Document  # noqa: PLC0415 - as pypdf
    from docx.oxml import parse_xml  # noqa: PLC0415 - as pypdf

    file.seek(0)
    main = Document(file).part
    text, lines = _Text(most_bytes), _WordLines()
    for line in lines.read(main.element):
        text.add(line)
    for part in main.package.iter_parts():
        kind = next((label for mark, label in _WORD_PARTS.items() if part.partname.startswith(mark)), "")
        if kind:
            for line in lines.read(parse_xml(part.blob)):
                text.add(f"{kind}: {line}" if line.strip() else "")
    left_out = [f"{count} {noun}{'' if count == 1 else 's'}" for noun, count in lines.left_out.items()]
    return {"text": str(text), "pages": 1, "blank": 0 if str(text) else 1, "left_out": left_out}


_WORD_PARTS: Final = {
    "/word/header": "Header",
    "/word/footer": "Footer",
    "/word/footnotes": "Footnote",
    "/word/endnotes": "Endnote",
    "/word/comments.": "Comment",
}
_SIGNS: Final = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
# Properties, codes of fields, and what tracked changes took away.
_UNREAD: Final = frozenset({"pPr", "rPr", "tblPr", "trPr", "tcPr", "sectPr", "sdtPr", "instrText", "del", "moveFrom"})
_LEFT_OUT: Final = {
    "blip": "picture",
    "imagedata": "picture",
    "OLEObject": "embedded object",
    "altChunk": "embedded file",
    "chart": "chart",
    "relIds": "diagram",
}


class _WordLines:
    """Reads the elements of a part of a Word document; counts in `left_out` what has text that is not read."""

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()

    def read(self, node: Any) -> Iterator[str]:  # noqa: ANN401 - an element of lxml, which has no types
        """Yield the text of the paragraphs in `node`, and of each row of a table with tabs between its cells."""
        for child in _list_children(node):
            name = _name_of(child)
            if name == "p":
                yield from self._read_paragraph(child)
            elif name == "tr":
                yield "\t".join(" ".join(self.read(cell)) for cell in _find_cells(child))
            elif name in _LEFT_OUT:
                self.left_out[_LEFT_OUT[name]] += 1
            elif name not in _UNREAD:
                yield from self.read(child)

    def _read_paragraph(self, paragraph: Any) -> Iterator[str]:  # noqa: ANN401 - as above
        line: list[str] = []
        boxes: list[Any] = []
        self._collect(paragraph, line, boxes)
        yield "".join(line)
        for box in boxes:
            yield from self.read(box)

    def _collect(self, node: Any, line: list[str], boxes: list[Any]) -> None:  # noqa: ANN401 - as above
        for child in _list_children(node):
            name = _name_of(child)
            if name in _SIGNS:
                line.append(_SIGNS[name])
            elif name == "t":
                line.append(child.text or "")
            elif name == "txbxContent":
                boxes.append(child)
            elif name in {"footnoteReference", "endnoteReference"}:
                line.append("*")
            elif name in _LEFT_OUT:
                self.left_out[_LEFT_OUT[name]] += 1
            elif name not in _UNREAD:
                self._collect(child, line, boxes)


def _name_of(node: Any) -> str:  # noqa: ANN401 - as above
    # Comments and processing instructions have a function in place of a tag.
    return node.tag.rpartition("}")[2] if isinstance(node.tag, str) else "sectPr"


def _list_children(node: Any) -> Sequence[Any]:  # noqa: ANN401 - as above
    """Return the children of `node`; of two forms of one thing, for newer and older programs, the first."""
    return list(node)[:1] if _name_of(node) == "AlternateContent" else list(node)


def _find_cells(row: Any) -> Iterator[Any]:  # noqa: ANN401 - as above
    for child in _list_children(row):
        if _name_of(child) == "tc":
            yield child
        elif _name_of(child) not in _UNREAD:
            yield from _find_cells(child)


READERS: Final[Mapping[str, Callable[[BinaryIO, int], Mapping[str, Any]]]] = {"pdf": read_pdf, "docx": read_docx}


def main(arguments: Sequence[str]) -> None:
    """Read stdin as `arguments` say: kind, most bytes of text, seconds of CPU time, bytes of memory."""
    kind, most_bytes, cpu_s, memory_bytes = arguments[0], *map(int, arguments[1:4])
    limits = {resource.RLIMIT_CPU: cpu_s, resource.RLIMIT_AS: memory_bytes}
    # It writes no file.
    limits |= {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0}
    for limit, value in limits.items():
        # Not every system can bound all of them; the parent ends the process in any case.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(limit, (value, value))
    # The libraries tell of every small fault.
    logging.disable(logging.CRITICAL)
    content = io.BytesIO(sys.stdin.buffer.read())
    try:
        outcome = READERS[kind](content, most_bytes)
    except UnreadableError as error:
        outcome = {"problem": str(error)}
    except MemoryError:
        outcome = {"problem": "too_large"}
    except Exception:  # noqa: BLE001 - whatever a library raises for a damaged file, the file is damaged
        outcome = {"problem": "damaged"}
    sys.stdout.write(json.dumps(outcome))


if __name__ == "__main__":
    main(sys.argv[1:])
