"""Files that are no plain text: takes the text out of PDF and Word documents, and names files of other kinds."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from reasond_server.types.values import value

MAX_DOCUMENT_BYTES: Final = 50_000_000
_MIB: Final = 1024 * 1024
_PDF_MARK: Final = b"%PDF-"
# Programs may put something before the mark, and readers look for it in the first 1024 bytes.
_PDF_LOOK: Final = 1024
_ZIP_MARK: Final = b"PK\x03\x04"
_RTF_MARK: Final = b"{\\rtf"
_OLE_MARK: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
# The beginnings of files that people try, and what to do instead.
_MARKS: Final = (
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"II*\x00", "a TIFF image"),
    (b"MM\x00*", "a TIFF image"),
    (b"RIFF", "a WebP image, or sound or video"),
    (b"ID3", "sound"),
    (b"OggS", "sound or video"),
    (b"fLaC", "sound"),
    (b"\x1f\x8b", "a packed file (gzip)"),
    (b"BZh", "a packed file (bzip2)"),
    (b"\xfd7zXZ\x00", "a packed file (xz)"),
    (b"7z\xbc\xaf", "a packed file (7z)"),
    (b"\x28\xb5\x2f\xfd", "a packed file (zstd)"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"\x7fELF", "a program"),
    (b"PAR1", "a Parquet table"),
)
_PLACE_OF_VIDEO: Final = slice(4, 8)
_PARTS: Final = (
    (b"word/", "docx"),
    (b"xl/", "an Excel workbook"),
    (b"ppt/", "a PowerPoint presentation"),
    (b"mimetypeapplication/vnd.oasis.opendocument", "an OpenDocument file"),
    (b"mimetypeapplication/epub", "an EPUB book"),
)
_LIBRARIES: Final = MappingProxyType({"pdf": "pypdf", "docx": "docx"})
_NAMES: Final = MappingProxyType({"pdf": "PDF", "docx": "Word document"})
_AS_TEXT: Final = "Save it as plain text, PDF or DOCX, and ask about that."

_PROBLEMS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "encrypted": ("is encrypted with a password", "Save a copy without one, and ask about that."),
        "too_many_pages": ("has more than 5,000 pages", "Ask about a part of it."),
        "too_much_text": ("has more text than {most_bytes:,} bytes", "Ask about a part of it."),
        "too_large": (
            "needs more than {memory_mib:,} MiB of memory",
            "Save it anew, or ask about a part of it.",
        ),
        "unpacks": ("has parts that unpack to more than is safe", "Save it anew, or as plain text."),
        "damaged": ("is damaged, and no text can be taken out", "Save it anew, or as plain text."),
        "ended": (
            "could not be read within {cpu_s} s and {memory_mib:,} MiB",
            "Save it anew, as plain text, or ask about a part of it.",
        ),
    }
)


class UnreadableDocumentError(Exception):
    """No text can be taken out of a file: `message` says why, `remedy` what to do, empty for nothing."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


@value
class DocumentText:
    """The text of a document, and what its reader is told of what was left out."""

    text: str
    warnings: Sequence[str] = ()


@value
class ReaderLimits:
    """What the process that reads a document may use; it is ended after `wall_s` seconds at the latest."""

    cpu_s: int = 60
    wall_s: float = 300.0
    memory_bytes: int = 1024 * _MIB


def find_kind(content: bytes) -> str:
    """Return "pdf" or "docx", the name of another kind of file that is no text, or "" for what may be text."""
    kind = _find_marked_kind(content)
    # A text may begin with letters that mark another kind of file, or speak of PDF.
    if kind or _is_text(content):
        return kind
    if _PDF_MARK in content[:_PDF_LOOK]:
        return "pdf"
    if content[_PLACE_OF_VIDEO] == b"ftyp":
        return "a video"
    return next((kind for mark, kind in _MARKS if content.startswith(mark)), "")


def _find_marked_kind(content: bytes) -> str:
    """Return the kind of a file that begins with a mark that no text begins with; else ""."""
    if content.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(_PDF_MARK):
        return "pdf"
    if content.startswith(_ZIP_MARK):
        # Names of the parts are not packed; those of an Office file stand in its list at the end.
        return next((kind for mark, kind in _PARTS if mark in content), "a ZIP archive")
    if content.startswith(_OLE_MARK):
        is_encrypted = "EncryptedPackage".encode("utf-16-le") in content
        return "an encrypted Office file" if is_encrypted else "an Office file of the old kind (.doc, .xls, .ppt)"
    return "a rich text document (RTF)" if content.startswith(_RTF_MARK) else ""


def may_be_document(head: bytes) -> bool:
    """Return whether a file that begins with `head` may be a document, so that it may be larger than a text."""
    return head.startswith((_PDF_MARK, _ZIP_MARK)) or find_kind(head) in _LIBRARIES


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return b"\x00" not in content


def read_document(
    content: bytes, kind: str, shown: str, *, most_bytes: int, limits: ReaderLimits | None = None
) -> DocumentText:
    """Return the text of a document of `kind`, "pdf" or "docx"; `shown` names the file in messages.

    Raises:
        UnreadableDocumentError: the file has another kind, no text or too much of it, is damaged or encrypted, or took
            longer or more memory than `limits`; or the extra for documents is not installed.
    """
    if kind not in _LIBRARIES:
        raise UnreadableDocumentError(f"{shown} is {kind}, no text", _AS_TEXT)
    name = _NAMES[kind]
    if importlib.util.find_spec(_LIBRARIES[kind]) is None:
        raise UnreadableDocumentError(
            f"{shown} is a {name}, and what reads it is not installed",
            "Install it with: pip install 'reasond-server[documents]'",
        )
    limits = limits or ReaderLimits()
    outcome = _run_reader(content, kind, most_bytes=most_bytes, limits=limits)
    if "problem" in outcome:
        problem, remedy = _PROBLEMS[outcome["problem"]]
        figures = {"most_bytes": most_bytes, "memory_mib": limits.memory_bytes // _MIB, "cpu_s": limits.cpu_s}
        raise UnreadableDocumentError(f"{shown} is a {name} that {problem.format(**figures)}", remedy)
    pages, blank = outcome["pages"], outcome["blank"]
    if blank == pages:
        raise UnreadableDocumentError(
            f"{shown} is a {name} without text, as scanners make them" if kind == "pdf" else f"{shown} holds no text",
            "Run text recognition over it first, such as ocrmypdf, and ask about the result." if kind == "pdf" else "",
        )
    warnings = []
    if blank:
        warnings.append(f"{blank} of the {pages} pages of {shown} have no text, and are left out: pictures, or scanned")
    if outcome.get("left_out"):
        left_out = ", ".join(outcome["left_out"])
        warnings.append(f"what was left out of {shown}, because it is no text that can be read: {left_out}")
    return DocumentText(text=str(outcome["text"]), warnings=tuple(warnings))


def _run_reader(content: bytes, kind: str, *, most_bytes: int, limits: ReaderLimits) -> Mapping[str, Any]:
    """Let a process of its own read the document, and return what it told."""
    # -P: modules of the working directory are not imported.
    command = [sys.executable, "-P", "-m", "reasond_server.documents.document_reader", kind]
    command += map(str, (most_bytes, limits.cpu_s, limits.memory_bytes))
    try:
        done = subprocess.run(  # noqa: S603 - our own module, with numbers
            command,
            input=content,
            capture_output=True,
            timeout=limits.wall_s,
            check=False,
            # The variables of a server are keys, and what reads a hostile file needs none.
            env={name: os.environ[name] for name in ("LD_LIBRARY_PATH", "PYTHONPATH") if name in os.environ},
        )
        outcome = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        # Ended by a signal or by its limit of memory, it has told nothing.
        return {"problem": "ended"}
    return outcome if isinstance(outcome, dict) else {"problem": "ended"}
