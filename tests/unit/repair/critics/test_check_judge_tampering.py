"""Signs that a candidate deals with its checks; and code that repairs need, which is none."""

from __future__ import annotations

import pytest

from reasond_server.repair.critics.check_judge import TamperingCritic
from reasond_server.types.repairs import Severity
from tests.repairing import source_files

FILES = source_files({"calc.py": "", "pkg/__init__.py": "", "pkg/a.py": ""})


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos._exit(0)",
        "from os import _exit",
        "import posix as p\np.kill(1, 9)",
        "import atexit",
        "import atexit as a",
        "from atexit import register",
        "import _pytest.runner",
        "from unittest import mock",
        "import sys as s\nprint(s.modules)",
        "from sys import modules as m",
        "from sys import *",
        "import sys\nsys._getframe(1).f_locals",
        "import gc",
        "import builtins",
        "x = eval('1')",
        "exec('x = 1')",
        "__import__('os')",
        "import os\ngetattr(os, '_ex' + 'it')(0)",
        "import sys\nsetattr(sys, name, 1)",
        "getattr(thing, '__globals__')",
        "f.__globals__['x'] = 1",
        "x = open('/proc/self/cmdline')",
        "import os\nos.environ.get('PYTEST_CURRENT_TEST')",
        "class A:\n    def __eq__(self, other):\n        return True",
        "class A:\n    def __ne__(self, other):\n        'doc'\n        return False",
        "class A:\n    def __eq__(self, other):\n        return bool(1)",
        "class A:\n    def __eq__(self, other):\n        return 1 == 1",
        "import json\njson.loads = None",
        "import math as m\ndef add(a, b):\n    m.isclose = print",
        "import signal\nsignal.raise_signal(9)",
        "import ctypes",
        "import sys\nsys.exit(0)",
        "import sys\ndef add(a, b):\n    sys.exit()",
        "raise SystemExit",
        "def add(a, b):\n    raise SystemExit(0)",
        "import sys\nsys.settrace(None)",
    ],
)
async def test_plain_forms_of_tampering_are_high(text: str) -> None:
    found = await TamperingCritic().review(FILES, {"calc.py": text.encode()})
    assert found
    assert all(one.severity is Severity.HIGH and one.path == "calc.py" for one in found)


@pytest.mark.parametrize(
    "text",
    [
        "def add(a, b):\n    return a + b",
        "import re\nre.compile('x')",
        "import os\nos.path.join('a', os.environ['HOME'])",
        "import sys\nprint('x', file=sys.stderr)\nraise SystemExit(2)",
        "self.modules = self.argv",
        "import sys\ndef main():\n    sys.exit('no such file')",
        "import sys\nif __name__ == '__main__':\n    sys.exit(main())",
        "from .inspect import gc",
        "from pkg.builtins import path",
        "class A:\n    def __eq__(self, other):\n        return self.x == other.x",
        "getattr(self, name)",
        "not python at all (",
        "window.exit()",
        "import calc\ncalc.rate = 2",
        "import io, sys\nsys.stdout = io.StringIO()",
        "x = '''text about tests'''",
        "import functools, itertools, collections, dataclasses, asyncio, subprocess, json",
    ],
)
async def test_code_of_repairs_is_none(text: str) -> None:
    assert not await TamperingCritic().review(FILES, {"calc.py": text.encode()})


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.js", "process.exit(0)"),
        ("a.ts", "const {exit} = process; process . exit (0)"),
        ("a.mjs", "import test from 'node:test'"),
        ("a.js", "new Function('x')"),
        ("a.go", "func init() { os.Exit(0) }"),
        ("a.go", 'import "testing"'),
        ("a.go", 'fmt.Print("\\x16--- PASS: TestA")'),
        ("A.java", "System.exit(0);"),
        ("A.java", "Runtime.getRuntime().halt(0);"),
        ("A.java", "import org.junit.Test;"),
        ("A.kt", "field.setAccessible(true)"),
    ],
)
async def test_other_languages_are_searched_by_words(path: str, text: str) -> None:
    (found, *_) = await TamperingCritic().review(FILES, {path: f"\n{text}\n".encode()})
    assert (found.severity, found.line) == (Severity.HIGH, 2)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("calc.py", "import sys\nname = sys.argv[1]"),
        ("calc.py", "from sys import argv"),
        ("calc.py", "import inspect"),
        ("calc.py", "import importlib\nimportlib.import_module(name)"),
        ("calc.py", "import sys\nsys.exit(code)"),
        ("calc.py", "import sys\ndef main():\n    sys.exit(0)"),
        ("calc.py", "open('tests/wanted.json')"),
        ("a.js", "const name = process.argv[2];"),
        ("a.js", "process.exit(code);"),
        ("a.go", "name := os.Args[1]"),
        ("a.go", "os.Exit(code)"),
        ("A.java", "System.exit(status);"),
    ],
)
async def test_what_repairs_do_as_well_is_told_and_does_not_decide(path: str, text: str) -> None:
    found = await TamperingCritic().review(FILES, {path: text.encode()})
    assert [one.severity for one in found] == [Severity.MEDIUM]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.js", "// process.exit(0) is not called here"),
        ("a.js", "return 1; // see process.argv"),
        ("a.js", "process.exit(1);"),
        ("a.js", "process.on('SIGTERM', stop);"),
        ("a.go", "x := 1 // os.Exit(0)"),
        ("a.go", "os.Exit(2)"),
    ],
)
async def test_words_in_comments_and_exits_with_an_error_are_none(path: str, text: str) -> None:
    assert not await TamperingCritic().review(FILES, {path: text.encode()})


@pytest.mark.parametrize("text", ['"//"; process.exit(0)', "a /* // */; process.exit(0)", "`//`; process.exit(0)"])
async def test_what_only_looks_like_a_comment_hides_nothing(text: str) -> None:
    (found,) = await TamperingCritic().review(FILES, {"a.js": text.encode()})
    assert found.severity is Severity.HIGH


@pytest.mark.parametrize(
    ("path", "is_shadow"),
    [
        ("json.py", True),
        ("src/traceback.py", True),
        ("xml/__init__.py", True),
        ("pkg/json.py", False),
        ("helper.py", False),
        ("calc.py", False),
        ("other/json.txt", False),
    ],
)
async def test_a_new_module_that_takes_the_place_of_a_standard_one_is_high(path: str, *, is_shadow: bool) -> None:
    found = await TamperingCritic().review(FILES, {path: b"x = 1\n"})
    assert bool(found) is is_shadow


async def test_deleted_files_and_bytes_that_are_no_text_are_no_problem() -> None:
    assert not await TamperingCritic().review(FILES, {"calc.py": None, "a.js": b"\xff\xfe", "b.py": b"\xff\0"})
