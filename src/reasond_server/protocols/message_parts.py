"""The content of a message on OpenAI's wires: a text, or a list of parts; PDF files in it give way to their texts.

A process with bounds takes a text out (`documents.documents`). A client that keeps its conversation sends a file with
each request, so the last texts are kept.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic_core import to_json

from reasond_server.base.asyncio_tasks import FairSemaphore
from reasond_server.documents.documents import ReaderLimits, UnreadableDocumentError, find_kind, read_document
from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.limits.callers import NO_LIMITS, CallerLimits
from reasond_server.types import Image
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reasond_server.documents.documents import DocumentText
    from reasond_server.protocols.wire_params import WireParams
    from reasond_server.types import Principal

MOST_PROBLEMS: Final = 20
_TEXTS: Final = {
    **dict.fromkeys(("text", "input_text", "output_text", "summary_text", "reasoning_text"), "text"),
    "refusal": "refusal",
    "logs": "logs",
}
_IMAGES: Final = {"image_url": "image_url.url", "input_image": "image_url"}
_FILES: Final = {"file": "file.file_data", "input_file": "file_data"}
_KNOWN: Final = frozenset({*_TEXTS, *_IMAGES, *_FILES})
_Params = TypeVar("_Params", bound="WireParams")
_LIMITS: Final = ReaderLimits(cpu_s=10, wall_s=30.0, memory_bytes=512 * 1024 * 1024)
_MOST_TEXT_BYTES: Final = 1_000_000
_MOST_AT_ONCE: Final = 2
_MOST_WAITING: Final = 32
_MOST_KEPT: Final = 16
# Any question about a document takes more.
_LEAST_TOKENS: Final = 256


@value
class Content:
    """What a content says and shows, what is not shown to the model of it, and what is wrong with it."""

    text: str = ""
    images: Sequence[Image] = ()
    warnings: Sequence[str] = ()
    problems: Sequence[Violation] = ()


def read_content(field: str, content: object, *, is_asked: bool = True) -> Content:
    """Return what `content` says; None says nothing.

    What `is_asked` is what the user asks: nothing of it is passed over. Others say what is over: images and parts of
    kinds that are not known are not shown to the model, and told.
    """
    if isinstance(content, str) or content is None:
        return Content(text=content or "")
    parts = [content] if isinstance(content, dict) else content
    if not isinstance(parts, list):
        text = f"must be a text or a list of parts, got {show(content)}"
        return Content(problems=(Violation(field=field, description=text),))
    texts: list[str] = []
    images: list[Image] = []
    warnings: dict[str, None] = {}
    problems: list[Violation] = []
    for place, part in enumerate(parts):
        kind = _find_kind(part)
        if not is_asked and (kind in _IMAGES or (kind and kind not in _KNOWN)):
            warnings[f"Parts of the type {show(kind)} that the user did not say are not shown to the model."] = None
            continue
        found = _read_part(f"{field}.{place}", part) if is_asked or kind else to_json(part).decode()
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(found, str):
            texts.append(found)
        elif isinstance(found, Image):
            images.append(found)
        elif not is_asked and kind in _FILES:
            warnings[f"The file {field}.{place}, which the user did not send, cannot be read and is not shown."] = None
        else:
            problems.append(found)
        if len(problems) >= MOST_PROBLEMS:
            break
    return Content(text="\n".join(texts), images=tuple(images), warnings=tuple(warnings), problems=tuple(problems))


def _find_kind(part: object) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else ""


def _read_part(field: str, part: object) -> str | Image | Violation:
    kind = _find_kind(part)
    if not isinstance(part, dict) or kind not in _KNOWN:
        text = f"must be a text, an image or a file: {show(kind or part)} is not supported"
        return Violation(field=field, description=text)
    if kind in _IMAGES:
        shown = part.get("image_url")
        return _read_image(f"{field}.{_IMAGES[kind]}", shown.get("url") if isinstance(shown, dict) else shown)
    if kind in _FILES:
        file = part.get("file") if kind == "file" else part
        return _read_file(f"{field}.{_FILES[kind]}", file if isinstance(file, dict) else {})
    said = part.get(_TEXTS[kind])
    return said if isinstance(said, str) else Violation(field=f"{field}.{_TEXTS[kind]}", description="must be a text")


def _read_image(field: str, url: object) -> Image | Violation:
    """Return the image in a data: URL; no others are fetched."""
    scheme, _, content = str(url).partition(",")
    media_type, _, encoding = scheme.removeprefix("data:").partition(";")
    if scheme.startswith("data:") and encoding == "base64":
        return Image(media_type=media_type, base64=content)
    text = f"must be a data: URL in base64, because no images are fetched here; got {show(url)}"
    return Violation(field=field, description=text)


def _read_file(field: str, file: Mapping[str, Any]) -> str | Violation:
    """Return the text of a file that is sent as base64, under its name."""
    encoded = str(file.get("file_data") or "").rpartition(",")[2]
    try:
        content = base64.b64decode(encoded, validate=True).decode("utf-8")
    except ValueError:
        content = ""
    if content.strip() and "\0" not in content and not content.startswith("%PDF"):
        return f"File {show(file.get('filename'))}:\n{content}"
    text = (
        f"must be a file of UTF-8 text or a PDF in base64, which {show(file.get('filename'))} is not: others are not "
        "read here, and no URLs or ids are fetched; send their text"
    )
    return Violation(field=field, description=text)


@value
class _File:
    """A file within a message: the object that has its bytes as base64 in the member `key`."""

    field: str
    holder: dict[str, Any]
    key: str
    name: object

    def find_pdf(self) -> bytes:
        """Return the bytes of a PDF; nothing of another file, which the wire reads or refuses itself."""
        try:
            content = base64.b64decode(str(self.holder.get(self.key) or "").rpartition(",")[2], validate=True)
        except ValueError:
            return b""
        return content if find_kind(content) == "pdf" else b""


class DocumentTexts:
    """Takes the text out of at most `most_files` PDF files of a request, for callers whose tokens are not spent."""

    def __init__(self, *, most_files: int, limits: CallerLimits = NO_LIMITS) -> None:
        self._most_files = most_files
        self._limits = limits
        self._places = FairSemaphore(
            permits=_MOST_AT_ONCE, most_waiting=_MOST_WAITING, waiters="documents wait for being read"
        )
        self._kept: OrderedDict[str, DocumentText] = OrderedDict()

    async def unfold(self, caller: Principal, params: _Params, field: str) -> _Params:
        """Return `params` with text in the place of each PDF in the messages of its member `field`.

        Raises:
            InvalidRequestError: a file cannot be read, or there are too many.
            TokenBudgetExhaustedError: the caller has no tokens left for the answer.
            OverloadedError: too many documents wait.
        """
        files = [(file, pdf) for file in _find_files(field, getattr(params, field)) if (pdf := file.find_pdf())]
        if not files:
            return params
        if len(files) > self._most_files:
            what = "read no PDF file here" if not self._most_files else f"have at most {self._most_files} PDF files"
            text = f"must {what}, as openai.max_pdf_files says; send the text of the others"
            raise InvalidRequestError.at(files[self._most_files][0].field, text)
        problems: list[Violation] = []
        warnings: list[str] = []
        for file, pdf in files:
            try:
                document = await self._read(caller, pdf, show(file.name))
            except UnreadableDocumentError as error:
                text = f"must be a PDF that can be read: {error.message}. {error.remedy}".rstrip()
                problems.append(Violation(field=file.field, description=text))
            else:
                file.holder[file.key] = base64.b64encode(document.text.encode()).decode()
                warnings += document.warnings
        if problems:
            raise InvalidRequestError.of(*problems)
        return params.model_copy(update={"notes": (*params.notes, *warnings)})

    async def _read(self, caller: Principal, pdf: bytes, shown: str) -> DocumentText:
        key = hashlib.sha256(shown.encode() + b"\0" + pdf).hexdigest()
        if key not in self._kept:
            await self._limits.require_tokens(caller, _LEAST_TOKENS)
            # Who leaves does not end the reader, which keeps its place until then.
            reading = asyncio.create_task(self._run(caller.tenant, pdf, shown), name="reading a document")
            try:
                self._kept[key] = await asyncio.shield(reading)
            finally:
                # Else a failure, its traceback and this frame hold each other, and the file with them.
                del reading
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    async def _run(self, tenant: str, pdf: bytes, shown: str) -> DocumentText:
        async with self._places.acquire(tenant):
            return await asyncio.to_thread(
                read_document, pdf, "pdf", shown, most_bytes=_MOST_TEXT_BYTES, limits=_LIMITS
            )


def _find_files(field: str, parts: object) -> Iterator[_File]:
    """Yield the files in a list of messages or of parts, and in the parts of these."""
    for place, part in enumerate(parts if isinstance(parts, list) else ()):
        if not isinstance(part, dict):
            continue
        where, kind = f"{field}.{place}", part.get("type")
        if kind == "file" and isinstance(file := part.get("file"), dict):
            yield _File(field=f"{where}.file.file_data", holder=file, key="file_data", name=file.get("filename"))
        elif kind == "input_file":
            yield _File(field=f"{where}.file_data", holder=part, key="file_data", name=part.get("filename"))
        elif kind == "document" and isinstance(source := part.get("source"), dict):
            yield _File(field=f"{where}.source", holder=source, key="data", name=part.get("title") or "document")
        for name in ("content", "output"):
            if name in part:
                yield from _find_files(f"{where}.{name}", part[name])
