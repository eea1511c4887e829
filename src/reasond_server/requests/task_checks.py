"""Checks the limits of a task, once for all transports; the comments of execution.proto state them."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from itertools import chain
from typing import TYPE_CHECKING, Any

from reasond_server.base.plugins import PLUGIN_NAME
from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.llm.counting.requests import count_bytes
from reasond_server.requests.payloads import MAX_DEPTH, measure_depth
from reasond_server.types import (
    NO_BUDGET,
    Budget,
    HistoryMessage,
    Image,
    Speaker,
    Task,
    build_row,
    restore_history,
    write_value,
)
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from _typeshed import DataclassInstance

    from reasond_server.types import Json

MAX_QUERY_CHARACTERS = 100_000
MAX_MATERIAL_BYTES = 2_000_000
MAX_REQUEST_ID_CHARACTERS = 128
MAX_CAPABILITIES = 100
MAX_NAME_CHARACTERS = 256
MAX_CONFIG_VALUES = 10_000
MAX_SYSTEM_CHARACTERS = 100_000
MAX_STOPS = 8
MAX_STOP_CHARACTERS = 100
MAX_SCHEMA_BYTES = 65_536
MAX_IMAGES = 8
MAX_IMAGE_BYTES = 3_000_000
_IMAGE_BEGINNINGS = {
    "image/png": b"\x89PNG\r\n\x1a\n",
    "image/jpeg": b"\xff\xd8\xff",
    "image/webp": b"RIFF",
    "image/gif": b"GIF8",
}
_REQUEST_ID = re.compile(r"[\x21-\x7e]*\Z")


@value
class HistoryBounds:
    """Most messages of a history, and most bytes of UTF-8 of all that they say; images are counted as images."""

    max_messages: int = 10_000
    max_bytes: int = 4 * 1024 * 1024


DEFAULT_BOUNDS = HistoryBounds()


def check_task(task: Task, *, request_id: str = "", history: HistoryBounds = DEFAULT_BOUNDS) -> None:
    """Refuse a task that exceeds the limits; `history` are those of its earlier messages.

    Raises:
        InvalidRequestError: with one violation for each problem of the task.
    """
    in_material = find_in_material(task.material) if task.material else ()
    found = [*find_in_words("query", task.query), *in_material, *_in_names(task)]
    if task.budget is not NO_BUDGET:
        found += find_in_budget(task.budget)
    if task.config and measure_depth(task.config) > MAX_DEPTH:
        found.append(Violation(field="config", description=f"must be nested at most {MAX_DEPTH} levels deep"))
    elif task.config and (count := _values_in(task.config)) > MAX_CONFIG_VALUES:
        text = f"must hold at most {MAX_CONFIG_VALUES} values, got {count}"
        found.append(Violation(field="config", description=text))
    if request_id:
        found += find_in_id("request_id", request_id)
    if task.has_options:
        found += _in_options(task, history)
    if found:
        raise InvalidRequestError.of(*found)


def require_query(query: str) -> str:
    """Return `query` if it is within its limits, for models of requests; a ValueError says what is wrong."""
    return _require_none(query, find_in_words("query", query))


def require_material(material: str) -> str:
    """Return `material` if it is within its limits; a ValueError says what is wrong."""
    return _require_none(material, find_in_material(material))


def _require_none(text: str, problems: Iterator[Violation]) -> str:
    for problem in problems:
        raise ValueError(problem.description)
    return text


def decode_task(row: Mapping[str, Any]) -> Task:
    """Return the task in `row`, which `build_row` made.

    Raises:
        KeyError: a field is missing.
        TypeError: there is a field that tasks do not have.
        ValueError: a field has an unknown value.
    """
    of_types = {
        "agent_capabilities": tuple(row["agent_capabilities"]),
        "budget": Budget(**row["budget"]),
        "history": restore_history(row.get("history", ())),
        "stop": tuple(row.get("stop", ())),
        "images": tuple(Image(**each) for each in row.get("images", ())),
    }
    return Task(**{**row, **of_types})


def digest_request(request: DataclassInstance) -> str:
    """Return a digest of what is asked for; only equal requests have the same one (AIP-155)."""
    text = json.dumps(build_row(request), sort_keys=True, default=write_value)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def find_in_id(field: str, text: str) -> Iterator[Violation]:
    """Yield what is wrong with an id that a client chose; an empty one is right."""
    if len(text) > MAX_REQUEST_ID_CHARACTERS or not _REQUEST_ID.match(text):
        words = f"must be at most {MAX_REQUEST_ID_CHARACTERS} printable ASCII characters, got {show(text)}"
        yield Violation(field=field, description=words)


def _values_in(config: Json) -> int:
    """Return the number of members and items of `config` at all levels; its depth must already be checked."""
    seen = 0
    level: list[Any] = [config.values()]
    while level:
        seen += sum(map(len, level))
        items = chain.from_iterable(level)
        level = [item.values() if isinstance(item, dict) else item for item in items if isinstance(item, dict | list)]
    return seen


def find_in_words(field: str, text: str) -> Iterator[Violation]:
    """Yield what is wrong with what a user says."""
    # Existing clients parse these words (seed 001).
    bounds = f"must be between 1 and {MAX_QUERY_CHARACTERS} characters"
    if not 1 <= len(text) <= MAX_QUERY_CHARACTERS:
        yield Violation(field=field, description=bounds)
        # The content of a text of wrong length is not checked.
        return
    if not text.strip():
        yield Violation(field=field, description=f"{bounds}, and not white space alone")
    yield from find_unfit_characters(field, text)


def find_in_text(field: str, text: str, *, least: int = 0, most: int) -> Iterator[Violation]:
    """Yield what is wrong with a text that has between `least` and `most` characters."""
    if not least <= len(text) <= most:
        bounds = f"between {least} and {most}" if least else f"at most {most}"
        yield Violation(field=field, description=f"must be {bounds} characters, got {len(text)}")
    else:
        yield from find_unfit_characters(field, text)


def find_in_material(material: str) -> Iterator[Violation]:
    """Yield what is wrong with a long text."""
    size = len(material) if material.isascii() else len(material.encode("utf-8", "surrogatepass"))
    if size > MAX_MATERIAL_BYTES:
        text = f"must be at most {MAX_MATERIAL_BYTES} bytes of UTF-8, got {size}"
        yield Violation(field="material", description=text)
        return
    yield from find_unfit_characters("material", material)


def find_unfit_characters(field: str, text: str) -> Iterator[Violation]:
    """Yield violations for characters that no transport can return: NUL and lone surrogates."""
    if "\0" in text:
        place = text.index("\0")
        yield Violation(field=field, description=f"must not hold NUL characters; the first is at position {place}")
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        place = error.start
        yield Violation(field=field, description=f"must be valid Unicode; position {place} holds a lone surrogate")


def _in_names(task: Task) -> Iterator[Violation]:
    if task.strategy is not None and not PLUGIN_NAME.fullmatch(task.strategy):
        text = f"must begin with a-z or _ and have at most 64 of a-z, 0-9 and _, got {show(task.strategy)}"
        yield Violation(field="strategy", description=text)
    if task.agent is not None and len(task.agent) > MAX_NAME_CHARACTERS:
        text = f"must be at most {MAX_NAME_CHARACTERS} characters, got {len(task.agent)}"
        yield Violation(field="agent", description=text)
    if not task.agent_capabilities:
        return
    if len(task.agent_capabilities) > MAX_CAPABILITIES:
        text = f"must have at most {MAX_CAPABILITIES} entries, got {len(task.agent_capabilities)}"
        yield Violation(field="agent_capabilities", description=text)
    elif (longest := max(map(len, task.agent_capabilities))) > MAX_NAME_CHARACTERS:
        text = f"entries must be at most {MAX_NAME_CHARACTERS} characters, one has {longest}"
        yield Violation(field="agent_capabilities", description=text)


def _in_options(task: Task, bounds: HistoryBounds) -> Iterator[Violation]:
    """Yield what is wrong with the instructions, the history, the model's name, the stop strings and the schema."""
    yield from find_in_text("system", task.system, most=MAX_SYSTEM_CHARACTERS)
    yield from find_in_history(task.history, bounds)
    if task.model is not None:
        yield from find_in_text("model", task.model, least=1, most=MAX_NAME_CHARACTERS)
    yield from find_in_stop(task.stop)
    if task.answer_schema is not None:
        yield from find_in_schema(task.answer_schema)
    if task.images:
        yield from find_in_images(task.images)


def find_in_stop(stop: Sequence[str]) -> Iterator[Violation]:
    """Yield what is wrong with the strings that end an answer."""
    if len(stop) > MAX_STOPS:
        yield Violation(field="stop", description=f"must have at most {MAX_STOPS} entries, got {len(stop)}")
        return
    for index, text in enumerate(stop):
        yield from find_in_text(f"stop[{index}]", text, least=1, most=MAX_STOP_CHARACTERS)


def find_in_history(history: Sequence[HistoryMessage], bounds: HistoryBounds = DEFAULT_BOUNDS) -> Iterator[Violation]:
    """Yield what is wrong with earlier messages of a conversation."""
    if len(history) > bounds.max_messages:
        text = f"must have at most {bounds.max_messages} messages, got {len(history)}; leave the oldest out"
        yield Violation(field="history", description=text)
        return
    size = sum([count_bytes(text) for message in history for text in message.list_texts()])
    if size > bounds.max_bytes:
        text = f"must be at most {bounds.max_bytes} bytes of UTF-8 together, got {size}; leave the oldest messages out"
        yield Violation(field="history", description=text)
        return
    for index, message in enumerate(history):
        if not _is_plain(message):
            yield from _in_message(f"history[{index}]", message)
    yield from _in_images(
        {
            f"history[{index}].images[{place}]": image
            for index, message in enumerate(history)
            for place, image in enumerate(message.images)
        },
        field="history",
    )


def _is_plain(message: HistoryMessage) -> bool:
    """Return whether a message says a text that nothing can be wrong with, as most do."""
    text, has_more = message.text, message.images or message.reasoning or message.tool_calls or message.tool_results
    return bool(text) and not has_more and message.role is not Speaker.TOOL and text.isascii() and "\0" not in text


def _in_message(field: str, message: HistoryMessage) -> Iterator[Violation]:
    """Yield what is wrong with one earlier message: it is empty, or has what its author cannot say."""
    parts = {
        "text": (message.text, (Speaker.USER, Speaker.ASSISTANT)),
        "images": (message.images, (Speaker.USER,)),
        "reasoning": (message.reasoning, (Speaker.ASSISTANT,)),
        "tool_calls": (message.tool_calls, (Speaker.ASSISTANT,)),
        "tool_results": (message.tool_results, (Speaker.TOOL,)),
    }
    for name, (part, speakers) in parts.items():
        if part and message.role not in speakers:
            own, other = message.role.value, speakers[0].value
            text = f"must be empty in a message of the role {own!r}; send it in one of {other!r}"
            yield Violation(field=f"{field}.{name}", description=text)
    if not any(part for part, _ in parts.values()):
        name = "tool_results" if message.role is Speaker.TOOL else "text"
        text = "must have at least 1 result" if message.role is Speaker.TOOL else "must be at least 1 character, got 0"
        yield Violation(field=f"{field}.{name}", description=f"{text}; leave an empty message out")
    yield from find_unfit_characters(f"{field}.text", message.text)
    yield from find_unfit_characters(f"{field}.reasoning", message.reasoning)
    for place, call in enumerate(message.tool_calls):
        yield from _in_call(f"{field}.tool_calls[{place}]", call.call_id, call.arguments_json, name=call.name)
    for place, result in enumerate(message.tool_results):
        yield from _in_call(f"{field}.tool_results[{place}]", result.call_id, result.result_json)


def _in_call(field: str, call_id: str, text: str, *, name: str = "-") -> Iterator[Violation]:
    yield from find_in_text(f"{field}.call_id", call_id, least=1, most=MAX_NAME_CHARACTERS)
    yield from find_in_text(f"{field}.tool", name, least=1, most=MAX_NAME_CHARACTERS)
    yield from find_unfit_characters(field, text)


def find_in_images(images: Sequence[Image]) -> Iterator[Violation]:
    """Yield what is wrong with the images of a request."""
    return _in_images({f"images[{index}]": image for index, image in enumerate(images)}, field="images")


def _in_images(images: Mapping[str, Image], *, field: str) -> Iterator[Violation]:
    """Yield what is wrong with images by their places, all of them within `field`."""
    if len(images) > MAX_IMAGES:
        yield Violation(field=field, description=f"must have at most {MAX_IMAGES} images, got {len(images)}")
        return
    # Four characters of base64 are three bytes.
    size = sum([len(image.base64) for image in images.values()]) * 3 // 4
    if size > MAX_IMAGE_BYTES:
        text = f"must be at most {MAX_IMAGE_BYTES} bytes together, got about {size}; send smaller images"
        yield Violation(field=field, description=text)
        return
    for place, image in images.items():
        beginning = _IMAGE_BEGINNINGS.get(image.media_type)
        if beginning is None:
            text = f"must be one of {', '.join(_IMAGE_BEGINNINGS)}, got {show(image.media_type)}"
            yield Violation(field=f"{place}.media_type", description=text)
        if not image.base64:
            yield Violation(field=f"{place}.data", description="is required")
        elif beginning is not None and not _decode_base64(image.base64).startswith(beginning):
            text = f"must be the content of an {image.media_type} file"
            yield Violation(field=f"{place}.data", description=text)


def _decode_base64(text: str) -> bytes:
    """Return the bytes in `text`; none if it is not base64."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return b""


def find_in_schema(schema: Json) -> Iterator[Violation]:
    """Yield what is wrong with the size of a schema; whether it can be used is examined after the admission."""
    if measure_depth(schema) > MAX_DEPTH:
        text = f"must be nested at most {MAX_DEPTH} levels deep; put deep parts under $defs"
        yield Violation(field="answer_schema", description=text)
        return
    size = count_bytes(json.dumps(schema, ensure_ascii=False))
    if size > MAX_SCHEMA_BYTES:
        text = f"must be at most {MAX_SCHEMA_BYTES} bytes of UTF-8, got {size}; shorten its descriptions"
        yield Violation(field="answer_schema", description=text)


def find_in_budget(budget: Budget) -> Iterator[Violation]:
    """Yield the bounds that are too small."""
    bounds = (
        ("max_total_tokens", budget.max_total_tokens, 1),
        ("max_model_calls", budget.max_model_calls, 1),
        ("max_tool_calls", budget.max_tool_calls, 0),
        ("max_output_tokens", budget.max_output_tokens, 1),
    )
    for name, bound, least in bounds:
        if bound is not None and bound < least:
            yield Violation(field=f"budget.{name}", description=f"must be at least {least}, got {bound}")
    if budget.max_elapsed_s is not None and not budget.max_elapsed_s >= 0.001:  # noqa: PLR2004 - 1 ms, as documented
        text = f"must be at least 1 ms, got {budget.max_elapsed_s * 1000:g} ms"
        yield Violation(field="budget.max_elapsed", description=text)
