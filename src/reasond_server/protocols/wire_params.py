"""The parameters of protocols whose clients send more than is known here: unknown members are ignored, and told."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import Any, Final

from pydantic import Field, model_validator

from reasond_server.errors.base import show
from reasond_server.http_api.params import BudgetParams, Params, Whole

_OWN: Final = "reasond"
_ALIKE: Final = 0.9
_MOST_IGNORED: Final = 20
_WHOLE: Final = frozenset(
    {"max_tokens", "max_completion_tokens", "max_output_tokens", "max_tool_calls", "n", "seed", "top_logprobs", "top_k"}
)
_SET_HERE: Final = frozenset({"ignored", "notes"})


def _is_whole(given: object) -> bool:
    return isinstance(given, float) and given.is_integer()


class ReasondParams(Params):
    """The parameters of reasond itself, which clients of other products send by `extra_body`."""

    config: dict[str, Any] = Field(default_factory=dict)
    budget: BudgetParams | None = None
    agent: str | None = None
    model: str | None = None
    material: str = ""
    request_id: str = ""
    include_deltas: bool | None = None


class WireParams(Params):
    """Parameters by the names of another product; `ignored` are the names of members that are not known.

    `notes` are what is said of the files that were read.
    """

    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    reasond: ReasondParams = Field(default_factory=ReasondParams)

    @model_validator(mode="before")
    @classmethod
    def _set_unknown_aside(cls, given: Any) -> Any:  # noqa: ANN401 - what a client has sent
        if not isinstance(given, Mapping):
            return given
        named = cls.model_fields.keys() - _SET_HERE
        known = {name: each for name, each in given.items() if name in named}
        # Programs whose numbers are all of one kind send 4096.0.
        known |= {name: int(known[name]) for name in _WHOLE & known.keys() if _is_whole(known[name])}
        unknown = [str(name) for name in given if name not in known]
        for name in unknown:
            # Ours start work, so a misspelled one is no matter of taste.
            if SequenceMatcher(None, name.lower(), _OWN).ratio() > _ALIKE:
                raise ValueError(f"must not have the member {show(name)}; did you mean {_OWN!r}?")
        return {**known, "ignored": tuple(sorted(unknown)[:_MOST_IGNORED])}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is said of the members that are ignored."""
        return (*self.notes, *(f"{name[:64]} is not known here and has no effect." for name in self.ignored))


class OpenAiParams(WireParams):
    """The parameters that chats and Responses have by the same names."""

    model: str
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    # Sampling: the strategy's own parameter of that name, or a warning.
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    top_logprobs: Whole | None = None
    seed: Whole | None = None
    # Without any effect on an answer.
    store: bool | None = None
    user: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Any = None
