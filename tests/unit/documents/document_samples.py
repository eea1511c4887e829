"""PDF and Word documents that are made for tests: good ones, and ones that an attacker might send."""

from __future__ import annotations

import io
import zipfile
import zlib
from typing import TYPE_CHECKING

from docx import Document
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

if TYPE_CHECKING:
    from collections.abc import Sequence


def build_pdf(pages: Sequence[str], *, password: str | None = None, owner_password: str | None = None) -> bytes:
    """Return a PDF with a line of text on each page; an empty text is an empty page."""
    writer = PdfWriter()
    for text in pages:
        page = writer.add_blank_page(width=300, height=300)
        if not text:
            continue
        stream = DecodedStreamObject()
        stream.set_data(f"BT /F1 12 Tf 20 200 Td ({text}) Tj ET".encode("latin-1"))
        page[NameObject("/Contents")] = writer._add_object(stream)
        font = DictionaryObject(
            {
                NameObject("/Type"): NameObject("/Font"),
                NameObject("/Subtype"): NameObject("/Type1"),
                NameObject("/BaseFont"): NameObject("/Helvetica"),
            }
        )
        fonts = DictionaryObject({NameObject("/F1"): writer._add_object(font)})
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    if password is not None or owner_password is not None:
        writer.encrypt(password or "", owner_password or password, algorithm="AES-256")
    file = io.BytesIO()
    writer.write(file)
    return file.getvalue()


def build_deflated_pdf(unpacked_bytes: int) -> bytes:
    """Return a small PDF whose one page unpacks to `unpacked_bytes` of operators."""
    packed = zlib.compress(b"BT /F1 9 Tf " + b"(a) Tj " * (unpacked_bytes // 7), 9)
    font = b"<< /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >>"
    parts = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R /Resources %s >>" % font,
        b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream" % (len(packed), packed),
    ]
    return _join_pdf(parts)


def build_endless_pdf() -> bytes:
    """Return a PDF whose pages name each other as children."""
    parts = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 2 >>",
        b"<< /Type /Pages /Kids [2 0 R] /Count 2 >>",
    ]
    return _join_pdf(parts)


def _join_pdf(parts: Sequence[bytes]) -> bytes:
    text, places = b"%PDF-1.7\n", []
    for number, part in enumerate(parts, 1):
        places.append(len(text))
        text += b"%d 0 obj\n%s\nendobj\n" % (number, part)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    start = len(text)
    text += b"xref\n0 %d\n0000000000 65535 f \n%s" % (len(parts) + 1, table)
    return text + b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(parts) + 1, start)


def build_docx(paragraphs: Sequence[str], *, rows: Sequence[Sequence[str]] = ()) -> bytes:
    """Return a Word document with `paragraphs`, then a table of `rows`."""
    document = Document()
    for text in paragraphs:
        document.add_paragraph(text)
    if rows:
        table = document.add_table(rows=0, cols=len(rows[0]))
        for row in rows:
            for cell, text in zip(table.add_row().cells, row, strict=True):
                cell.text = text
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()


def replace_part(docx: bytes, name: str, content: bytes) -> bytes:
    """Return a copy of a Word document in which the part `name` has another content."""
    file = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(docx)) as old,
        zipfile.ZipFile(file, "w", compression=zipfile.ZIP_DEFLATED, compresslevel=1) as new,
    ):
        for part in old.namelist():
            new.writestr(part, content if part == name else old.read(part))
    return file.getvalue()
