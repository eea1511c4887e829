"""How people ask for a program, in some languages: "Write a Python function", "Schreib ein Skript"."""

from __future__ import annotations

import re
from typing import Final

# Only where a request begins: "Mia can write a program in 3 hours" is a story.
_BEFORE: Final = r"(?:^|[.!?:;>(]\s{0,3}|\b(?:please|you|you to|task is to|bitte|por favor) )"
_WRITE: Final = "write|implement|develop|code|schreibe?|implementiere|écri(?:s|vez)|escrib[ae]|напиши(?:те)?"
# "Write a summary of the program" asks for none.
_WORDS: Final = r"(?: (?!(?:of|about|for|how|what|that|which|on|from|to|by|with)\b)[\w+#'`-]{1,20}){0,6}?"
_LANGUAGES: Final = (
    r"python|java|javascript|typescript|c\+\+|c#|rust|golang|ruby|kotlin|swift|php|perl|scala|haskell|sql|bash|shell"
)
# Functions alone are those of mathematics, in every language; "the function f(x)" too.
_PROGRAMS: Final = r"program|script|code|programm|skript|programme|programa|программу"
_DEFINED: Final = r"(?:function|method|class) `?\w{4,60}\("
_IN_CHINESE: Final = r"编写[^\n]{0,40}(?:函数|程序|代码)|写[^\n]{0,20}(?:程序|代码)"
_IN_JAPANESE: Final = r"(?:プログラム|コード)を(?:書|実装)|関数を実装"

PROGRAM_REQUEST: Final = re.compile(
    rf"{_BEFORE}(?:{_WRITE})\b{_WORDS} `?(?:(?:{_LANGUAGES})(?!\w)|(?:{_PROGRAMS})\b|{_DEFINED})"
    rf"|{_IN_CHINESE}|{_IN_JAPANESE}",
    re.IGNORECASE | re.MULTILINE,
)
"""A request to write a program; "What does this code print?" and "write the equation" are none."""
