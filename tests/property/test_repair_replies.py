"""Whatever a reply says, an accepted patch changes nothing outside what the reply names."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

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
    said = {line.strip(" +-") for line in reply.split("\n")}
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
