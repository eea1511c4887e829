"""How people ask for a program: "Write a Python function", "Create a class in Java", a function to complete.

A verb asks where it stands as a request: "Mia can write a program in 3 hours" is a story. And what it asks for must be
a program: functions of mathematics, scripts of films, programs of exercises and codes of conduct are asked for with the
same verbs.
"""

from __future__ import annotations

import re
from typing import Final

from reasond_server.dialects.code_blocks import has_code_line

# The request stands before or behind the texts that a long question holds.
_MOST_SEARCHED: Final = 4000
_MOST_BEFORE: Final = 24

# What is written is a program if it is called one; what is made or wanted must be said to be one; edits show theirs.
_WRITE: Final = (
    "write|implement|code|schreib|schreibe|programmiere|écris|écrivez|escribe|escriba|scrivi|escreva|napisz|напиши"
    "|напишите"
)
_MAKE: Final = (
    "develop|create|generate|build|make|construct|design|produce|provide|give me|show me|define|compose|solve"
    "|erstelle|implementiere|crée|créez|crea|crie|создай|создайте"
)
_EDIT: Final = (
    "complete|finish|fill in|fix|debug|correct|edit|modify|refactor|rewrite|optimize|optimise|convert|translate|update"
    "|improve|change|extend|adapt|simplify|repair"
)
_WANT: Final = "need|want|would like|'d like"
# What is asked for with these is a text about what follows, which may be a request, too.
_TELL: Final = (
    "summarize|summarise|classify|categorize|categorise|evaluate|rate|grade|judge|assess|compare|review|critique"
    "|explain|describe|analyze|analyse|paraphrase|rephrase|proofread|extract|label"
)
_WRITES, _EDITS, _WANTS, _TELLS = (frozenset(verbs.split("|")) for verbs in (_WRITE, _EDIT, _WANT, _TELL))
# In lower case, as all patterns here: to ignore the case is much slower.
_VERB: Final = re.compile(rf"\b(?:{_WRITE}|{_MAKE}|{_EDIT}|{_WANT}|{_TELL})\b")
_BEGINS: Final = re.compile(
    r"(?:^[ \t#*>-]{0,8}|[.!?:;,>(]\s{0,3}|\b(?:please|you|you to|(?:you|and) will|and|task is to|bitte|por favor) )\Z",
    re.MULTILINE,
)
_I: Final = re.compile(r"\b(?:i|we) ?\Z")
_LANGUAGES: Final = (
    r"python3?|javascript|typescript|c\+\+|cpp|c#|golang|kotlin|php|haskell|\w{0,8}sql|bash|powershell|html5?|css"
    r"|jquery|react(?:js)?|vue(?:js)?|node\.?js|django|matlab|fortran|numpy|pandas|regex"
)
# Languages whose names are also other words.
_WORDLIKE: Final = r"java|js|rust|ruby|swift|perl|scala|go|shell|julia|dart|lua|c|r"
# "Write a Python tutorial" asks for a text.
_TEXTS: Final = (
    "article|blog|book|cheat|course|cv|developer|documentation|engineer|essay|exam|exercise|guide|interview|job|joke"
    "|lesson|meetup|plan|poem|post|presentation|programmer|question|quiz|resume|roadmap|story|study|talk|teacher"
    "|tutorial|tweet|workshop"
)
# "Using Rust, write ...", "Use Python to build ..."
_IN_LANGUAGE: Final = re.compile(rf"\b(?:in|use|using) (?:{_LANGUAGES}|{_WORDLIKE})(?: to|,)\s\Z")

# "Write a summary of the program" asks for none.
_NEVER: Final = "of|about|how|what|that|which|on|from|by"
_WORDS: Final = rf"(?: (?!(?:{_NEVER})\b)[\w+#'`\"*/&().-]{{1,24}}){{0,8}}? `?"
_FEW_WORDS: Final = rf"(?: (?!(?:{_NEVER}|for|to|with)\b)[\w+#'`-]{{1,20}}){{0,6}}? "
_PROGRAMS: Final = r"program|programm|skript|programme|programa|programma|программу|code(?! of)|script(?= to| that)"
_PARTS: Final = (
    rf"{_PROGRAMS}|function|method|class|solution|query|snippet|component|app(?:lication)?|algorithm|api|loop|statement"
    r"|implementation|interface|module|struct|command|funktion|klasse|fonction|función|funzione|função|функцию"
)
# What programs do, and functions of mathematics seldom.
_TASKS: Final = (
    r"(?:accept|add|append|ask|break|calculat|capitali|check|comput|concatenat|convert|count|creat|delet|detect"
    r"|determin|display|divid|encrypt|extract|filter|find|flatten|format|generat|identif|implement|insert|iterat|join"
    r"|list|merg|multipl|output|pars|print|process|read|remov|renam|replac|return|revers|search|shuffl|simulat|sort"
    r"|split|sum|swap|tak|test|validat|verif)"
)
_MODELS: Final = r"(?:model|represent|describ|express|show|predict|relat|give)\w{0,3}"
_PROGRAM: Final = re.compile(
    # "a recursive Python function", "a button in HTML", "a Java class", "a class in Java"
    rf"{_WORDS}(?:(?:{_LANGUAGES})(?!\w| (?:{_TEXTS})s?\b)|(?:{_WORDLIKE}) (?:[\w-]+ ){{0,2}}?(?:{_PARTS})\b"
    rf"|(?:{_PARTS})\b(?: [\w-]+){{0,4}}? (?:in|using|with|en|em) (?:{_WORDLIKE})(?![\w-])"
    # a function with its name, or with what it does; "a program that prints ..."
    r"|(?:function|method|class) `?\w{4,60}\(|function (?:called|named) "
    rf"|function (?:to|that|which) (?!{_MODELS} )|(?:{_PARTS}) (?:to|that|which|for) {_TASKS}"
    r"|(?:(?:computer|console) program|source code|code snippet)\b)"
)
_A_PROGRAM: Final = re.compile(rf" (?:an?|some|the){_PROGRAM.pattern}")
_ANY_PROGRAM: Final = re.compile(rf"{_FEW_WORDS}(?:{_PROGRAMS})\b")
_EDITED: Final = re.compile(rf"{_WORDS}(?:function|code|program|script|snippet|query|class)\b")
_CODE: Final = re.compile(r"```|\bdef \w+\(|</\w+>|\bfunction \w*\(|=> |\bimport \w|\bselect\b[^\n]+\bfrom\b")
_OTHERWISE: Final = re.compile(
    r"self-contained (?:python )?(?:code|script|program)|your[ _](?:python[ _])?code[ _](?:here|should)\b"
    # "请编写一个求和的函数", and not its five rules
    r"|(?:编写|创建|实现|生成|构建|写一?[个段])[\w ]{0,30}(?:函数|程序|代码|(?<!广告)脚本|sql ?查询)(?![\w ]{0,4}的)"
    r"|(?:プログラム|コード|スクリプト)を(?:書|作成|実装)|関数を(?:実装|作成)|python\w{0,40}関数を書"
    r"|(?:함수|프로그램|코드|스크립트)[를을] ?(?:작성|구현|만들)"
)
# A function whose text is all that there is of it.
_STUB: Final = re.compile(r"^def [^\n]+:[ \t]*\n\s{0,40}r?(?:\"\"\"|''')", re.MULTILINE)
_ENDS_OF_STUBS: Final = ('"""', "'''")


def requests_program(question: str) -> bool:
    """Return whether a question asks for a program; "What does this code print?" and "write the equation" do not."""
    return any(_requests_program(text.lower()) for text in (question[:_MOST_SEARCHED], question[-_MOST_SEARCHED:]))


def _requests_program(text: str) -> bool:
    if text.rstrip("` \n").endswith(_ENDS_OF_STUBS) and _STUB.search(text):
        return True
    for verb in _VERB.finditer(text):
        before = text[max(verb.start() - _MOST_BEFORE, 0) : verb.start()]
        if verb.group() in _TELLS and _BEGINS.search(before):
            return False
        if _asks(verb, before):
            return True
    return _OTHERWISE.search(text) is not None


def _asks(verb: re.Match[str], before: str) -> bool:
    """Return whether a verb of a text in lower case asks for a program."""
    word, text, end = verb.group(), verb.string, verb.end()
    if word in _WANTS:
        return bool(_I.search(before) and _A_PROGRAM.match(text, end))
    if word not in _EDITS and _IN_LANGUAGE.search(before):
        return True
    if not _BEGINS.search(before):
        return False
    if word not in _EDITS and _PROGRAM.match(text, end):
        return True
    if word in _WRITES and _ANY_PROGRAM.match(text, end):
        return True
    is_edit = (word in _EDITS or word == "implement") and _EDITED.match(text, end) is not None
    return is_edit and (_CODE.search(text) is not None or has_code_line(text))
