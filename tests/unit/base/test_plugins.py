"""What a package offers is loaded only if it is enabled, and refused in words that name it."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, NamedTuple

import pytest

from reasond_server.access.permissions import find_allowed_strategies
from reasond_server.base import plugins
from reasond_server.base.plugins import PluginGroup
from reasond_server.config.settings import ReasoningSettings
from reasond_server.errors.base import InternalError, SettingsError
from reasond_server.reasoning.registry import STRATEGIES
from reasond_server.types import Principal

if TYPE_CHECKING:
    from pathlib import Path


class Lamp(NamedTuple):
    name: str = "lamp"


READY = Lamp()


def make_lamp() -> Lamp:
    return Lamp()


def make_trouble() -> Lamp:
    message = "no lamp today"
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


@pytest.mark.parametrize("name", ["react", "_own", "_", "a_1"])
def test_a_name_has_the_letters_of_the_seed_and_may_begin_with_an_underscore(name: str) -> None:
    assert plugins.PLUGIN_NAME.fullmatch(name)
    assert find_allowed_strategies(
        Principal(subject="ann", tenant="acme", permissions=frozenset({f"reasoning:execute:{name}"}))
    ) == frozenset({name})
    settings = ReasoningSettings.model_validate({"enabled_strategies": [name], "default_strategy": name})
    assert settings.enabled_strategies == (name,)


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
        ("daylight", "Lamp", "Lamp) too. Remove the name, or rename yours."),
        (
            "broken",
            "nowhere:Nothing",
            "No module named 'nowhere'\". Update its package or remove the name from [room] lamps.",
        ),
        ("broken", "no_such_name", "could not be loaded: AttributeError"),
        ("broken", "json:loads", "could not be loaded: TypeError"),
        ("broken", "make_trouble", "could not be loaded: RuntimeError: 'no lamp today'. Update"),
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


def test_packages_are_looked_at_once_and_again_where_the_path_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LAMPS.find_installed()
    looks = plugins._look_up.cache_info().misses
    assert not LAMPS.find_installed()
    assert STRATEGIES.find_installed()
    assert plugins._look_up.cache_info().misses == looks
    install(tmp_path, "lamps", "lamp = lamps:Lamp")
    monkeypatch.syspath_prepend(tmp_path)
    assert LAMPS.find_installed().names == {"lamp"}


def install(folder: Path, package: str, *offers: str, group: str = LAMPS.group) -> None:
    """Install a package that offers plug-ins, for every process that has `folder` on its path."""
    info = folder / f"{package}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n", "utf-8")
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *offers, ""]), "utf-8")


@pytest.mark.parametrize("is_mine_first", [True, False])
def test_a_name_that_two_packages_offer_is_refused_whichever_comes_first_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_mine_first: bool
) -> None:
    mine, other = f"lamp = {__name__}:Lamp", f"lamp = {__name__}:make_trouble"
    for place, (package, offer) in enumerate([("mine", mine), ("other", other)]):
        install(tmp_path / str(place), package, offer, f"{package}_lamp = nowhere:Lamp")
    for place in (1, 0) if is_mine_first else (0, 1):
        monkeypatch.syspath_prepend(tmp_path / str(place))
    with pytest.raises(SettingsError) as refused:
        LAMPS.load(["lamp"])
    assert refused.value.message.startswith("[room] lamps names 'lamp', which is offered more than once: by ")
    assert f"mine 1 ({__name__}:Lamp)" in refused.value.message
    assert f"other 1 ({__name__}:make_trouble)" in refused.value.message
    assert refused.value.remedy == "Uninstall all but one of them, or give each lamp a name of its own."
    assert LAMPS.load([]) == ()


def test_a_package_that_offers_a_name_twice_is_refused_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "lamps", f"lamp = {__name__}:Lamp", f"lamp = {__name__}:READY")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingsError, match=r"once: by lamps 1 \(.*:Lamp\) in '/.*' and lamps 1 \(.*:READY\) in '/"):
        LAMPS.load(["lamp"])


def test_a_second_installation_of_the_same_package_is_the_same_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("old", "new"):
        install(tmp_path / place, "lamps", f"lamp = {__name__}:Lamp")
        monkeypatch.syspath_prepend(tmp_path / place)
    assert LAMPS.load(["lamp"]) == (READY,)


@pytest.mark.parametrize("name", ["lamps", "Lamps"])
def test_a_second_package_of_the_same_name_cannot_replace_what_the_first_one_offers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    install(tmp_path / "installed", "lamps", f"lamp = {__name__}:Lamp")
    install(tmp_path / "unpacked", name, f"lamp = {__name__}:make_trouble")
    for place in ("installed", "unpacked"):
        monkeypatch.syspath_prepend(tmp_path / place)
    with pytest.raises(SettingsError, match="more than once") as refused:
        LAMPS.load(["lamp"])
    for place in ("installed", "unpacked"):
        assert str(tmp_path / place) in refused.value.message


def test_a_folder_with_our_name_neither_replaces_nor_adds_a_built_in_strategy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = plugins.list_built_in(STRATEGIES.group)
    install(tmp_path, "reasond_server", "react = other:Strategy", "sly = other:Sly", group=STRATEGIES.group)
    monkeypatch.syspath_prepend(tmp_path)
    plugins.list_built_in.cache_clear()
    assert plugins.list_built_in(STRATEGIES.group) == before
    with pytest.raises(SettingsError, match="'react', which is offered more than once") as refused:
        STRATEGIES.load(["direct", "react"])
    assert "reasond_server 1 (other:Strategy) in " in refused.value.message
    assert "(reasond_server.strategies.react:React) in " in refused.value.message


def test_a_package_that_offers_the_name_of_a_built_in_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "lamps", "daylight = lamps:Lamp")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingsError, match=r"'daylight', which is built in; it is offered by lamps 1 \(lamps:Lamp\)"):
        LAMPS.load(["daylight"])
