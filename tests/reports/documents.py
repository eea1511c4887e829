"""Trials of documents: every word of them reaches the model, or a warning says what was left out."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING, Final

from reasond_server.documents.documents import find_kind, read_document
from tests.reports.model_server import MARK, say_text

if TYPE_CHECKING:
    from tests.reports.rows import Row
    from tests.reports.site import Site

_W: Final = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_MATH: Final = "http://schemas.openxmlformats.org/officeDocument/2006/math"
_PACKAGE: Final = "http://schemas.openxmlformats.org/package/2006"
_LINKS: Final = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_TYPE: Final = "application/vnd.openxmlformats-officedocument.wordprocessingml"
_RUN: Final = "<w:r><w:t>{word}</w:t></w:r>"
_PLACES: Final = {
    "body": f"<w:p>{_RUN}</w:p>",
    "inserted": f'<w:p><w:ins w:id="1" w:author="A">{_RUN}</w:ins></w:p>',
    "moved": f'<w:p><w:moveTo w:id="2" w:author="A">{_RUN}</w:moveTo></w:p>',
    "block_control": f"<w:sdt><w:sdtContent><w:p>{_RUN}</w:p></w:sdtContent></w:sdt>",
    "inline_control": f"<w:p><w:sdt><w:sdtContent>{_RUN}</w:sdtContent></w:sdt></w:p>",
    "field": f'<w:p><w:fldSimple w:instr="REF a">{_RUN}</w:fldSimple></w:p>',
    "textbox": f"<w:p><w:r><w:pict><w:txbxContent><w:p>{_RUN}</w:p></w:txbxContent></w:pict></w:r></w:p>",
    "formula": "<w:p><m:oMath><m:r><m:t>{word}</m:t></m:r></m:oMath></w:p>",
    "header": "",
    "footer": "",
}
_NAMES: Final = f'xmlns:w="{_W}" xmlns:r="{_LINKS}" xmlns:m="{_MATH}"'
_KINDS: Final = (
    f'<Types xmlns="{_PACKAGE}/content-types"><Default Extension="rels" '
    'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    f'<Override PartName="/word/document.xml" ContentType="{_TYPE}.document.main+xml"/>{{kinds}}</Types>'
)
_EDGES: Final = {"header": "hdr", "footer": "ftr"}


def build_docx(places: dict[str, str]) -> bytes:
    """Return a Word file with a word at each of the places."""
    body = "".join(_PLACES[place].format(word=word) for place, word in places.items())
    edges = {place: word for place, word in places.items() if place in _EDGES}
    shown = "".join(f'<w:{place}Reference w:type="default" r:id="{place}"/>' for place in edges)
    links = "".join(f'<Relationship Id="{place}" Type="{_LINKS}/{place}" Target="{place}1.xml"/>' for place in edges)
    kinds = "".join(f'<Override PartName="/word/{place}1.xml" ContentType="{_TYPE}.{place}+xml"/>' for place in edges)
    content = f"<w:p>{_RUN.format(word='A report.')}</w:p>{body}<w:sectPr>{shown}</w:sectPr>"
    parts = {
        "[Content_Types].xml": _KINDS.format(kinds=kinds),
        "_rels/.rels": _write_links(
            f'<Relationship Id="r1" Type="{_LINKS}/officeDocument" Target="word/document.xml"/>'
        ),
        "word/_rels/document.xml.rels": _write_links(links),
        "word/document.xml": f"<w:document {_NAMES}><w:body>{content}</w:body></w:document>",
    }
    for place, word in edges.items():
        name = f"w:{_EDGES[place]}"
        parts[f"word/{place}1.xml"] = f"<{name} {_NAMES}><w:p>{_RUN.format(word=word)}</w:p></{name}>"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as written:
        for path, text in parts.items():
            written.writestr(path, '<?xml version="1.0" encoding="UTF-8"?>' + text)
    return file.getvalue()


def _write_links(links: str) -> str:
    return f'<Relationships xmlns="{_PACKAGE}/relationships">{links}</Relationships>'


async def try_document(site: Site, row: Row) -> list[str]:
    """Read a document as the command line does, and ask about it."""
    content = build_docx(row.input["places"])
    found = read_document(content, find_kind(content), "report.docx", most_bytes=2_000_000)
    talk = site.models.begin(row.id, [say_text("<answer>read</answer>")])
    await site.client.reason(
        f"{MARK.format(row=row.id)} What does it say?", material=found.text, strategy="chain_of_thought"
    )
    words = row.input["places"].values()
    if row.right.get("told") and found.warnings:
        return []
    return [f"{word} did not reach the model" for word in words if word not in "".join(talk.asked)]
