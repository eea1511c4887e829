"""Fill the tables of docs/guides/model-backends.md from the profiles in the code.

The guide's text is written by hand; a table stands between `<!-- table: NAME -->` and `<!-- end -->`, where NAME is
`generic` (all fields and their default values) or `profiles` (what differs from the defaults).
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from reasond_server.config.reference import format_toml_value
from reasond_server.llm.profiles import PROFILES, ModelProfile
from scripts.pages import cell, table

if TYPE_CHECKING:
    from collections.abc import Iterator

PATH = Path("docs") / "guides" / "model-backends.md"
MEANINGS = {
    "limit_field": "the field that carries the limit of tokens",
    "max_stops": "stop strings that a call may carry; 0: none",
    "sampling": "whether `temperature` and `seed` may be sent",
    "reasoning_fields": "where reasoning is read from, in order",
    "sends_reasoning_back": "whether reasoning is sent back with the messages of the assistant",
    "stop_match_fields": "where the server tells which stop string matched",
    "stream_usage": "whether the stream reports usage when asked",
    "json_schema": '`"strict"`: enforced; `"guided"`: enforced, but the model does not see it; `"object"`: any JSON '
    'object; `"none"`',
    "most_logprobs": "of how many likely tokens it tells the log probabilities, in place of each token; 0: of none",
    "tools": "whether tools may be offered",
    "forced_tool_choice": "whether the model can be made to call one",
    "named_tool_choice": "one tool can be demanded by its name; where not, that tool alone is offered",
    "several_system_messages": "whether more than one system message is taken",
    "count_path": "where the server counts the tokens of a prompt, from the address's root",
    "context_window": "tokens of prompt and output together",
    "image_tokens": "most tokens of one image in a prompt, reserved for it; 0: the model takes no images",
    "first_token_s": "seconds from the request to the first content",
    "idle_s": "seconds from one piece of content to the next",
    "total_s": "seconds for a whole call, retries included",
}


def generic_rows() -> Iterator[list[str]]:
    """Yield the field, the value in `generic` and the meaning of every capability."""
    for field in fields(ModelProfile):
        if field.name != "name":
            value = getattr(ModelProfile(), field.name)
            shown = "unknown" if value is None else f"`{format_toml_value(value)}`"
            yield [f"`{field.name}`", cell(shown), cell(MEANINGS[field.name])]


def profile_rows() -> Iterator[list[str]]:
    """Yield each profile with its facts that differ from `generic`."""
    for name, facts in PROFILES.items():
        if not facts:
            continue
        told = ", ".join(f"`{field} = {format_toml_value(fact.value)}`" for field, fact in facts.items())
        yield [f"`{name}`", cell(told)]


def make_tables() -> dict[str, list[str]]:
    """Return the lines of both tables."""
    return {
        "generic": table(("capability", "in `generic`", "meaning"), list(generic_rows())),
        "profiles": table(("profile", "what differs"), list(profile_rows())),
    }
