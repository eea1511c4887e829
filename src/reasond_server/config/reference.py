"""Lists the keys of the configuration and their values as text: as table rows and as the example file."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, Literal, get_args, get_origin, get_type_hints

import annotated_types
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from reasond_server.config.settings import Settings
from reasond_server.types.policy_sections import PolicySection
from reasond_server.types.values import value

_TYPE_NAMES = {bool: "true or false", int: "whole number", float: "number", str: "text", SecretStr: "text"}


_COMMENT_WIDTH = 110
_LINE_WIDTH = 120
_HEADER = (
    "The configuration of reasond: every key with its default. Keys that are left out keep it, others are refused. "
    "REASOND__SECTION__KEY in the environment overrides a key; `reasond config show --origin` tells what applies. "
    "This file is written by the code that reads it; a test compares them."
)
_SAMPLES = {
    "auth.keys": 'keys = [{ id = "main", algorithm = "HS256", secret_env = "REASOND_SIGNING_KEY" }]',
    "auth.agents": '[auth.agents.crawler]\nsecret_hash = "$argon2id$..."\nroles = ["solver"]',
    "auth.roles": '[auth.roles.solver]\npermissions = ["reasoning:execute"]\nstrategies = ["chain_of_thought"]',
    "limits.weights": "tree_of_thought = 10",
    "llm.capabilities": 'limit_field = "max_tokens"\nmax_stops = 4',
    "llm.backends": '[llm.backends.local]\nmodel = "qwen3-8b"\nbase_url = "http://127.0.0.1:8080/v1"',
    "tools.mcp": '[tools.mcp.files]\ncommand = "mcp-files"\nargs = ["/srv/documents"]\nallow_tools = ["read_file"]',
    "turns.modes": (
        '[turns.modes.careful]\ninstructions = "Check every fact with a tool."\ntools = ["calculator"]\n'
        'welcome = "You are careful from here on."'
    ),
    "openai.models": (
        '[openai.models.careful]\nstrategy = "self_consistency"\nconfig = { samples = 9 }\n'
        "budget = { max_total_tokens = 50000 }"
    ),
    "repair.commands": 'tests = ["python", "-m", "pytest", "-q", "--junitxml={report}"]',
    "repair.signs": 'arguments = "allow"',
    "repair.environments": (
        '[repair.environments.python]\npreset = "python"\nroot = "/srv/environments/python"\n'
        'description = "Python 3.13 with pytest"'
    ),
    "webhooks.endpoints": (
        '[webhooks.endpoints.desk]\nurl = "https://desk.example.com/hooks"\n'
        'secrets = ["whsec_YW4tZXhhbXBsZS1yZXBsYWNlLWl0LW5vdyE="]\nevents = ["turn.waiting"]'
    ),
    "store.tenant_retention_s": "acme = 86400.0",
    "reasoning.strategies": (
        "[reasoning.strategies.bounded_context]\ndefault_max_iterations = 5\nmax_allowed_iterations = 50"
    ),
}


@value
class KeyDoc:
    """The documentation of one key: `range` is empty if the type is enough."""

    key: str
    section: str
    type_name: str
    default: Any
    range: str
    description: str


def list_key_docs() -> tuple[KeyDoc, ...]:
    """Return all keys in the order of the models."""
    return tuple(
        KeyDoc(
            key=key,
            section=key.rpartition(".")[0],
            type_name=_name_type(field),
            default=field.get_default(call_default_factory=True),
            range=_describe_range(field),
            description=field.description or "",
        )
        for key, field in _list_fields(Settings, "")
    )


def is_text_key(key: str) -> bool:
    """Return whether the dotted `key` takes a string."""
    key = _find_template(key)
    return any(doc.key == key and doc.type_name in {"text", "choice"} for doc in list_key_docs())


def find_nearest(key: str) -> str:
    """Return the known key or section that is most similar to the dotted `key`; empty if none is similar."""
    key = _find_template(key)
    known = [doc.key for doc in list_key_docs()]
    alike = [*known, *(other for other in _list_sections() if other.count(".") == key.count("."))]
    # Short names of sections have few letters in common.
    if matches := get_close_matches(key, alike, n=1, cutoff=0.75 if "." in key else 0.6):
        return matches[0]
    names = get_close_matches(key.rpartition(".")[2], [other.rpartition(".")[2] for other in known], n=1, cutoff=0.75)
    return next((other for other in known if other.rpartition(".")[2] in names), "") or _find_kin(key, known)


def _find_kin(key: str, known: Sequence[str]) -> str:
    """Return the key most similar to `key` of those of its section whose name begins with the same word."""
    section, _, name = key.rpartition(".")
    word = f"{name.partition('_')[0]}_"
    kin = [other for other in known if other.rpartition(".")[2].startswith(word)]
    near = get_close_matches(key, [one for one in kin if one.rpartition(".")[0] == section], n=1, cutoff=0.0)
    # A key without its section may be of any.
    return near[0] if near else (kin[0] if not section and len({one.rpartition(".")[0] for one in kin}) == 1 else "")


def describe_nearest(key: str) -> str:
    """Return a hint with the known key most similar to `key`, or with the known keys of its section."""
    if found := find_nearest(key):
        return f"did you mean {found}?"
    section = _find_template(key).rpartition(".")[0]
    sections = _list_sections()
    beside = [
        other for other in [*(doc.key for doc in list_key_docs()), *sections] if other.rpartition(".")[0] == section
    ]
    return f"known are {', '.join(beside)}" if beside else f"known sections are {', '.join(sections)}"


def _list_sections() -> list[str]:
    """Return the dotted names of all sections."""
    return sorted({part for doc in list_key_docs() for part in (doc.section, *_list_parents(doc.section))})


def _find_template(key: str) -> str:
    """Return `key`; for a key of a named backend, the same key of [llm]."""
    return re.sub(r"^llm\.backends\.[^.]+\.", "llm.", key)


def _list_parents(section: str) -> Iterator[str]:
    """Yield the sections that contain `section`."""
    while "." in section:
        section = section.rpartition(".")[0]
        yield section


def _list_fields(section: type[Any], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the fields of `section` that are not sections, with their dotted keys."""
    for name, field in _list_declared(section):
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel | PolicySection):
            yield from _list_fields(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def _list_declared(section: type[Any]) -> Iterable[tuple[str, FieldInfo]]:
    """Return the fields of a model or of a policy, by name."""
    if issubclass(section, BaseModel):
        return section.model_fields.items()
    hints = get_type_hints(section, include_extras=True)
    return [(each.name, FieldInfo.from_annotated_attribute(hints[each.name], each)) for each in fields(section)]


def _list_choices(field: FieldInfo) -> Sequence[str]:
    """Return the choices of `field`; none if its type is no choice."""
    if get_origin(field.annotation) is Literal:
        return get_args(field.annotation)
    kind = field.annotation
    return [str(choice) for choice in kind] if isinstance(kind, type) and issubclass(kind, StrEnum) else ()


def _name_type(field: FieldInfo) -> str:
    """Return the type of `field` in plain words."""
    if _list_choices(field):
        return "choice"
    if get_origin(field.annotation) is tuple:
        return "list"
    # No key can be given the value None.
    kinds = [each for each in get_args(field.annotation) or (field.annotation,) if each is not type(None)]
    return _TYPE_NAMES.get(kinds[0], "table") if len(kinds) == 1 and isinstance(kinds[0], type) else "table"


def _describe_range(field: FieldInfo) -> str:
    """Return the allowed values of `field` beyond its type: bounds of a number or the choices."""
    if choices := _list_choices(field):
        return ", ".join(f'"{choice}"' for choice in choices)
    lowest: list[object] = [one.ge for one in field.metadata if isinstance(one, annotated_types.Ge)]
    lowest += [one.gt for one in field.metadata if isinstance(one, annotated_types.Gt)]
    highest = [constraint.le for constraint in field.metadata if isinstance(constraint, annotated_types.Le)]
    return f"{lowest[0]}-{highest[0]}" if lowest and highest else ""


def list_rows(settings: Settings, origins: Mapping[str, str]) -> tuple[tuple[str, str, str], ...]:
    """Return (dotted key, value as TOML, origin) of every value; secrets are shown as "***"."""
    return tuple(
        (key, format_toml_value(value), _find_origin(key, origins)) for key, value in _list_values(settings, "")
    )


def render_example() -> str:
    """Return the text of config.example.toml."""
    lines = _write_comment(_HEADER)
    section = ""
    for doc in list_key_docs():
        # Tables whose keys operators choose have a sample instead of keys.
        heading = doc.key if doc.key in _SAMPLES and doc.type_name == "table" else doc.section
        if heading != section:
            section = heading
            lines += ["", f"[{section}]"]
        lines += _write_entry(doc)
    return "\n".join(lines) + "\n"


def format_toml_value(value: object) -> str:
    """Return `value` in TOML syntax; a secret as "***", unless it is empty."""
    if isinstance(value, SecretStr):
        return '"***"' if value.get_secret_value() else '""'
    if isinstance(value, tuple | list):
        return f"[{', '.join(format_toml_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name} = {format_toml_value(item)}' for name, item in value.items())}}}"
    return json.dumps(_drop_password(value), ensure_ascii=False)


def _drop_password(value: object) -> object:
    """Return `value`; an address without its password."""
    if not isinstance(value, str) or "://" not in value:
        return value
    hidden = re.sub(r"(?<=://)([^/@:]*):[^/]*@", r"\1:***@", value)
    return re.sub(r"(?i)([?&][a-z]*password=)[^&]*", r"\1***", hidden)


def _write_entry(doc: KeyDoc) -> list[str]:
    """Return the lines of one key: its meaning, its sample if it has one, its default."""
    limits = f" ({doc.range})" if doc.range and doc.type_name != "choice" else ""
    sample = [f"# {line}" for line in _SAMPLES.get(doc.key, "").splitlines()]
    lines = [*_write_comment(f"{doc.description.rstrip('.')}{limits}."), *sample]
    if doc.type_name != "table":
        lines += _assign(doc.key.rpartition(".")[2], doc.default)
    return lines


def _assign(name: str, value: object) -> list[str]:
    """Return the lines that give a key its value: one for each item of a list that is too long for one line."""
    line = f"{name} = {format_toml_value(value)}"
    if len(line) <= _LINE_WIDTH or not isinstance(value, tuple):
        return [line]
    return [f"{name} = [", *(f"  {format_toml_value(item)}," for item in value), "]"]


def _write_comment(text: str) -> list[str]:
    """Return `text` as comment lines."""
    return textwrap.wrap(text, _COMMENT_WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _list_values(value: Any, key: str) -> Iterator[tuple[str, object]]:  # noqa: ANN401 - any value of a model
    """Yield the leaf values within `value`, with their dotted keys."""
    if isinstance(value, BaseModel | PolicySection):
        for name, _ in _list_declared(type(value)):
            inner = getattr(value, name)
            if inner is not None:
                yield from _list_values(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _list_values(inner, f"{key}.{name}")
    elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
        for index, inner in enumerate(value):
            yield from _list_values(inner, f"{key}[{index}]")
    else:
        yield key, value


def _find_origin(key: str, origins: Mapping[str, str]) -> str:
    """Return the origin of `key`; a list item has the origin of the list."""
    return origins.get(key) or origins.get(key.partition("[")[0], "default")
