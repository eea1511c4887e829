from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from scripts import size_budget
from scripts.size_budget import Module, list_measures, measure, over_budget, percentile, read_modules, too_wide

SOURCE = textwrap.dedent(
    '''
    """A module.

    With two paragraphs.
    """

    # why it is so
    LIMIT = 3  # not counted as a comment line


    def outer(value: int) -> str:
        """Say something."""

        # why again
        def inner() -> str:
            return """one
            two"""

        return inner() * value
    '''
).lstrip()


def module(*, lines: int = 10, code: int = 10, comments: int = 0, functions: dict[str, int] | None = None) -> Module:
    return Module(path=Path("a.py"), lines=lines, code=code, comments=comments, functions=functions or {"f:1": 5})


def test_docstrings_blank_lines_and_comments_are_no_code() -> None:
    sizes = measure(Path("a.py"), SOURCE)
    assert sizes.lines == 18
    assert sizes.functions == {"outer:10": 5, "inner:14": 3}
    assert sizes.code == 6
    assert sizes.comments == 2


@pytest.mark.parametrize(("share", "expected"), [(0.9, 9), (0.99, 10), (0.5, 5)])
def test_a_percentile_is_a_value_that_the_share_does_not_exceed(share: float, expected: int) -> None:
    assert percentile(list(range(10, 0, -1)), share) == expected


def test_no_values_have_percentile_0() -> None:
    assert percentile([], 0.9) == 0


@pytest.mark.parametrize(
    ("oversized", "name"),
    [
        (module(lines=451), "module lines, p90"),
        (module(lines=701), "module lines, most"),
        (module(functions={"f:1": 21}), "function code, p90"),
        (module(functions={"f:1": 46}), "function code, p99"),
        (module(functions={"f:1": 61}), "function code, most"),
        (module(code=100, comments=7), "comments per 100 lines"),
    ],
)
def test_each_limit_is_enforced(oversized: Module, name: str) -> None:
    broken = {measure.name for measure in list_measures([oversized]) if not measure.is_kept}
    assert name in broken


def test_a_small_module_keeps_the_whole_budget() -> None:
    assert all(measure.is_kept for measure in list_measures([module()]))


def test_what_is_over_by_itself_is_named() -> None:
    named = over_budget([module(lines=701, functions={"f:1": 61, "g:9": 60})])
    assert named == ["a.py: 701 lines", "a.py f:1: 61 lines of code"]


def test_generated_stubs_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "clients" / "python"
    folder.mkdir(parents=True)
    for name in ("mine.py", "errors_pb2.py", "errors_pb2_grpc.py"):
        (folder / name).write_text("A = 1\n", encoding="utf-8")
    assert [entry.path.name for entry in read_modules(tmp_path)] == ["mine.py"]


def declare(count: int, *, method: str = "") -> str:
    """Return a module of `count` classes, each with a field and maybe a method."""
    return "\n\n".join(
        f'class E{number}(Base):\n    """A reason."""\n\n    reason = "E{number}"\n    status = {number}\n{method}'
        for number in range(count)
    )


def test_a_module_of_declarations_may_be_as_long_as_it_has_classes() -> None:
    assert measure(Path("a.py"), declare(200)).lines > 1000
    assert over_budget([measure(Path("a.py"), declare(200))]) == []
    assert all(each.is_kept for each in list_measures([measure(Path("a.py"), declare(200)), *9 * [module()]]))


@pytest.mark.parametrize(
    "source",
    [
        "A = 1\n" * 701,
        declare(200, method="    def work(self):\n        return 1\n        a = 2\n        b = 3\n"),
        declare(200) + "\n\n\ndef work():\n" + "    a = 1\n" * 11,
        "def work():\n    return 1\n\n\n" * 300,
    ],
    ids=["constants", "methods", "a long function", "functions"],
)
def test_a_module_that_does_more_than_declare_has_a_maximum(source: str) -> None:
    assert len(over_budget([measure(Path("a.py"), source)])) == 1


@pytest.mark.parametrize("room", ["tests", "benchmarks", "examples"])
def test_what_is_not_shipped_keeps_the_hard_limits_too(
    room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(size_budget, "ROOT", tmp_path)
    for name, lines in (("src", 1), (room, 700)):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / f"of_{lines}.py").write_text("A = 1\n" * lines, encoding="utf-8")
    assert size_budget.main() == 0
    (tmp_path / room / "long.py").write_text("A = 1\n" * 701, encoding="utf-8")
    assert size_budget.main() == 1
    assert f"{room}/long.py: 701 lines" in capsys.readouterr().out


WIDE = """
class Base:
    kind: ClassVar[str] = "a"
    __slots__ = ("first", "second")

    def open(self) -> None:
        self.third = self.fourth = 0

class Derived(Base[int]):
    fifth: int

    def close(self) -> None:
        self.fifth, other.sixth = 0, 0

    @property
    def state(self) -> str: ...
"""


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ("\n".join(f"    def m{number}(self) -> None: ..." for number in range(17)), []),
        (
            "\n".join(f"    def m{number}(self) -> None: ..." for number in range(18)),
            ["src/reasond_server/eventlog/a.py Derived: 21 methods, the limit is 20"],
        ),
        ("\n".join(f"    f{number}: int" for number in range(15)), []),
        (
            "    def set(self) -> None:\n" + "\n".join(f"        self.f{number} = 0" for number in range(16)),
            ["src/reasond_server/eventlog/a.py Derived: 21 attributes, the limit is 20"],
        ),
    ],
)
def test_a_class_of_the_core_has_20_attributes_and_20_methods_with_those_of_its_bases(
    members: str, expected: list[str]
) -> None:
    source = f"{WIDE}\n{members}\n"
    assert too_wide([measure(Path("src/reasond_server/eventlog/a.py"), source)]) == expected
    assert too_wide([measure(Path("src/reasond_server/llm/a.py"), source)]) == []
