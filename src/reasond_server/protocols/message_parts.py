"""The content of a message on OpenAI's wires: a text, or a list of parts, by the names of all of them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic_core import to_json

from reasond_server.errors.base import Violation, show
from reasond_server.types import Image
from reasond_server.types.values import value

MOST_PROBLEMS: Final = 20
_TEXTS: Final = {
    **dict.fromkeys(("text", "input_text", "output_text", "summary_text", "reasoning_text"), "text"),
    "refusal": "refusal",
    "logs": "logs",
}
_IMAGES: Final = {"image_url": "image_url.url", "input_image": "image_url"}
_FILES: Final = {"file": "file.file_data", "input_file": "file_data"}
_KNOWN: Final = frozenset({*_TEXTS, *_IMAGES, *_FILES})


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
