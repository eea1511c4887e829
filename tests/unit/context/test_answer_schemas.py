from __future__ import annotations

import pytest

from reasond_server.context.answer_schemas import AnswerSchema, write_schema_rule
from reasond_server.tools.schema_steps import SchemaUnusableError

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


DRESSED = [
    '```json\r\n{"n": 7}\r\n```',
    'Here is the JSON:\n```json\n{"n": 7}\n```',
    '```json\n{"n": 7}\n```\nSee [docs].',
    '~~~\n{"n": 7}\n~~~',
    '{"n": 7}\n\nReferences: [1]',
    'The answer is {"n": 7}',
    '{"n": 7} {"n": 7}',
    '\ufeff{"n": 7}',
    '{"n": 7,}',
    "{'n': 7}",
    '{"n": 7} // done',
    '{\n  "n": 7 // the number\n}',
    '{\n  "n": 7, /* the number */\n}',
    '{"answer": {"n": 7}}',
    '{"result": {"n": 7}}',
    '[{"n": 7}]',
    '"{\\"n\\": 7}"',
    'Sure! {"n": 7} I hope that this helps.',
    '```json\n{"n": 7,}\n```',
    '```\n{"n": 7}',
]


@pytest.mark.parametrize(
    "answer", ['{"n": 7}', ' {"n":7}\n', '```json\n{"n": 7}\n```', '```\n{\n "n": 7\n}\n```\n', *DRESSED]
)
def test_an_answer_is_read_whatever_surrounds_the_value(answer: str) -> None:
    assert AnswerSchema(SCHEMA).check(answer).json == '{"n":7}'


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("", "it is not JSON, or something stands around the JSON"),
        ('{"n": 7} {"n": 8}', "it holds several JSON values that satisfy it: write the one that is the answer"),
        ('{"n": 7', "it is not JSON, or something stands around the JSON"),
        ('{"n": NaN}', "n must satisfy type 'integer', got None"),
        ("[" * 100_000, "it is not JSON, or something stands around the JSON"),
        ('{"n": "7"}', "n must satisfy type 'integer', got '7'"),
        ("{}", "the value must have 'n'"),
        ('{"n": 7, "m": 8}', "the value must not have 'm'; known are 'n'"),
    ],
)
def test_what_is_wrong_with_an_answer_is_named(answer: str, problem: str) -> None:
    checked = AnswerSchema(SCHEMA).check(answer)
    assert (checked.json, checked.problems) == ("", (problem,)) or (checked.json, checked.problems) == ("", [problem])


def test_texts_of_every_script_stay_as_they_are() -> None:
    assert AnswerSchema({"type": "string"}).check('"\\u00e9t\u00e9 \U0001d538"').json == '"\u00e9t\u00e9 \U0001d538"'


def test_a_schema_that_nothing_can_be_checked_by_is_refused_at_once() -> None:
    with pytest.raises(SchemaUnusableError, match="without end"):
        AnswerSchema({"$ref": "#"})


def test_the_model_is_told_the_schema() -> None:
    assert '{"type":"integer"}' in write_schema_rule({"type": "integer"})


def test_python_words_and_multiples_with_a_point_are_read() -> None:
    flags = AnswerSchema(
        {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": ["null", "number"]}}}
    )
    assert flags.check("{'a': True, 'b': None}").json == '{"a":true,"b":null}'
    assert flags.check('{"a": False, "b": NaN}').json == '{"a":false,"b":null}'
    assert AnswerSchema({"multipleOf": 0.01}).check("0.07").json == "0.07"
    assert AnswerSchema({"multipleOf": 0.01}).check("0.075").json == ""


@pytest.mark.parametrize("unit", ["{", "[{", '"', "'", "/*", "//", "#", ",", "```\n", '{"a": ', "\\", "True "])
def test_hostile_answers_are_read_in_time(unit: str) -> None:
    assert AnswerSchema(SCHEMA).check(unit * (100_000 // len(unit))).json == ""
    assert AnswerSchema(SCHEMA).check(unit * (40_000 // len(unit))).json == ""
