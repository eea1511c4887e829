"""How people ask for a program, in some languages: "Write a Python function", "Schreib ein Skript"."""

from __future__ import annotations

import re
from typing import Final

_WRITE: Final = "write|implement|develop|code|schreib[a-z]*|implementiere|écri[a-z]+|implémente[a-z]*|escrib[a-z]+"
_LANGUAGES: Final = (
    r"python|java|javascript|typescript|c\+\+|c#|rust|golang|ruby|kotlin|swift|php|perl|scala|haskell|sql|bash|shell"
)
_PROGRAMS: Final = "program|script|code|programm|skript|funktion|programme|fonction|programa|función"
# "The function f(x)" is one of mathematics.
_DEFINED: Final = r"(?:function|method|class) `?\w{4,60}\("
_IN_CYRILLIC: Final = r"(?:напиши|реализуй)\w{0,4} [^.\n]{0,80}(?:функци|программ)"
_IN_CHINESE: Final = r"(?:编写|写|实现)[^\n]{0,40}(?:函数|程序|代码)|(?:関数|プログラム|コード)を(?:書|実装)"

PROGRAM_REQUEST: Final = re.compile(
    rf"\b(?:{_WRITE})\b[^.?!\n]{{0,80}}?(?:\b(?:{_LANGUAGES})(?!\w)|\b(?:{_PROGRAMS})\b|\b{_DEFINED})"
    rf"|{_IN_CYRILLIC}|{_IN_CHINESE}",
    re.IGNORECASE,
)
"""A request to write a program; "What does this code print?" and "write the equation" are none."""
