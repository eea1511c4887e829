"""PDF files in messages: before a wire reads its messages, the text of each takes the place of its bytes.

A process with bounds takes it out (`documents.documents`). A client that keeps its conversation sends a file with
each request, so the last texts are kept.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, TypeVar

from reasond_server.base.asyncio_tasks import FairSemaphore
from reasond_server.documents.documents import ReaderLimits, UnreadableDocumentError, find_kind, read_document
from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.limits.callers import NO_LIMITS, CallerLimits
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reasond_server.documents.documents import DocumentText
    from reasond_server.protocols.wire_params import WireParams
    from reasond_server.types import Principal

_Params = TypeVar("_Params", bound="WireParams")
_LIMITS: Final = ReaderLimits(cpu_s=10, wall_s=30.0, memory_bytes=512 * 1024 * 1024)
_MOST_TEXT_BYTES: Final = 1_000_000
_MOST_AT_ONCE: Final = 2
_MOST_WAITING: Final = 32
_MOST_KEPT: Final = 16
# Any question about a document takes more.
_LEAST_TOKENS: Final = 256


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
