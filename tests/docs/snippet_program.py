"""What a process that is forked for a snippet of Python does: run the text as `python -c` would."""

from __future__ import annotations

import sys
from types import ModuleType


def main() -> None:
    """Run the program's argument as the main module, in which pydantic looks names up."""
    module = sys.modules["__main__"] = ModuleType("__main__")
    text = sys.argv.pop(1)
    sys.argv[0] = "-c"
    exec(compile(text, "<string>", "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - a text of our own pages
