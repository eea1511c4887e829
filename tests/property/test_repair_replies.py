"""Whatever a reply says, an accepted patch changes nothing outside what the reply names."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.repair.edits.edit_application import EditError, apply_edits, list_candidates, read_reply
from tests.repairing import source_files

if TYPE_CHECKING:
    from collections.abc import Mapping

FILES = {
    "src/a.py": "LIMIT = 1\n\n\ndef alpha(x):\n    y = x\n    return y + 1\n\n\ndef shared(x):\n    return x\n",
    "src/b.py": "def beta(x):\n    y = x\n    return y - 1\n\n\ndef shared(x):\n    return x\n",
    "src/c.py": "def gamma(x):\n    return [x]\n",
}
LINES = [
    "    y = x",
    "    return x",
    "    return y + 1",
    "    return y - 1",
    "    return [x]",
    "return x",
    "",
    "LIMIT = 1",
]
PATHS = [
    "src/a.py",
    "b.py",
    "a/src/c.py",
    "???",
    "In `b.py`:",
    "path/to/file.py",
    "Then:",
    "src/none.py",
    "",
    "the file\\a",
]
TEXTS = [
    "    return 7",
    "def alpha(x):\n    return 7",
    "def shared(x):\n    return 7",
    "x = 7",
    "# ... rest unchanged",
    "...",
]
NUMBER = re.compile(r"^ *\d+ \| ")
PIECES = st.one_of(
    st.sampled_from(PATHS),
    st.builds(
        "<<<<<<< {}\n{}\n=======\n{}\n>>>>>>> REPLACE".format,
        st.sampled_from(["SEARCH", "HEAD", "SEARCH src/a.py", "SEARCH b.py"]),
        st.lists(st.sampled_from(LINES), min_size=1, max_size=2).map("\n".join),
        st.sampled_from(TEXTS),
    ),
    st.builds(
        "```{}\n{}\n```".format, st.sampled_from(["python", "python src/b.py", "diff", ""]), st.sampled_from(TEXTS)
    ),
    st.builds(
        "{}@@ -1 +1 @@\n-{}\n+{}".format,
        st.sampled_from(["", "--- a/src/b.py\n+++ b/src/b.py\n"]),
        st.sampled_from(LINES),
        st.sampled_from(TEXTS),
    ),
    st.builds(
        "<path>{}</path>\n<search>\n{}\n</search>\n<replace>\n{}\n</replace>".format,
        st.sampled_from(PATHS),
        st.sampled_from(LINES),
        st.sampled_from(TEXTS),
    ),
    st.builds("```sh\ncat > {} <<E\n{}\nE\n```".format, st.sampled_from(PATHS), st.sampled_from(TEXTS)),
    st.builds(
        "{}\n<<<<<<< SEARCH\n 4 | {}\n=======\n 4 | {}\n>>>>>>> REPLACE".format,
        *map(st.sampled_from, (PATHS, LINES, TEXTS)),
    ),
    st.text("`<>=+-@ \n#defx:y", max_size=12),
)


def accept(reply: str) -> Mapping[str, bytes | None]:
    """Return what the first usable candidate of a reply changes; nothing if none is usable."""
    for text in list_candidates(reply):
        try:
            return apply_edits(source_files(FILES), read_reply(text).edits, protected=lambda _: False)
        except EditError:
            continue
    return {}


@given(st.lists(PIECES, max_size=6).map("\n".join))
def test_a_patch_changes_only_files_and_functions_that_the_reply_names_or_quotes(reply: str) -> None:
    # A line that is quoted with its number is quoted.
    said = {NUMBER.sub("", line).strip(" +-") for line in reply.split("\n")}
    for path, content in accept(reply).items():
        before = FILES.get(path)
        if before is None or content is None:
            assert path in reply
            continue
        after = content.decode()
        kept = {ast.unparse(node) for node in ast.parse(after).body}
        for node in ast.parse(before).body:
            if ast.unparse(node) in kept:
                continue
            lines = {line.strip() for line in ast.unparse(node).split("\n")}
            # A definition that changed was written anew by its name, or some of its lines were quoted.
            assert f"def {getattr(node, 'name', '')}(" in reply or lines & said, (path, after)


@given(st.lists(st.sampled_from([*PATHS, "prose"]), max_size=3).map("\n".join))
def test_lines_that_two_files_have_are_changed_only_where_a_path_says_which(above: str) -> None:
    reply = f"{above}\nso:\n<<<<<<< SEARCH\n    return x\n=======\n    return 7\n>>>>>>> REPLACE"
    assert not accept(reply)


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(
            ("<search>\n    return x\n</search>\n<replace>\n    return 7\n</replace>"),
            id="tag without path, line of two",
        ),
        pytest.param(
            ("<path>src/none.py</path><search>\n    y = x\n</search><replace>\n    y = 7\n</replace>"),
            id="tag with unknown path",
        ),
        pytest.param(
            ("<path>src</path><search>\n    y = x\n</search><replace>\n    y = 7\n</replace>"),
            id="tag with a path of a folder",
        ),
        pytest.param(
            ("<path>src/a.py</path><search>\n    return y + 1\n</search><replace>\n    return y + 2\n"), id="tags cut"
        ),
        pytest.param(
            ("<path>src/a.py</path><replace>\n    return 7\n</replace><search>\n    return y + 1\n</search>"),
            id="replace before search",
        ),
        pytest.param(
            (
                "<path>src/a.py</path><search>\n"
                "LIMIT = 1\n"
                "</search><search>\n"
                "    return y + 1\n"
                "</search><replace>\n"
                "    return 7\n"
                "</replace>"
            ),
            id="two searches one replace",
        ),
        pytest.param(
            ('<file path="src/b.py">\ndef alpha(x):\n    return 7\n</file>'),
            id="file tag with one function of other file",
        ),
        pytest.param(('<file path="src/c.py">\n</file>'), id="file tag then content of another"),
        pytest.param(
            ('<tool_call>{"name":"read_file","arguments":{"path":"src/a.py"}}</tool_call>'), id="tool_call of reading"
        ),
        pytest.param(
            ('<tool_call>{"name":"bash","arguments":{"command":"rm src/a.py"}}</tool_call>'), id="tool_call bash"
        ),
        pytest.param(
            (
                "> src/a.py\n"
                "> <<<<<<< SEARCH\n"
                ">     return x\n"
                "> =======\n"
                ">     return 7\n"
                "> >>>>>>> REPLACE\n"
                "This is what you said."
            ),
            id="quoted issue",
        ),
        pytest.param(("```bash\ncat >> src/a.py <<'EOF'\nx = 7\nEOF\n```"), id="heredoc append"),
        pytest.param(("```bash\ncat > src/a.py <<'EOF'\nx = 7\nEOF\nrm -rf src\n```"), id="heredoc and more"),
        pytest.param(
            ("```bash\ncat > src/a.py <<'EOF'\ndef nothing(x):\n    return 7\nEOF\n```"), id="heredoc of one function"
        ),
        pytest.param(("```bash\ncat > src/a.py <<'EOF'\nx = 7\n```"), id="heredoc unclosed"),
        pytest.param(("```bash\ncat > ../../etc/passwd <<'EOF'\nx = 7\nEOF\n```"), id="heredoc outside"),
        pytest.param(("```bash\nsed -i 's/return x/return 7/' src/a.py\n```"), id="sed"),
        pytest.param(
            ("src/a.py\n<<<<<<< SEARCH\n 99 |     return z\n=======\n 99 |     return 7\n>>>>>>> REPLACE\n"),
            id="numbers of another place",
        ),
        pytest.param(("```python src/a.py\n1 | def alpha(x):\n2 |     ...\n```"), id="numbered and elided"),
        pytest.param(('```python\n"""src/a.py"""\nx = 7\n```'), id="docstring that is a path"),
        pytest.param(
            (
                "&lt;&lt;&lt;&lt;&lt;&lt;&lt; SEARCH\n"
                "    return x\n"
                "=======\n"
                "    return 7\n"
                "&gt;&gt;&gt;&gt;&gt;&gt;&gt; REPLACE"
            ),
            id="escaped block without path",
        ),
        pytest.param(
            (
                "src/c.py\n"
                "<<<<<<< SEARCH\n"
                "    return [x]\n"
                "=======\n"
                "    return [7]\n"
                ">>>>>>> REPLACE\n"
                "\n"
                "The other file stays:\n"
                "```python src/a.py\n"
                "x = 7\n"
                "```"
            ),
            id="restated with another content",
        ),
        pytest.param(
            ("Before:\n```python\n    return x\n```\nAfter:\n```python\n    return 7\n```"),
            id="before after of two files",
        ),
        pytest.param(("Before:\n```python\n    return y + 1\n```"), id="before alone"),
        pytest.param(
            ("After:\n```python\n    return 7\n```\nBefore:\n```python\n    return y + 1\n```"), id="after first"
        ),
        pytest.param(
            (
                "src/a.py\n"
                "<<<<<<< SEARCH\n"
                ":start_line:4\n"
                "-------\n"
                "    return q\n"
                "=======\n"
                "    return 7\n"
                ">>>>>>> REPLACE\n"
            ),
            id="start_line elsewhere",
        ),
        pytest.param(
            ('{"name":"edit","arguments":"{\\"path\\":\\"src/none.py\\",\\"old\\":\\"x\\",\\"new\\":\\"y\\"}"}'),
            id="json calls",
        ),
        pytest.param(
            ('{"edits":[{"search":"    return x","replace":"    return 7"}]}'), id="json two files one path missing"
        ),
        pytest.param(('{"path":"src/a.py","delete":true}'), id="json delete"),
        pytest.param(('<file path="test_a.py">\nassert True\n</file>'), id="protected through tags"),
        pytest.param(
            (
                "*** Begin Patch\n"
                "*** Update File: src/a.py\n"
                "*** Move to: src/z.py\n"
                "@@\n"
                "-LIMIT = 1\n"
                "+LIMIT = 2\n"
                "*** End Patch"
            ),
            id="rename by patch",
        ),
        pytest.param(("src/a.py\n```js\nfunction alpha(x) { return 7 }\n```"), id="answer in another language"),
    ],
)
def test_what_may_mean_something_else_changes_nothing(reply: str) -> None:
    files = source_files({**FILES, "test_a.py": "assert 1\n"})
    for text in list_candidates(reply):
        with pytest.raises(EditError):
            apply_edits(files, read_reply(text).edits, protected=lambda path: path.startswith("test_"))
