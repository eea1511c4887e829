from __future__ import annotations

import ast
from pathlib import Path

import pytest

from scripts import names
from scripts.names import Source, find_offences, find_participles, find_undocumented, is_participle

DOC = '"""Something."""\n'


def parse(text: str, path: str = "src/a.py") -> Source:
    return Source(path=Path(path), lines=text.splitlines(), tree=ast.parse(text))


def write_tree(root: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        path = root / "src" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(DOC + text, encoding="utf-8")


@pytest.mark.parametrize("name", ["kept", "_begun", "settled", "_written", "rewritten", "unseen", "held", "_opened"])
def test_a_bare_participle_is_one(name: str) -> None:
    assert is_participle(name)


@pytest.mark.parametrize("name", ["keep", "read_kept", "is_settled", "_feed", "succeed", "need", "open", "opened_at"])
def test_verbs_and_names_of_several_words_are_none(name: str) -> None:
    assert not is_participle(name)


@pytest.mark.parametrize(
    "definition", ["def kept(): ...", "async def _told(): ...", "class A:\n    def begun(self): ..."]
)
def test_a_function_that_is_called_by_a_participle_is_refused(definition: str) -> None:
    assert len(list(find_participles(parse(definition)))) == 1


@pytest.mark.parametrize(
    "definition",
    [
        "@property\ndef kept(self): ...",
        "@functools.cached_property\ndef kept(self): ...",
        "@kept.setter\ndef kept(self, value): ...",
        "@pytest.fixture(scope='module')\ndef kept(): ...",
        "def kept():  # named so: the protocol of asyncio calls it\n    ...",
    ],
)
def test_nouns_and_foreign_names_may_be_participles(definition: str) -> None:
    assert list(find_participles(parse(definition))) == []


def test_a_public_name_without_a_docstring_is_refused_whatever_ruff_was_told() -> None:
    text = f"{DOC}class A:\n    {DOC}    @property\n    def name(self) -> str: ...  # noqa: D102 - described above"
    assert len(list(find_undocumented(parse(text)))) == 1
    assert list(find_undocumented(parse(f"{DOC}class A:\n    {DOC}"))) == []


def test_a_class_that_stands_twice_is_refused_at_both_places(tmp_path: Path) -> None:
    write_tree(tmp_path, {"a/one": 'class A: "x"', "b/two": 'class A: "x"', "c/three": 'class B: "x"'})
    lines = [str(offence) for offence in find_offences(tmp_path, {})]
    assert [line.split(":")[0] for line in lines] == ["src/a/one.py", "src/b/two.py"]
    assert "class A stands also at src/b/two.py:2" in lines[0]


def test_a_reason_on_the_line_of_one_of_two_classes_is_enough(tmp_path: Path) -> None:
    write_tree(tmp_path, {"one": 'class A: "x"', "two": 'class A:  # same name: the client shows it\n    "x"'})
    assert find_offences(tmp_path, {}) == []


def test_two_reasons_are_needed_for_three_classes(tmp_path: Path) -> None:
    reasoned = 'class A:  # same name: the client shows it\n    "x"'
    write_tree(tmp_path, {"one": 'class A: "x"', "two": 'class A: "x"', "three": reasoned})
    assert len(find_offences(tmp_path, {})) == 2


def test_a_module_that_stands_twice_is_refused_unless_it_is_allowed(tmp_path: Path) -> None:
    write_tree(tmp_path, {"a/same": "", "b/same": "", "a/__init__": "", "b/__init__": ""})
    assert [offence.path.as_posix() for offence in find_offences(tmp_path, {})] == ["src/a/same.py", "src/b/same.py"]
    assert find_offences(tmp_path, {"same": "they are one thing"}) == []


def test_a_name_that_is_allowed_for_nothing_is_refused(tmp_path: Path) -> None:
    write_tree(tmp_path, {"a/same": ""})
    assert "remove it from SHARED_MODULES" in str(find_offences(tmp_path, {"same": "they are one thing"})[0])


def test_generated_stubs_are_not_asked(tmp_path: Path) -> None:
    stub = tmp_path / "clients/python/src/reasond/v1/a_pb2.py"
    stub.parent.mkdir(parents=True)
    stub.write_text("class A: ...\n", encoding="utf-8")
    assert find_offences(tmp_path, {}) == []


def test_the_paths_say_whose_offences_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(names, "ROOT", tmp_path)
    monkeypatch.setattr(names, "SHARED_MODULES", {})
    write_tree(tmp_path, {"a/one": 'def kept(): "x"', "b/two": 'def told(): "x"', "c/three": ""})
    assert names.main([]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "2 offences"
    assert names.main([str(tmp_path / "src/a")]) == 1
    assert "kept" in capsys.readouterr().out
    assert names.main([str(tmp_path / "src/c")]) == 0
