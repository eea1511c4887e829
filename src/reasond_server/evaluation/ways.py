"""Ways to answer a question: a strategy with parameters, as the command line writes it."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from reasond_server.errors.base import SettingsError
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.evaluation.items import Item


@value
class Way:
    """One way: the strategy, its parameters, and the model; empty for that of the server.

    `name` is what reports say, such as `self_consistency:samples=3`.
    """

    name: str
    strategy: str
    config: Mapping[str, Any]
    model: str = ""


def read_way(text: str, *, model: str = "") -> Way:
    """Read `STRATEGY` or `STRATEGY:KEY=VALUE,KEY=VALUE`; values are JSON, or else text.

    Raises:
        SettingsError: it has another form.
    """
    strategy, _, settings = text.partition(":")
    config: dict[str, Any] = {}
    for part in filter(None, settings.split(",")):
        key, equals, found = part.partition("=")
        if not key.strip() or not equals:
            raise SettingsError(f"{part[:80]!r} is no KEY=VALUE", remedy="Such as self_consistency:samples=3.")
        try:
            config[key.strip()] = json.loads(found)
        except ValueError:
            config[key.strip()] = found.strip()
    if not strategy.strip():
        raise SettingsError(f"{text[:80]!r} names no strategy", remedy="Such as self_consistency:samples=3.")
    return Way(name=text, strategy=strategy.strip(), config=config, model=model)


def compute_key(item: Item, way: Way, *, served_model: str, repeat: int) -> str:
    """Return the digest of what is asked, how and of which model: equal keys are the same execution, paid once."""
    model = way.model or served_model
    asked = [item.asked, item.material, item.system, item.schema, way.strategy, way.config, model, repeat]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:40]


def require_different(ways: Sequence[Way]) -> None:
    """Raise SettingsError if two of `ways` have the same name."""
    names = [way.name for way in ways]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"the way {name[:80]!r} is named twice")
