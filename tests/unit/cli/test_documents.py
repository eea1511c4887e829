from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

from reasond_server.cli.documents import ReaderLimits, find_kind, may_be_document, read_document
from reasond_server.cli.outcome import CommandError, ExitCode
from tests.unit.cli.document_samples import (
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
    return read_document(content, find_kind(content), "the file 'x'", most_bytes=most_bytes, limits=limits)


def find_refusal(content: bytes, *, most_bytes: int = MOST, limits: ReaderLimits | None = None) -> str:
    with pytest.raises(CommandError) as caught:
        read(content, most_bytes=most_bytes, limits=limits)
    assert caught.value.code is ExitCode.BAD_REQUEST
    return f"{caught.value.message}. {caught.value.remedy}"


def test_the_text_of_a_pdf_is_taken_page_by_page() -> None:
    assert read(build_pdf(["Light comes from the Sun", "in seven minutes."])) == (
        "Light comes from the Sun\nin seven minutes."
    )


def test_the_text_of_a_word_document_is_taken_with_its_tables() -> None:
    content = build_docx(["Früher", "", "später"], rows=[("Sun", "7 min"), ("Moon", "1 s")])
    assert read(content) == "Früher\nspäter\nSun\t7 min\nMoon\t1 s"


def test_pages_without_text_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert read(build_pdf(["one", "", ""])) == "one"
    assert "2 of the 3 pages of the file 'x' have no text" in capsys.readouterr().err


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
    except CommandError as error:
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
