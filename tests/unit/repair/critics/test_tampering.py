"""Signs that a candidate deals with its checks; and code that repairs need, which is none."""

from __future__ import annotations

import pytest

from reasond_server.repair.critics.tampering import TamperingCritic
from reasond_server.types.repairs import Severity
from tests.repairing import source_files

TESTS = """import pytest
from calc import add


def test_add():
    assert add(2, 3) == 5
    assert add(-1, 4) == 3


@pytest.mark.parametrize(("a", "b", "c"), [(7, 8, 15), (0, 0, 0)])
def test_sums(a, b, c):
    assert add(a, b) == c
"""
FILES = source_files(
    {
        "calc.py": "",
        "pkg/__init__.py": "",
        "pkg/a.py": "",
        "tests/test_calc.py": TESTS,
        "tests/wanted.json": "{}",
        "test_top.py": "self.assertEqual(read('z'), [1, 2])\nassert read('x') == 'y'\n",
    }
)


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
        "import gc\ngc.get_objects()",
        "from gc import get_referrers",
        "import sys as system\nsystem.exit()",
        "from sys import exit as leave\nleave()",
        "import os\nos.kill(os.getpid(), 9)",
        "import sys\nif 'pytest' in sys.modules:\n    x = 1",
        "import sys\ngetattr(sys, 'ex' + 'it')(0)",
        "class A:\n    def __eq__(self, other):\n        return not False",
        "class A:\n    __eq__ = lambda self, other: True",
        "A = type('A', (), {'__eq__': lambda self, other: True})",
        "class A:\n    def __eq__(self, other):\n        x = True\n        return x",
        "class A:\n    def __eq__(self, other):\n        return self is self",
        "class A:\n    def __eq__(self, other):\n        return other == other",
        "class A:\n    def __eq__(self, other):\n        return True or other",
        "class A:\n    def __eq__(self, other):\n        return len('a') == 1",
        "class A:\n    def __eq__(self, *others):\n        return True",
        "import math\nmath.isclose, x = f, 1",
        "import math\nmath.isclose: object = f",
        "import math\nmath.__dict__['isclose'] = f",
        "import math\nvars(math)['isclose'] = f",
        "import math\nsetattr(math, 'isclose', f)",
        "import math\nfor math.pi in [3]:\n    pass",
        "import math\ndel math.isclose",
        "import numpy as np\nnp.allclose = lambda *a: True",
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
    assert Severity.HIGH in {one.severity for one in found}
    assert {one.path for one in found} == {"calc.py"}


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
        "# eval, exec and os._exit are not used here",
        "'''Never use eval or os._exit.'''",
        "app.exit()\nself.exit(0)\nparser.exit()",
        "model.eval()\nmodel.compile()\ncursor.exec('x')",
        "import sys\nif 'numpy' in sys.modules:\n    x = 1",
        "import os\nflags = getattr(os, 'O_BINARY', 0)",
        "import operator\nf = getattr(operator, name)",
        "class A:\n    def __eq__(self, other):\n        return NotImplemented",
        "class A:\n    def __eq__(self, other):\n        return isinstance(other, A)",
        "class A:\n    def __eq__(self, other):\n        raise TypeError",
        "import decimal\ndecimal.getcontext().prec = 50",
        "def add(a, b):\n    return {(2, 3): 5}.get((a, b), a + b)",
        "NAMES = {'x': 'y', 'z': [1, 2], 'a': 1, 'b': 2, 'c': 3}",
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
        ("a.js", "process['exit'](0)"),
        ("a.js", "process?.exit(0)"),
        ("a.js", "process.exitCode = 0"),
        ("a.js", "globalThis.eval('1')"),
        ("a.go", "func main() {}; func init() { os.Exit(0) }"),
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
        ("calc.py", "import sys\nsys.path.insert(0, 'src')"),
        ("calc.py", "import os\nos.kill(pid, 15)"),
        ("calc.py", "import gc\ngc.collect()"),
        ("calc.py", "import logging\nlogging.raiseExceptions = False"),
        ("calc.py", "import datetime\ndatetime.datetime.now = f"),
        ("calc.py", "from datetime import datetime\ndatetime.now = f"),
        ("calc.py", "import doctest"),
        ("calc.py", "from tests import test_calc"),
        ("calc.py", "import test_top"),
        ("calc.py", "open('tests/wanted.json')"),
        ("calc.py", "open('wanted.json')"),
        ("calc.py", "Path('tests') / name"),
        ("calc.py", "Path(__file__).parent / 'tests'"),
        ("calc.py", "os.listdir('./tests/')"),
        ("calc.py", "def add(a, b):\n    return {(2, 3): 5, (-1, 4): 3}.get((a, b), a - b)"),
        (
            "calc.py",
            "def add(a, b):\n    if a == 2 and b == 3:\n        return 5\n    if (a, b) == (7, 8):\n        return 15",
        ),
        ("calc.py", "match (a, b):\n    case (2, 3):\n        x = {'x': 'y', 'z': [1, 2]}"),
        ("calc.py", "def add(a, b):\n    return 5 if (a, b) == (2, 3) else 15 if (a, b) == (7, 8) else a - b"),
        ("a.js", "process.on('exit', cleanUp);"),
        ("a.js", "const {spawn} = require('child_process');"),
        ("a.js", "const {exit} = process;"),
        ("a.js", "async function main() {\n  process.exit(0);\n}"),
        ("a.go", "func main() {\n\tos.Exit(0)\n}"),
        ("A.java", "  public static void main(String[] args) {\n    System.exit(0);\n  }"),
        ("A.java", "import java.lang.reflect.Method;"),
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
        ("a.js", "process.exitCode = 1;"),
        ("a.js", "/* process.exit(0) */"),
        ("a.js", "/*\n * process.exit(0)\n */"),
        ("a.js", "model.eval(x)"),
        ("a.go", "signal.Notify(c, syscall.SIGTERM)"),
        ("A.java", "/** Never calls System.exit(0). */"),
    ],
)
async def test_words_in_comments_and_exits_with_an_error_are_none(path: str, text: str) -> None:
    assert not await TamperingCritic().review(FILES, {path: text.encode()})


@pytest.mark.parametrize(
    "text",
    [
        '"//"; process.exit(0)',
        "a /* // */; process.exit(0)",
        "`//`; process.exit(0)",
        "x = `\n/*\n`; process.exit(0) /*\n*/",
    ],
)
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


async def test_where_every_check_names_its_tests_an_early_exit_makes_none_pass() -> None:
    critic, text = TamperingCritic(are_tests_named=True), b"import os, sys\ndef usage():\n    sys.exit(0)\n"
    assert [one.severity for one in await critic.review(FILES, {"calc.py": text})] == [Severity.MEDIUM]
    (found,) = await critic.review(FILES, {"calc.py": b"import os\nos._exit(0)\n"})
    assert found.severity is Severity.HIGH


async def test_what_follows_the_main_function_is_not_excused() -> None:
    for text in (
        "func main() {\n}\nfunc init() {\n\tos.Exit(0)\n}",
        'func main() {\n\tx := "{"\n}\nfunc Add() {\n\tos.Exit(0)\n}',
    ):
        (found,) = await TamperingCritic().review(FILES, {"a.go": text.encode()})
        assert found.severity is Severity.HIGH


async def test_each_sign_has_a_rule_that_can_be_named() -> None:
    found = await TamperingCritic().review(FILES, {"calc.py": b"import sys\nsys.argv\nopen('wanted.json')\n"})
    assert [one.rule_id for one in found] == ["tampering.arguments", "tampering.test_files"]
