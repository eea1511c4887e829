"""Plug-ins: what installed packages offer by entry point, loaded only if the operator enabled it."""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from reasond_server.errors import InternalError, SettingsError
from reasond_server.violations import suggest_nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

PLUGIN_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")


@cache
def _look_up(path: tuple[str, ...]) -> Callable[..., EntryPoints]:
    """Return a function that selects among what all packages below `path`, that of this process, offer.

    It is kept, because each look reads the metadata of every package.
    """
    del path
    return entry_points().select


class Plugin(Protocol):
    """What all plug-ins have in common."""

    @property
    def name(self) -> str:
        """The name, which is that of its entry point: configuration uses the one and results the other."""
        ...


PluginT = TypeVar("PluginT", bound=Plugin)


class PluginGroup(Generic[PluginT]):
    """The plug-ins of one entry-point group.

    Args:
        group: the entry-point group; each entry names an instance, or a class or function that makes one.
        noun: what one of them is called in errors.
        setting: the key that enables them, as errors name it.
        require: returns a plug-in if it is valid; else raises an InternalError whose text is for its author.
        reserved: names of built-in ones, which packages cannot take.
    """

    def __init__(
        self,
        *,
        group: str,
        noun: str,
        setting: str,
        require: Callable[[object], PluginT],
        reserved: Collection[str] = (),
    ) -> None:
        self.group = group
        self._noun = noun
        self._setting = setting
        self._require = require
        self._reserved = reserved

    def find_installed(self, among: Iterable[EntryPoint] | None = None) -> Mapping[str, EntryPoint]:
        """Return the entry points by name: those of `among`, or all that were there at the first look."""
        found = _look_up(tuple(sys.path))(group=self.group) if among is None else among
        return {point.name: point for point in found}

    def load(self, enabled: Iterable[str], *, installed: Iterable[EntryPoint] | None = None) -> Sequence[PluginT]:
        """Return the `enabled` plug-ins, each once, in that order.

        Raises:
            SettingsError: one is not installed, cannot be loaded, is not valid, or has a name that is not its entry's
                or is reserved.
        """
        names = tuple(dict.fromkeys(enabled))
        known = self.find_installed(installed) if names else {}
        # Only what is enabled is imported: a broken or slow package that is only installed must do no harm.
        return tuple(self._load_one(name, known) for name in names)

    def _load_one(self, name: str, known: Mapping[str, EntryPoint]) -> PluginT:
        noun, setting = self._noun, self._setting
        if name in self._reserved:
            raise SettingsError(
                f"{setting} names {name!r}, which is built in", remedy="Remove the name, or rename yours."
            )
        point = known.get(name)
        if point is None:
            raise SettingsError(
                f"{setting} names {name!r}, which is not installed{suggest_nearest(name, known)}",
                remedy=f"Installed are: {', '.join(sorted(known)) or 'none'}. Install its package or remove the name.",
            )
        try:
            loaded = point.load()
            is_maker = isinstance(loaded, type) or (callable(loaded) and not hasattr(loaded, "name"))
            plugin = self._require(loaded() if is_maker else loaded)
        except InternalError as error:
            raise SettingsError(
                f"Entry point {name!r} ({point.value}) gives no {noun}: {error.message}", remedy="Update its package."
            ) from error
        except Exception as error:
            raise SettingsError(
                f"{noun[0].upper()}{noun[1:]} {name!r} ({point.value}) could not be loaded: {type(error).__name__}",
                remedy=f"Update its package or remove the name from {setting}.",
            ) from error
        if plugin.name != name:
            raise SettingsError(
                f"Entry point {name!r} ({point.value}) gives a {noun} named {plugin.name!r}",
                remedy=f"Name the entry point as the {noun} names itself.",
            )
        return plugin
