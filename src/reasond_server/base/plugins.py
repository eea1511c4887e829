"""Plug-ins: what installed packages offer by entry point, loaded only if the operator enabled it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, distributions
from typing import Final, Generic, Protocol, TypeVar

from reasond_server.base.violations import suggest_nearest
from reasond_server.errors.base import InternalError, SettingsError, show
from reasond_server.types.values import value

_OWN_MODULES: Final = "reasond_server."
PLUGIN_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,63}")


@cache
def _look_up(path: tuple[str, ...]) -> Callable[..., EntryPoints]:
    """Return a function that selects among what all packages below `path`, that of this process, offer.

    A package that is there twice counts twice: `entry_points` of the library takes what comes first on the path, and so
    an unpacked folder could replace what is installed. It is kept, because each look reads the metadata of every
    package.
    """
    del path
    return EntryPoints(point for package in distributions() for point in package.entry_points).select


@cache
def list_built_in(group: str) -> Sequence[str]:
    """Return the names that the server's own distribution offers in an entry-point group, sorted."""
    points = [point for own in distributions(name="reasond-server") for point in own.entry_points.select(group=group)]
    # A second package of that name offers what is not ours.
    return tuple(sorted({point.name for point in points if point.value.startswith(_OWN_MODULES)}))


class Plugin(Protocol):
    """What all plug-ins have in common."""

    @property
    def name(self) -> str:
        """The name, which is that of its entry point: configuration uses the one and results the other."""


PluginT = TypeVar("PluginT", bound=Plugin)


@value
class PluginGroup(Generic[PluginT]):
    """The plug-ins of one entry-point group.

    Args:
        group: the entry-point group; each entry names an instance, or a class or function that makes one.
        noun: what one of them is called in errors.
        setting: the setting that enables them, for error messages.
        require: returns a plug-in if it is valid; else raises an InternalError whose text is for its author.
        reserved: names of built-in ones, which packages cannot take.
    """

    group: str
    noun: str
    setting: str
    require: Callable[[object], PluginT]
    reserved: Collection[str] = ()

    def find_installed(self) -> EntryPoints:
        """Return the entry points that were there at the first look; `load` refuses a name that several have."""
        return _look_up(tuple(sys.path))(group=self.group)

    def load(self, enabled: Iterable[str], *, installed: Iterable[EntryPoint] | None = None) -> Sequence[PluginT]:
        """Return the `enabled` plug-ins, each once, in that order.

        Raises:
            SettingsError: one is not installed, cannot be loaded, is not valid, or has a name that is not its entry's,
                is reserved, or is offered more than once: the order of the path must not decide what runs.
        """
        names = tuple(dict.fromkeys(enabled))
        known = list(self.find_installed() if installed is None else installed) if names else []
        # Only what is enabled is imported: a broken or slow package that is only installed must do no harm.
        return tuple(self._load_one(self._choose_point(name, known)) for name in names)

    def _choose_point(self, name: str, known: Sequence[EntryPoint]) -> EntryPoint:
        """Return the only entry point of that name; see `load`."""
        setting = self.setting
        # The same package may be on the path twice, with the same offer.
        points = [*{_identify(point): point for point in known if point.name == name}.values()]
        offers = " and ".join(map(_describe_offer, points))
        if name in self.reserved:
            also = f"; it is offered by {offers} too" if offers else ""
            raise SettingsError(
                f"{setting} names {name!r}, which is built in{also}", remedy="Remove the name, or rename yours."
            )
        if not points:
            names = sorted({point.name for point in known})
            raise SettingsError(
                f"{setting} names {name!r}, which is not installed{suggest_nearest(name, names)}",
                remedy=f"Installed are: {', '.join(names) or 'none'}. Install its package or remove the name.",
            )
        if len(points) > 1:
            raise SettingsError(
                f"{setting} names {name!r}, which is offered more than once: by "
                + " and ".join(f"{_describe_offer(point)}{_describe_place(point)}" for point in points),
                remedy=f"Uninstall all but one of them, or give each {self.noun} a name of its own.",
            )
        return points[0]

    def _load_one(self, point: EntryPoint) -> PluginT:
        noun, setting, name = self.noun, self.setting, point.name
        try:
            loaded = point.load()
            is_maker = isinstance(loaded, type) or (callable(loaded) and not hasattr(loaded, "name"))
            plugin = self.require(loaded() if is_maker else loaded)
        except InternalError as error:
            raise SettingsError(
                f"Entry point {name!r} ({point.value}) gives no {noun}: {error.message}", remedy="Update its package."
            ) from error
        except Exception as error:
            raise SettingsError(
                f"{noun[0].upper()}{noun[1:]} {name!r} ({point.value}) could not be loaded: {_describe(error)}",
                remedy=f"Update its package or remove the name from {setting}.",
            ) from error
        if plugin.name != name:
            raise SettingsError(
                f"Entry point {name!r} ({point.value}) gives a {noun} named {plugin.name!r}",
                remedy=f"Name the entry point as the {noun} names itself.",
            )
        return plugin


def _describe(error: Exception) -> str:
    """Return the kind of an error and its text, which only whoever installed the package reads."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {show(text)}" if text else type(error).__name__


def _identify(point: EntryPoint) -> tuple[str, str]:
    package = "" if point.dist is None else re.sub(r"[-_.]+", "-", point.dist.name).lower()
    return package, point.value


def _describe_place(point: EntryPoint) -> str:
    return "" if point.dist is None else f" in {show(str(point.dist.locate_file('')))}"


def _describe_offer(point: EntryPoint) -> str:
    """Return the package of an entry point with its version, and what the entry names."""
    package = "an unknown package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
    return f"{package} ({point.value})"
