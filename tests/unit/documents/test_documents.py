from __future__ import annotations

import importlib.util
import io
from typing import TYPE_CHECKING

import pytest
from docx import Document
from pypdf import PdfWriter
from pypdf.generic import ArrayObject, DictionaryObject, NameObject, TextStringObject

from reasond_server.documents.documents import (
    ReaderLimits,
    UnreadableDocumentError,
    find_kind,
    may_be_document,
    read_document,
)
from tests.unit.documents.document_samples import (
    build_deflated_pdf,
    build_docx,
    build_endless_pdf,
    build_pdf,
    replace_part,
)

if TYPE_CHECKING:
    from pathlib import Path

MOST = 2_000_000
PART = "word/document.xml"


def read(content: bytes, *, most_bytes: int = MOST, limits: ReaderLimits | None = None) -> str:
    return read_document(content, find_kind(content), "the file 'x'", most_bytes=most_bytes, limits=limits).text


def find_refusal(content: bytes, *, most_bytes: int = MOST, limits: ReaderLimits | None = None) -> str:
    with pytest.raises(UnreadableDocumentError) as caught:
        read(content, most_bytes=most_bytes, limits=limits)
    return f"{caught.value.message}. {caught.value.remedy}"


def test_the_text_of_a_pdf_is_taken_page_by_page() -> None:
    assert read(build_pdf(["Light comes from the Sun", "in seven minutes."])) == (
        "Light comes from the Sun\nin seven minutes."
    )


def test_the_text_of_a_word_document_is_taken_with_its_tables() -> None:
    content = build_docx(["Früher", "", "später"], rows=[("Sun", "7 min"), ("Moon", "1 s")])
    assert read(content) == "Früher\nspäter\nSun\t7 min\nMoon\t1 s"


def test_pages_without_text_are_told() -> None:
    document = read_document(build_pdf(["one", "", ""]), "pdf", "the file 'x'", most_bytes=MOST)
    assert document.text == "one"
    assert "2 of the 3 pages of the file 'x' have no text" in document.warnings[0]


def test_a_scanned_pdf_and_an_empty_document_say_what_to_do() -> None:
    assert "a PDF without text, as scanners make them. Run text recognition" in find_refusal(build_pdf(["", ""]))
    assert "holds no text" in find_refusal(build_docx([]))


def test_an_encrypted_pdf_is_refused_unless_only_changes_need_a_password() -> None:
    assert "is encrypted with a password. Save a copy without one" in find_refusal(build_pdf(["x"], password="geheim"))
    assert read(build_pdf(["open to all"], owner_password="geheim")) == "open to all"


def test_more_text_than_a_task_takes_is_refused() -> None:
    assert "more text than 20 bytes" in find_refusal(build_pdf(["x" * 11, "y" * 11]), most_bytes=20)
    assert "more text than 20 bytes" in find_refusal(build_docx(["x" * 11, "y" * 11]), most_bytes=20)


@pytest.mark.parametrize(
    "content",
    [
        b"%PDF-1.7\n",
        b"%PDF-1.7\n" + b"\x00\xff" * 5000,
        build_pdf(["x"])[:-300],
        build_endless_pdf(),
        b"PK\x03\x04" + b"word/" * 500,
        build_docx(["x"])[:-500],
        replace_part(build_docx(["x"]), PART, b"<w:document"),
        replace_part(build_docx(["x"]), PART, b"<nothing/>"),
        replace_part(build_docx(["x"]), "[Content_Types].xml", b""),
    ],
    ids=lambda content: f"{content[:4]!r} {len(content)}" if isinstance(content, bytes) else None,
)
def test_a_damaged_document_ends_with_a_clear_word(content: bytes) -> None:
    told = find_refusal(content)
    assert any(word in told for word in ("is damaged", "without text", "holds no text")), told


def test_a_document_cannot_bring_in_other_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("canary", encoding="utf-8")
    part = (
        f'<!DOCTYPE d [<!ENTITY e SYSTEM "file://{secret}">]>'
        '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">'
        "<w:body><w:p><w:r><w:t>before &e; after</w:t></w:r></w:p></w:body></w:document>"
    )
    content = replace_part(build_docx(["x"]), PART, part.encode())
    try:
        text = read(content)
    except UnreadableDocumentError as error:
        text = error.message
    assert "canary" not in text


def test_entities_that_grow_are_not_unfolded() -> None:
    entities = "".join(f'<!ENTITY e{number} "{f"&e{number - 1};" * 10}">' for number in range(1, 12))
    part = (
        f'<!DOCTYPE d [<!ENTITY e0 "lol">{entities}]>'
        '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main">'
        "<w:body><w:p><w:r><w:t>&e11;</w:t></w:r></w:p></w:body></w:document>"
    )
    assert find_refusal(replace_part(build_docx(["x"]), PART, part.encode()))


def test_a_document_that_unpacks_to_much_is_refused_before_it_does() -> None:
    told = find_refusal(replace_part(build_docx(["x"]), PART, b" " * 300_000_000))
    assert "needs more than 1,024 MiB of memory" in told


def test_a_pdf_whose_parts_unpack_to_much_is_refused() -> None:
    content = build_deflated_pdf(100_000_000)
    assert len(content) < 1_000_000
    assert "has parts that unpack to more than is safe" in find_refusal(content)


def test_a_reader_is_ended_at_its_limits() -> None:
    """The page unpacks to 20 MB of operators, which take a minute or more to be read."""
    content = build_deflated_pdf(20_000_000)
    assert len(content) < 100_000
    assert "could not be read within 1 s" in find_refusal(content, limits=ReaderLimits(cpu_s=1))
    assert "could not be read within 60 s" in find_refusal(content, limits=ReaderLimits(wall_s=0.5))
    told = find_refusal(content, limits=ReaderLimits(memory_bytes=64 * 1024 * 1024))
    assert "64 MiB" in told


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x89PNG\r\n\x1a\n\x00\x00", "a PNG image"),
        (b"\xff\xd8\xff\xe0\x00", "a JPEG image"),
        (b"\x1f\x8b\x08\x00\xff", "a packed file (gzip)"),
        (b"\x00\x00\x00\x18ftypmp42\xff", "a video"),
        (b"PK\x03\x04\x14\x00xl/workbook.xml", "an Excel workbook"),
        (b"PK\x03\x04\x14\x00a.txt", "a ZIP archive"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500), "an Office file of the old kind"),
        (
            b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(50) + "EncryptedPackage".encode("utf-16-le"),
            "an encrypted Office file",
        ),
        (b"{\\rtf1\\ansi hello}", "a rich text document"),
    ],
)
def test_other_kinds_of_files_are_called_by_their_name(content: bytes, words: str) -> None:
    told = find_refusal(content)
    assert words in told
    assert "Save it as plain text, PDF or DOCX" in told


@pytest.mark.parametrize(
    "text",
    ["", "ID3 tags are old.", "RIFF and GIF8 are marks.", "BZh", "Such files begin with %PDF-1.7.", "héllo", "a\0b"],
)
def test_a_text_stays_a_text_whatever_it_begins_with(text: str) -> None:
    assert find_kind(text.encode()) == ""


def test_only_documents_may_be_larger_than_a_text() -> None:
    assert may_be_document(build_pdf(["x"]))
    assert may_be_document(build_docx(["x"])[:100])
    assert not may_be_document(b"\x89PNG")
    assert not may_be_document(bytes(100))


def test_a_missing_library_names_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert "pip install 'reasond-server[documents]'" in find_refusal(build_pdf(["x"]))


WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
MATH = 'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'
BOX = (
    "<w:r><mc:AlternateContent xmlns:mc='http://schemas.openxmlformats.org/markup-compatibility/2006'><mc:Choice>"
    "<w:txbxContent><w:p><w:r><w:t>{0}</w:t></w:r></w:p></w:txbxContent></mc:Choice><mc:Fallback>"
    "<w:txbxContent><w:p><w:r><w:t>{0}</w:t></w:r></w:p></w:txbxContent></mc:Fallback></mc:AlternateContent></w:r>"
)
RUN = "<w:r><w:t>{}</w:t></w:r>"
LOST = {
    "an insertion": f"<w:p><w:ins>{RUN}</w:ins></w:p>",
    "moved text": f"<w:p><w:moveFrom>{RUN.format('GONE')}</w:moveFrom><w:moveTo>{RUN}</w:moveTo></w:p>",
    "a content control in a line": f"<w:p><w:sdt><w:sdtPr/><w:sdtContent>{RUN}</w:sdtContent></w:sdt></w:p>",
    "a content control around paragraphs": f"<w:sdt><w:sdtContent><w:p>{RUN}</w:p></w:sdtContent></w:sdt>",
    "a control around a row": (
        f"<w:tbl><w:sdt><w:sdtContent><w:tr><w:tc><w:p>{RUN}</w:p></w:tc></w:tr></w:sdtContent></w:sdt></w:tbl>"
    ),
    "a control around a cell": (
        f"<w:tbl><w:tr><w:sdt><w:sdtContent><w:tc><w:p>{RUN}</w:p></w:tc></w:sdtContent></w:sdt></w:tr></w:tbl>"
    ),
    "a simple field": f"<w:p><w:fldSimple>{RUN}</w:fldSimple></w:p>",
    "a field with its code": f"<w:p><w:r><w:instrText>GONE</w:instrText></w:r>{RUN}</w:p>",
    "a formula": "<w:p><m:oMath><m:r><m:t>{}</m:t></m:r></m:oMath></w:p>",
    "a link": f"<w:p><w:hyperlink>{RUN}</w:hyperlink></w:p>",
    "a smart tag": f"<w:p><w:smartTag>{RUN}</w:smartTag></w:p>",
    "a text box": f"<w:p>{BOX}</w:p>",
    "a table in a table": (
        f"<w:tbl><w:tr><w:tc><w:tbl><w:tr><w:tc><w:p>{RUN}</w:p></w:tc></w:tr></w:tbl></w:tc></w:tr></w:tbl>"
    ),
}


@pytest.mark.parametrize("body", LOST.values(), ids=list(LOST))
def test_text_of_a_word_document_is_read_wherever_it_stands(body: str) -> None:
    document = f"<w:document {WORD} {MATH}><w:body>{body.format('FOUND')}</w:body></w:document>"
    assert read(replace_part(build_docx([]), PART, document.encode())).strip() == "FOUND"


def test_deleted_text_is_not_read() -> None:
    body = "<w:p><w:del><w:r><w:delText>GONE</w:delText></w:r></w:del><w:r><w:t>Stays.</w:t></w:r></w:p>"
    document = f"<w:document {WORD}><w:body>{body}</w:body></w:document>"
    assert read(replace_part(build_docx([]), PART, document.encode())) == "Stays."


def test_headers_and_footers_are_read_after_the_text() -> None:
    document = Document()
    document.add_paragraph("Body.")
    document.sections[0].header.paragraphs[0].text = "HEADER12"
    document.sections[0].footer.paragraphs[0].text = "FOOTER13"
    document.add_comment(document.paragraphs[0].runs, text="COMMENT14", author="A")
    file = io.BytesIO()
    document.save(file)
    assert set(read(file.getvalue()).splitlines()) == {
        *("Body.", "Header: HEADER12", "Footer: FOOTER13", "Comment: COMMENT14")
    }


def test_what_is_no_text_in_a_word_document_is_told() -> None:
    body = "<w:p><w:r><w:t>See</w:t><w:drawing><a:blip xmlns:a='a'/></w:drawing></w:r></w:p><w:altChunk/>"
    document = f"<w:document {WORD}><w:body>{body}</w:body></w:document>"
    content = replace_part(build_docx([]), PART, document.encode())
    found = read_document(content, "docx", "the file 'x'", most_bytes=MOST)
    assert found.text == "See"
    assert "1 picture, 1 embedded file" in found.warnings[0]


def test_what_is_filled_in_into_a_form_and_noted_on_a_page_is_read() -> None:
    writer = PdfWriter(clone_from=io.BytesIO(build_pdf(["Name:"])))
    field = DictionaryObject(
        {
            NameObject("/FT"): NameObject("/Tx"),
            NameObject("/T"): TextStringObject("surname"),
            NameObject("/V"): TextStringObject("FILLED42"),
        }
    )
    fields = ArrayObject([writer._add_object(field)])
    writer.root_object[NameObject("/AcroForm")] = DictionaryObject({NameObject("/Fields"): fields})
    note = DictionaryObject(
        {NameObject("/Subtype"): NameObject("/FreeText"), NameObject("/Contents"): TextStringObject("NOTE43")}
    )
    writer.pages[0][NameObject("/Annots")] = ArrayObject([writer._add_object(note)])
    file = io.BytesIO()
    writer.write(file)
    assert read(file.getvalue()).splitlines() == ["Name:", "Field surname: FILLED42", "Note on page 1: NOTE43"]
