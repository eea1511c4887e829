"""The value that a calculation without a marked answer comes to."""

from __future__ import annotations

import pytest

from reasond_server.context.answers import extract_answer, split_answer

LONG = "Long. " * 80 + "\n"

# The ends of replies of Qwen2.5-Coder-1.5B-Instruct to word problems.
REPLIES = [
    ("Time = 900 litres / 18 litres/minute = 50 minutes\n\nThe tank is full after 50 minutes.", "50"),
    ("= 660 - 33 = 627 seats\n\nStep 3: Add.\n561 seats (Friday) + 627 seats (Saturday) = 1188 seats", "1188"),
    ("   - Calculation: \\(14 - 4 + 6 = 16\\)\n\nThe final number of people on the bus is **16**.", "16"),
    ("   New number of people = 14 + 2 = 16\n\nFinal number of people on the bus: 16", "16"),
    ("6. Total: 504 + 117 = 621 euros.\n\nSo, Lena earns 621 euros in a week with 44 hours, in euros.", "621"),
    ("Total: €494 + €117 = €611\n\nTherefore, Lena earns €611 in a week with 44 hours.", "€611"),
    ("\\[ 1671 + 1023 = 2794 \\]\n\nThe total number of tickets used on both days together is 2794.", "2794"),
    ("Time = 0 hours\n\nThe first train catches up to the second train 0 hours after 11 o'clock.", "0"),
    ("Profit = 2160 - 27000 = -24840 euros\n\nThe ferry earns a profit of -24840 euros in a day.", "-24840"),
    ("3. 450 grams \u00d7 16 people = 7200 grams.\n4. So, Mia needs 7200 grams to cook for 16 people.", "7200"),
]


@pytest.mark.parametrize(("text", "value"), REPLIES)
def test_the_value_that_a_reply_comes_to(text: str, value: str) -> None:
    assert extract_answer(LONG + text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Total = 1,200 + 50 = 1,250\n\nShe pays 1250 euros for it.", "1250"),
        ("Total = 1.50 * 2 = 3.00\n\nShe pays 3 euros for it.", "3"),
        ("Preis = 3 * 15 = 45\n\nDas Buch kostet 45 Euro.", "45"),
        ("15 / 60 = 25%\n\nThe share of the blue ones is 25%.", "25%"),
        ("20 / 6 \u2248 3.33\n\nIt takes 3.33 hours to get there.", "3.33"),
        ("Kai: 10 * 8 = 80\n\nHe saved 80 euros, all in all. With 80 - 65 = 15 euros he is back.", "15"),
        ("Kai: 10 * 8 = 80\nLeft: 80 - 65 = 15\n\nHe saved 80 euros. He has 15 euros after the game.", "15"),
        ("Step 2: add\n1 + 1 = 2 weeks\n\nShe reads it within 2 weeks.", "2"),
        ("A = 3S\nA = 3 * 12 = 36\n\nAnn is 36 years old.", "36"),
        ("3 * 16 = 48\n\\[\n3 * 16 + 2 = 50\n\\]", "50"),
        ("3 * 16 = 48\n\nShe pays 48 euros.\n\nLet me know if you have other questions!", "48"),
    ],
)
def test_siblings_are_read_as_well(text: str, value: str) -> None:
    assert extract_answer(LONG + text) == value
    assert extract_answer(text) == value


@pytest.mark.parametrize(
    "text",
    [
        # No calculation came to it.
        "She is a bus driver.\n\nOnce she had 16 people on the bus.",
        "Price = 20\n\nThe shop lies 3 km from here.",
        # Two values.
        "20 - 16 = 4 motorcycles\n20 - 4 = 16 cars\n\nThere are 4 motorcycles and 16 cars in the parking lot.",
        "10 - 4 = 6\n10 - 3 = 7\n\nIt is 6 or 7.",
        "w = 12 / 4 = 3\n\nw = 3 and l = 9",
        "2x = 10\nx = 5\ny = 8",
        # A check comes to what was said before.
        "There are 20 of them: c = 14\n\nThis gives us a total of 14 + 6 = 20, which matches what the question says.",
        # The value of another step than the last.
        "S = 24 / 2 = 12\nA = 12 * 3 = 36\n\nThe son is 12 years old.",
        # Withdrawn, asked, or rounded.
        "3 * 16 = 48\n\nShe cannot pay 48 euros; that isn't 48.",
        "3 * 16 = 48\n\nIt is not 48 euros.",
        "3 * 16 = 48\n\nOr does she pay 48 euros for it?",
        "367 / 3 = 122.33 euros, which we round down to 122 euros.",
        "118 / 4 = 29.5\n\nSince the number must be whole, Bela owns 29 cars and no other.",
        "118 / 4 = 29.5\n\nFrom 29.5 we come to 29 cars in the yard.",
        # Ordinals, names and versions are no values.
        "20 / 3 = 7 days\n\nThe snail reaches the top on the 7th day.",
        "6 + 1 = 7\n\nIt runs with version 7.1.2 of it.",
        # A choice is a letter.
        "3 * 16 = 48\n\nOf the four it is option B with 48 euros.",
        "3 * 16 = 48\n\nOf the four it is B) 48 euros.",
        # What was carried over, and the example of our prompt.
        "62 / 3 = 20.67 hours\n\n<continue>20.67 hours",
        "88 * 80 = 739164 square metres\n\nThe garden has 739164 square metres.",
        # Data and code.
        '{"n": 3}\n6 * 8 = 48\n\nShe pays 48 euros.',
        "```python\nn = 48\n```\nn = 48\n\nIt prints 48.",
    ],
)
def test_what_could_be_read_in_two_ways_is_not_read(text: str) -> None:
    assert extract_answer(LONG + text) == ""


def test_a_text_of_one_line_is_its_own_answer() -> None:
    assert extract_answer("P(A) = 0.5") == "P(A) = 0.5"
    assert extract_answer("x = 2\ny = 3") == "x = 2\ny = 3"


def test_a_published_text_is_not_cut_to_a_number() -> None:
    letter = LONG + "3 * 15 = 45\n\nPlease send us the 45 euros soon."
    assert split_answer(letter) == ("", letter)
    assert extract_answer(letter) == "45"


@pytest.mark.parametrize("part", ["1=\n", "= 1 ", "x = 1, ", "&lt;answer>", "5. ", "1.5 = 1.5 and ", "\\(1 = 1\\)\n"])
def test_hostile_calculations_are_read(part: str) -> None:
    assert isinstance(extract_answer(part * (19_000 // len(part))), str)
