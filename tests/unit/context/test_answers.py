"""The answer of a reply without a tagged answer."""

from __future__ import annotations

import pytest

from reasond_server.context.answers import (
    cut_sentence,
    extract_answer,
    find_answer,
    find_marked_answer,
    is_placeholder,
    split_answer,
)
from reasond_server.context.sections import FENCE_RULE
from reasond_server.context.vote_forms import normalize_answer
from tests.reports.rows import Row, load_rows

LONG = "Long. " * 80 + "\n"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So \\boxed{1} or \\boxed{\\frac{1}{2}} then.", "\\frac{1}{2}"),
        ("\\boxed{unclosed", "\\boxed{unclosed"),
        ("Long. " * 80 + "The answer is 42.\nIt is.", "42"),
        ("Final answer: Rome", "Rome"),
        ("The final answer is 18.", "18"),
        ("**Final Answer**\n18", "18"),
        ("Work.\n\n**Final Answer:**\n\n$$\n18\n$$\n", "18"),
        ("Work.\n### Final Answer\n---\n**18**", "18"),
        ("Work.\n\n**Answer: 18**", "18"),
        ("Work.\n**Answer**: -18", "-18"),
        ("Work.\n## Answer\n18 km\nas told", "18 km"),
        ("6 * 3 = 18\n#### 18", "18"),
        (LONG + "#### 18\n", "18"),
        ("#### Step 1\n6 * 3 = 18\n" + LONG + "A: 18", "18"),
        ("Which?\nA: 18\nB: 20\nThe answer is B: 20", "B: 20"),
        ("Q: 6 * 3?\nA: 18", "18"),
        ("The answer is `a*b`", "a*b"),
        ("Answer: 2**3", "2**3"),
        ("The answer is 18.\n\n**Final Answer**", "18"),
        (" Rome ", "Rome"),
        (LONG + "Ann is 36.\n&lt;answer>36&lt;/answer>", "36"),
        (LONG + "Ann is 36.\n&lt;answer&gt;36&lt;/answer&gt;", "36"),
        (LONG + "&lt;ANSWER> 36 &lt;/answer>\n", "36"),
        (LONG + "Use &lt;answer&gt;text&lt;/answer&gt; for it, and close the page.", ""),
        ("In XML it is &lt;result&gt;x&lt;/result&gt; as a rule. " + LONG, ""),
        ("&lt;answer&gt;x&lt;/answer&gt; is a tag. " + LONG, ""),
        (LONG + "&lt;answer>36&lt;answer>", "36"),
        (LONG + "&lt;answer>36", "36"),
        ("&lt;answer&gt;36&lt;/answer&gt;", "36"),
        (LONG + "It goes into &lt;answer>your answer&lt;/answer>.", ""),
        (LONG + "&lt;answer>739164&lt;/answer>", ""),
        ("14 * 9 = 126\n\nTherefore, 17 rolls are left.", "17"),
        ("14 * 9 = 126\nSo there are $1,260.50 left, or so.", "$1,260.50"),
        (LONG + "\nSo 126 - 78 - 31 = 17.", "17"),
        (LONG + "Therefore, she finishes it in **3 weeks**.", "3 weeks"),
        (LONG + "\n**42**", "42"),
        (LONG + "Thus it is 25% of it.", "25%"),
        (
            'Therefore, the answer to the question "How deep is it? " is:\n4,731 cm\nThis answer is directly said.',
            "4,731 cm",
        ),
        (LONG + "The answer to your question is 42.", "42"),
        ("The answer is 42.\nThat answer is exact.", "42"),
        ("It was 41, then 42. This answer is 42.", "42"),
        ("The result is 4.\nTherefore, the answer is correct.", "correct"),
        ("The answer is Paris.\nThe final answer is what the question asks for.", "Paris"),
        ("The answer is Paris.\nMy answer is directly taken from the text.", "Paris"),
        ("Where is it?\nThe answer is given in the notes.", "given in the notes"),
        ("Die Antwort lautet 42.\nDiese Antwort ist exakt.", "42"),
        ("La r\u00e9ponse est 42.\nCette r\u00e9ponse est exacte.", "42"),
        ("Die Antwort ist 42.\nDie Antwort ist in der Form einer Zahl.", "42"),
        (
            "The depth is 4,731.\nThe answer should be in the format requested, which is\nSo the depth is 4,731.",
            "4,731",
        ),
        (LONG + "The answer is of the form x + 1.\nFinal answer: 2 + 1", "2 + 1"),
        (LONG + "4c = 100, c = 25\nThe calculations are correct, so the number of cars is indeed 25.", "25"),
        (LONG + "4c = 100, c = 25\nWe checked it; hence there are 25 cars.", "25"),
        (LONG + "4c = 100, c = 25\nThe sum is 126. Therefore, the number of cars is 25.", "25"),
        (LONG + "4c = 100, c = 25\nLe calcul est juste, donc il y a 25 voitures.", "25"),
        (LONG + "They were late, so only 12 came.", ""),
        (LONG + "c: 25\nThe sum holds, so that 25 cars can stand there.", ""),
        (LONG + "Therefore, Mira has \\(\\frac{172}{7}\\) books.", "172/7"),
        (LONG + "Therefore, the probability is $\\frac{1}{2}$.", "1/2"),
        (LONG + "Therefore, the price is $12 and not $13.", ""),
        (LONG + "So it is \\(\\sqrt{2}\\).", ""),
        (LONG + "So it is \\(2x + 3\\).", ""),
        (LONG + "So the width is \\(w = 5\\) and the length \\(l = 8\\).", ""),
        (LONG + "So the area = length * width = 40 square metres.", "40"),
        (LONG + "Thus \\(l = 2w = 16\\).", "16"),
        (LONG + "So 12 + 13 = 25, and 25 + 3 = 28.", "28"),
        (LONG + "Therefore, the ratio is 3:4.", "3:4"),
        (LONG + "So she arrives at 10:30.", "10:30"),
        (LONG + "So she ate 3/4 of it.", "3/4"),
        ("- Add 6 to the result:\n  \\[\n  1 + 2 = 3\n  \\]\n\nTherefore, Mira has 32 books.", "32"),
        ("Simplify the result:\n\\[\n3 + 4 = 7\n\\]\nSo she has 8 pens.", "8"),
        ("Runde das Ergebnis:\n3,6 = 4\n\nDaher sind es 4 Kisten.", "4"),
        (LONG + "Simplify the result: 2/3", "2/3"),
        ("The value of the answer is 42.\n\nIt is the product.", "42"),
        (LONG + "We get the result:\n\\[\n42\n\\]\n", "42"),
        ("Here is the answer: 42\n\nThe reason is that 6 * 7 is so.", "42"),
        (LONG + "So 5 or 6 weeks.", ""),
        (LONG + "**Step 5:** Add 7 to them.", ""),
        (LONG + "So it was in 10-15 days.", ""),
        (LONG + "There are 17 rolls in the first box", ""),
        (LONG + "So version 1.2.3 it is.", ""),
        (LONG + "Some 17 people came.", ""),
        ("So there are 17." + " Well, well." * 40, ""),
        ("No end. " * 80, ""),
    ],
)
def test_the_answer_of_a_reply_without_a_tag(text: str, answer: str) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize("text", ["\\boxed{" * 5000, "$" * 19_000, "(" * 19_000, "answer is " * 1900, "1," * 9000])
def test_hostile_answers_have_a_form(text: str) -> None:
    assert isinstance(extract_answer(text), str)


@pytest.mark.parametrize("row", [row for row in load_rows("extract") if "untagged" in row.kind], ids=lambda row: row.id)
def test_the_untagged_replies_of_the_corpus_are_read(row: Row) -> None:
    assert normalize_answer(extract_answer(row.input["text"])) == normalize_answer(row.right["answer"])


PROSE = "The moon moves around the earth, and both move around the sun. " * 8


@pytest.mark.parametrize(
    "text",
    [
        PROSE,
        f"{PROSE}\nRemember, **practice** makes perfect.",
        f"{PROSE}\n- item 5\n- item 7",
        f"{PROSE}\nThe answer is not 42.",
        f"{PROSE}\nDie Antwort ist nicht 42.",
        f"{PROSE}\nHope this helps!",
        "```python\nprint(5)\n```\nSo it prints 5.",
        '{"n": 42}\n\nReferences: [1]',
        f"Dear Sir,\n{PROSE}\nYours, **John**",
        'As the song says, "the answer is blowing in the wind, my friend, and nobody that I know has ever heard where '
        'it would go if it could only be caught by somebody who listens to it for long enough," she said. ' + PROSE,
    ],
)
def test_a_text_that_concludes_nothing_has_no_answer_apart_from_itself(text: str) -> None:
    assert find_answer(text) == ""
    assert split_answer(text) == ("", text.strip())


def test_an_answer_of_several_lines_is_whole() -> None:
    assert find_answer("Work.\n\n**Final Answer:**\n\n1. Buy milk\n2. Cook it") == "1. Buy milk\n2. Cook it"
    assert find_answer("The answer is:\n- a\n- b") == "- a\n- b"
    assert find_answer("Answer:\n```python\na = 1\nb = 2\n```") == "a = 1\nb = 2"


LOOP = "def find(n):\n    result = []\n    # Go through them.\n    for k in range(n):\n        result.append(k)\n"


@pytest.mark.parametrize(
    "text",
    [
        f"```python\n{LOOP}    return result\n```",
        f"Here is a function:\n\n```\n{LOOP}    return result\n```\n\nIt goes through all numbers.",
        f"1. First:\n   ```python\n   {LOOP}    return result\n   ```\nDone.",
        f"~~~py\n{LOOP}    return result\n~~~",
        f"```python\n{LOOP}    return result",
        f"{LOOP}    return result",
        f"{LOOP}\n    answer = result\n    return answer\n\nIt goes through all numbers.",
        "```python\nresult = find(3)\nprint(result)\n```",
        "```python\ndef f(n):\n    # The answer is the sum of both\n    return n + n\n```",
        "```js\nconst f = (n) => {\n  let result = [];\n  return result;\n};\n```",
        "function f(n) {\n  result = n + 1\n  return result\n}",
        "```java\npublic class Sum {\n  int result = 0;\n}\n```",
        "```c\n#include <x.h>\nint answer = 3;\n```",
        "```sql\nSELECT a AS answer FROM b;\n```",
    ],
)
def test_a_program_announces_nothing(text: str) -> None:
    """As a real model writes them: the lines behind `result = []` were its answer."""
    assert find_marked_answer(text) == ""
    assert split_answer(text) == ("", text)


def test_a_fence_without_a_program_may_announce() -> None:
    assert find_answer("```\nAnswer: 42\n```") == "42"
    assert find_answer(f"```python\n{LOOP}    return result\n```\n\nThe answer is 42.") == "42"
    assert find_answer("```\nresult = 42\n```") == "42"


def test_the_prose_around_an_answer_is_its_reasoning() -> None:
    assert split_answer("6 times 7.\nThe answer is 42.") == ("6 times 7.\nThe answer is 42.", "42")
    assert split_answer(" 42 ") == ("", "42")
    assert split_answer("the final answer") == ("", "")
    assert split_answer("<answer>the final answer</answer>") == ("", "")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("42. This is because", "42"),
        ("C. Note that A is wrong", "C"),
        ("B. Paris", "B. Paris"),
        ("C. Darwin", "C. Darwin"),
        ("Dr. No", "Dr. No"),
        ("J. K. Rowling. She wrote it.", "J. K. Rowling"),
        ("Washington, D.C.", "Washington, D.C."),
        ("3.5 km. It is far", "3.5 km"),
        ("5! It is big", "5!"),
        ("Rome.", "Rome"),
        ("well...", "well..."),
    ],
)
def test_the_first_sentence_of_a_line(line: str, sentence: str) -> None:
    assert cut_sentence(line) == sentence


def test_an_answer_that_repeats_the_rule_of_the_prompt_is_none() -> None:
    rule = FENCE_RULE.strip()
    assert is_placeholder(rule)
    assert is_placeholder(f"1. {rule.partition('. ')[0]}.")
    assert split_answer(f"{rule} I do not know.") == ("", "")
    assert not is_placeholder("A section ends only where the next one begins.")
