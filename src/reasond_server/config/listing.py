"""Shows the configuration: as rows with their origins, and as the example file."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, SecretStr

from reasond_server.config.keys import key_docs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reasond_server.config.keys import KeyDoc
    from reasond_server.config.sources import LoadedSettings

_WIDTH = 110
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
    "store.tenant_retention_s": "acme = 86400.0",
    "reasoning.strategies": (
        "[reasoning.strategies.bounded_context]\ndefault_max_iterations = 5\nmax_allowed_iterations = 50"
    ),
}


def settings_as_rows(loaded: LoadedSettings) -> tuple[tuple[str, str, str], ...]:
    """Return (dotted key, value as TOML, origin) of every value; secrets are shown as "***"."""
    return tuple((key, toml_value(value), _origin(key, loaded.origins)) for key, value in _values(loaded.settings, ""))


def render_example() -> str:
    """Return the text of config.example.toml."""
    lines = _comment(_HEADER)
    section = ""
    for doc in key_docs():
        # Tables that operators key themselves hold a sample instead of keys.
        heading = doc.key if doc.key in _SAMPLES and doc.type_name == "table" else doc.section
        if heading != section:
            section = heading
            lines += ["", f"[{section}]"]
        lines += _entry(doc)
    return "\n".join(lines) + "\n"


def toml_value(value: object) -> str:
    """Return `value` as TOML writes it; a secret as "***", unless it is empty."""
    if isinstance(value, SecretStr):
        return '"***"' if value.get_secret_value() else '""'
    if isinstance(value, tuple | list):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name} = {toml_value(item)}' for name, item in value.items())}}}"
    return json.dumps(_without_password(value), ensure_ascii=False)


def _without_password(value: object) -> object:
    """Return `value`; of an address with a password, the rest."""
    if not isinstance(value, str) or "://" not in value:
        return value
    hidden = re.sub(r"(?<=://)([^/@:]*):[^/]*@", r"\1:***@", value)
    return re.sub(r"(?i)([?&][a-z]*password=)[^&]*", r"\1***", hidden)


def _entry(doc: KeyDoc) -> list[str]:
    """Return the lines of one key: what it means, a sample where it has one, its default."""
    limits = f" ({doc.range})" if doc.range and doc.type_name != "choice" else ""
    sample = [f"# {line}" for line in _SAMPLES.get(doc.key, "").splitlines()]
    lines = [*_comment(f"{doc.description.rstrip('.')}{limits}."), *sample]
    if doc.type_name != "table":
        lines.append(f"{doc.key.rpartition('.')[2]} = {toml_value(doc.default)}")
    return lines


def _comment(text: str) -> list[str]:
    """Return `text` as comment lines."""
    return textwrap.wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _values(value: Any, key: str) -> Iterator[tuple[str, object]]:  # noqa: ANN401 - any value of a model
    """Yield the values within `value` that are not made of others, with their dotted keys."""
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            inner = getattr(value, name)
            if inner is not None:
                yield from _values(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _values(inner, f"{key}.{name}")
    elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
        for index, inner in enumerate(value):
            yield from _values(inner, f"{key}[{index}]")
    else:
        yield key, value


def _origin(key: str, origins: Mapping[str, str]) -> str:
    """Return where `key` came from; what is in a list came from where the list did."""
    return origins.get(key) or origins.get(key.partition("[")[0], "default")
