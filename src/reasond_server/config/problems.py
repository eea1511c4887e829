"""Describes the problems of a configuration in our own words; never includes the values of secrets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from reasond_server.base.plugins import list_built_in
from reasond_server.base.violations import describe_finding, suggest_nearest
from reasond_server.config.reference import describe_nearest, find_nearest
from reasond_server.errors.base import SettingsError, Violation, show

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydantic_core import ErrorDetails

# Keys that may hold a secret by mistake, such as an API key instead of the name of its variable.
_SENSITIVE = ("auth.keys", "llm.api_key_env", "llm.base_url", "llm.backends", "webhooks.endpoints")
_NAMES_OF_STRATEGIES = ("reasoning.default_strategy", "reasoning.enabled_strategies[")
_UNKNOWN = {"extra_forbidden", "unexpected_keyword_argument"}
_STRATEGY_PARTS = 4
_MODEL_PARTS = 3


def build_settings_error(problems: Sequence[Violation], origins: Mapping[str, str]) -> SettingsError:
    """Make the error that reports all `problems`, each with the origin of its key."""
    located = [
        Violation(field=problem.field, description=f"{problem.description}{_place(problem.field, origins)}")
        for problem in problems
    ]
    lines = "".join(f"\n  {problem.field}: {problem.description}" for problem in located)
    count = "one problem" if len(located) == 1 else f"{len(located)} problems"
    return SettingsError(f"The configuration has {count}:{lines}", violations=located)


def explain(error: ErrorDetails) -> Violation:
    """Convert `error` of Pydantic into a violation."""
    key = join_key(error["loc"])
    if error["type"] in _UNKNOWN:
        return Violation(field=key, description=f"is no known key; {describe_nearest(key)}")
    if error["loc"][-1] == "[key]":
        return Violation(field=key, description=_find_wrong_chosen_key(key))
    words = (
        "is a table; set the keys in it"
        if error["type"] in {"model_type", "dataclass_type"}
        else describe_finding(error).replace("an object", "a table")
    )
    is_shown = error["type"] != "missing" and not key.startswith(_SENSITIVE)
    is_scalar = isinstance(error["input"], str | int | float)
    problem = f"{words}, not {show(error['input'])}" if is_shown and is_scalar else words
    return Violation(field=key, description=f"{problem}{_advise(key, error)}")


def _advise(key: str, error: ErrorDetails) -> str:
    """Return what else is to be said of a wrong value."""
    if key.startswith(_NAMES_OF_STRATEGIES) and isinstance(error["input"], str):
        return _suggest_strategy(error["input"])
    if key.startswith("llm.") and key.endswith(".provider"):
        return "; Ollama, vLLM, llama.cpp and other servers of that protocol are 'openai', with their base_url"
    return ""


def _suggest_strategy(name: str) -> str:
    """Return the built-in strategy that `name` means, such as "chain-of-thought" or "ChainOfThought"."""
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])|[\s-]+", "_", name.strip()).lower()
    return suggest_nearest(plain, list_built_in("reasond.strategies"))


def find_doubtful(error: ErrorDetails) -> Iterator[str]:
    """Yield the keys whose values are unknown because of `error`: its own, and the key that a misspelt name meant."""
    key = join_key(error["loc"])
    yield key
    if error["type"] in _UNKNOWN and (meant := find_nearest(key)):
        yield meant


def join_key(parts: Sequence[str | int]) -> str:
    """Return `parts` as a dotted key; indices are in brackets, names with special characters in quotes."""
    key = ""
    for part in parts:
        if isinstance(part, int):
            key += f"[{part}]"
        elif part != "[key]":
            name = part if re.fullmatch(r"[A-Za-z0-9_-]{1,128}", part) else show(part)
            key += f".{name}" if key else name
    return key


def _find_wrong_chosen_key(key: str) -> str:
    """Return the problem with a name that operators choose, of a table or of a key in it."""
    if key.startswith("auth."):
        return "is no such name: at most 64 letters, digits and . _ -"
    if key.startswith("openai.models.") and key.count(".") == _MODEL_PARTS - 1:
        return "is no such name: a letter or digit first, then letters, digits and . _ : -, at most 64, and not reasond"
    if not key.startswith("reasoning."):
        return "is no such name: a lower-case letter first, then a-z, 0-9 and _, at most 64"
    if key.count(".") + 1 < _STRATEGY_PARTS:
        hint = _suggest_strategy(key.rpartition(".")[2])
        return f"is no name of a strategy: a-z or _ first, then a-z, 0-9 and _, at most 64{hint}"
    name = key.rpartition(".")[2]
    return f"is no known key; did you mean default_{name}? Others are max_allowed_<parameter without max_>"


def _place(key: str, origins: Mapping[str, str]) -> str:
    """Return the origin of `key`, or else of the first key within it, in parentheses; empty for defaults."""
    within = (f"{key}.", f"{key}[")
    base = key.partition("[")[0]
    for other, origin in origins.items():
        if (other in {key, base} or other.startswith(within)) and origin != "default":
            return f" ({origin})"
    return ""
