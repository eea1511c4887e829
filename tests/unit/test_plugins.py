"""What a package offers is loaded only if it is enabled, and refused in words that name it."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, NamedTuple

import pytest

from reasond_server import plugins
from reasond_server.errors import InternalError, SettingsError
from reasond_server.plugins import PluginGroup
from reasond_server.reasoning.registry import STRATEGIES

if TYPE_CHECKING:
    from pathlib import Path


class Lamp(NamedTuple):
    name: str = "lamp"


READY = Lamp()


def make_lamp() -> Lamp:
    return Lamp()


def make_trouble() -> Lamp:
    message = "a secret"
    raise RuntimeError(message)


def make_nothing() -> object:
    return object()


def require_lamp(made: object) -> Lamp:
    if not isinstance(made, Lamp):
        raise InternalError(f"{type(made).__name__} is no lamp")
    return made


LAMPS = PluginGroup(
    group="test.lamps", noun="lamp", setting="[room] lamps", require=require_lamp, reserved=("daylight",)
)


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=value if ":" in value else f"{__name__}:{value}", group=LAMPS.group)


@pytest.mark.parametrize("value", ["Lamp", "READY", "make_lamp"])
def test_a_class_an_instance_or_a_function_gives_a_plugin(value: str) -> None:
    assert LAMPS.load(["lamp", "lamp"], installed=[point("lamp", value)]) == (READY,)


def test_nothing_is_loaded_that_is_not_enabled() -> None:
    installed = [point("broken", "nowhere:Nothing"), point("lamp", "Lamp")]
    assert LAMPS.load([], installed=installed) == ()
    assert LAMPS.load(["lamp"], installed=installed) == (READY,)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (
            "lam",
            "Lamp",
            "[room] lamps names 'lam', which is not installed; did you mean 'lamp'?. Installed are: lamp. Install its",
        ),
        ("daylight", "Lamp", "[room] lamps names 'daylight', which is built in. Remove the name, or rename yours."),
        (
            "broken",
            "nowhere:Nothing",
            "could not be loaded: ModuleNotFoundError. Update its package or remove the name from [room] lamps.",
        ),
        ("broken", "no_such_name", "could not be loaded: AttributeError"),
        ("broken", "json:loads", "could not be loaded: TypeError"),
        ("broken", "make_trouble", "could not be loaded: RuntimeError"),
        ("empty", "make_nothing", "gives no lamp: object is no lamp. Update its package."),
        ("empty", "__name__", "gives no lamp: str is no lamp"),
        ("other", "Lamp", "gives a lamp named 'lamp'. Name the entry point as the lamp names itself."),
    ],
)
def test_what_cannot_be_used_is_named(name: str, value: str, words: str) -> None:
    installed = [point("lamp" if name == "lam" else name, value)]
    with pytest.raises(SettingsError) as caught:
        LAMPS.load([name], installed=installed)
    assert words in caught.value.full_message
    assert repr(name) in caught.value.full_message
    assert "secret" not in caught.value.full_message


def test_packages_are_looked_at_once_and_again_where_the_path_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LAMPS.find_installed()
    looks = plugins._look_up.cache_info().misses
    assert LAMPS.find_installed() == {}
    assert STRATEGIES.find_installed()
    assert plugins._look_up.cache_info().misses == looks
    info = tmp_path / "lamps-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lamps\nVersion: 1\n", "utf-8")
    (info / "entry_points.txt").write_text("[test.lamps]\nlamp = lamps:Lamp\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert list(LAMPS.find_installed()) == ["lamp"]
