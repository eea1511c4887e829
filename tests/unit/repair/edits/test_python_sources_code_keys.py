from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reasond_server.repair.edits.python_sources import compute_code_key
from reasond_server.types.repairs import SourceFile

if TYPE_CHECKING:
    from collections.abc import Mapping

ORIGINAL = b'"""Says."""\ndef f(x):\n    """Return x."""\n    return x + 1  # one\n'


def key(changes: Mapping[str, bytes | None], **files: bytes) -> str:
    originals = {"a.py": ORIGINAL, **{name.replace("_", "."): content for name, content in files.items()}}
    return compute_code_key(
        changes, {path: SourceFile(path=path, content=content) for path, content in originals.items()}
    )


@pytest.mark.parametrize(
    "other",
    [
        b"def f(x):\n    return x + 2\n",
        b'"""Says."""\n\n\ndef f( x ):\n    # why\n    return (x +\n            2)\n',
        b"def f(x):\r\n\t'other words'\r\n\treturn x + 2",
        b"def f(x): return x + 0x2\n",
    ],
)
def test_layout_comments_and_docstrings_make_no_difference(other: bytes) -> None:
    assert key({"a.py": other}) == key({"a.py": b'def f(x):\n    """Return x."""\n    return x + 2\n'})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"x = 1\n", b"x = True\n"),
        (b"x = 1\n", b"x = 1.0\n"),
        (b"x = 'a'\n", b"x = b'a'\n"),
        (b"x = -0.0\n", b"x = 0.0\n"),
        (b"x = [1, 2]\n", b"x = [(1, 2)]\n"),
        (b"x = a < b\n", b"x = a <= b\n"),
        (b"f(a, *b)\n", b"f(*a, b)\n"),
        (b"if a:\n    b\n    c\n", b"if a:\n    b\nc\n"),
        (b"x = f'{a!r}'\n", b"x = f'{a!s}'\n"),
        (b"from .a import b\n", b"from ..a import b\n"),
        (b"from a import b\n", b"from a import b as c\n"),
        (b"async def f(): pass\n", b"def f(): pass\n"),
        (b"def f(a, /, b): pass\n", b"def f(a, b): pass\n"),
        (b"def f(a, *, b=1): pass\n", b"def f(a, b=1): pass\n"),
        (b"x = 'some words'\n'''a docstring at module level?'''\n", b"x = 'some words'\n"),
        (b"def f():\n    'doc'\n    'text'\n", b"def f():\n    'text'\n"),
        (b"x = {**a, 'k': 1}\n", b"x = {'k': 1, **a}\n"),
        (b"match x:\n    case None: pass\n", b"match x:\n    case True: pass\n"),
        (b"x = 10 ** 5000 + " + b"9" * 4000 + b"\n", b"x = 10 ** 5000 + " + b"9" * 3999 + b"8\n"),
        (b"x = 0x" + b"f" * 9000 + b"\n", b"x = 0x" + b"f" * 8999 + b"e\n"),
    ],
)
def test_different_code_has_different_keys(one: bytes, other: bytes) -> None:
    assert key({"a.py": one}) != key({"a.py": other})


def test_a_change_of_docstrings_or_layout_alone_counts_as_a_change() -> None:
    documented = ORIGINAL.replace(b"Return x.", b">>> f(1)")
    commented = ORIGINAL.replace(b"# one", b"# type: ignore")
    assert len({key({}), key({"a.py": ORIGINAL}), key({"a.py": documented}), key({"a.py": commented})}) == 3
    assert key({}) == key({"a.py": ORIGINAL})


def test_beside_a_change_of_code_other_files_count_only_for_their_code() -> None:
    fix = b"def f(x):\n    return x + 2\n"
    assert key({"a.py": fix}) == key({"a.py": fix, "b.py": b"y = 1 # new\n"}, b_py=b"y = 1\n")
    assert key({"a.py": fix}) != key({"a.py": fix, "b.py": b"y = 2\n"}, b_py=b"y = 1\n")
    assert key({"a.py": fix}) != key({"a.py": fix, "b.py": None}, b_py=b"y = 1\n")
    assert key({"a.py": fix}) != key({"a.py": fix, "c.py": b""})
    assert key({"a.py": fix}) == key({"a.py": fix, "c.py": None})


def test_other_texts_are_compared_without_white_space_at_the_end_of_lines() -> None:
    assert key({"a.go": b"a \r\nb\n\n"}) == key({"a.go": b"a\nb"})
    assert key({"a.go": b" a\nb"}) != key({"a.go": b"a\nb"})
    assert key({"a.go": b"a\nb"}) != key({"b.go": b"a\nb"})
    assert key({"a.sh": b"a\n"}, a_sh=b"a\r\n") != key({})


def test_python_that_cannot_be_parsed_is_compared_as_text() -> None:
    deep = b"x = " + b"-" * 3000 + b"1"
    assert key({"a.py": b"def f(:  \n"}) == key({"a.py": b"def f(:\n"}) != key({"a.py": b"def g(:\n"})
    assert key({"a.py": deep + b"\n"}) == key({"a.py": deep}) != key({"a.py": deep + b"0"})


def test_the_key_does_not_depend_on_the_depth_of_the_callers_stack() -> None:
    nested = b"x = " + b"-" * 450 + b"1\n"

    def descend(levels: int) -> str:
        return descend(levels - 1) if levels else key({"a.py": nested})

    assert descend(0) == descend(600)
