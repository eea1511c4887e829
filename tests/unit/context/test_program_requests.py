"""Questions that ask for a program are asked for all of it, and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.context.answers import is_placeholder
from reasond_server.context.final_replies import PROGRAM_LAST, STEPS_FIRST
from reasond_server.context.program_requests import requests_program
from reasond_server.strategies.best_of_n import BestOfN
from reasond_server.strategies.chain_of_thought import ChainOfThought
from reasond_server.strategies.chain_of_verification import ChainOfVerification
from reasond_server.strategies.plan_and_solve import PlanAndSolve
from reasond_server.strategies.react import React
from reasond_server.strategies.self_aggregation import SelfAggregation
from reasond_server.strategies.self_consistency import SelfConsistency
from reasond_server.strategies.self_refine import SelfRefine
from reasond_server.strategies.strategy import Outcome, ReasoningStrategy, RunContext
from reasond_server.strategies.tree_of_thought import TreeOfThought
from reasond_server.testing import FunctionModel
from reasond_server.types import Task

if TYPE_CHECKING:
    from reasond_server.llm.model import ChatRequest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
PROGRAM = "```python\ndef f(x):\n    return x + 1\n```"


@pytest.mark.parametrize(
    "question",
    [
        "Write a Python function that adds one.",
        "Write a function to find the largest of three numbers.",
        "Write a function that returns the first vowel of a text.",
        "You are a programmer, and here is your task: Write a function to sort a list. assert f([2, 1]) == [1, 2]",
        "Write a function merge(a, b) that merges two lists.",
        "Write a function called `merge` for two lists.",
        "Please implement the method `push(x)` of a stack.",
        "Could you write me a small bash script for it?",
        "can you please make a C program that prints primes",
        "I need a bash script that backs up my home folder.",
        "I'd like a Python class for it.",
        "Give me a Java class for a bank account.",
        "Generate a SQL query that returns the five best customers.",
        "Create a button in HTML.",
        "Create a recursive JavaScript function for it.",
        "Create a function that takes a date and returns its weekday.",
        "Design a class in Java for a queue.",
        "Implement a queue with two stacks in Python.",
        "Solve this in Python: print the n-th prime.",
        "Using Rust, write it without recursion.",
        "Use Python to build a search tree.",
        "Given a list of numbers, write a function to drop those below x.",
        "You will be given a question and will write a correct Python program that passes all tests.",
        "Please provide a self-contained Python script that solves this problem:\n```\nadd two numbers\n```",
        "# Task\nProvide the source code for it.",
        "class Solution:\n    def add(self, a, b):\n        # YOUR CODE HERE",
        "write SQL that lists the users",
        "Write C++ code for this.",
        'def add(a, b):\n    """Return the sum.\n\n    >>> add(1, 2)\n    3\n    """\n',
        "Complete the following function.\ndef add(a, b):\n    # sums up",
        'def add(a, b):\n    """Return the sum."""\n\nComplete the function.',
        "Fix the bug in this code:\n```\nreturn a - b\n```",
        "Convert the following program to Java.\nimport sys\nprint(sys.argv)",
        "Rewrite this query without a join:\nSELECT a FROM b JOIN c",
        "Schreibe eine Python-Funktion, die addiert.",
        "Schreib ein kleines Programm, das addiert.",
        "Écris une fonction Python qui additionne.",
        "Escribe un programa que sume.",
        "Escreva uma função em Python que some.",
        "Scrivi una funzione in Python che somma.",
        "Napisz program, który dodaje.",
        "Напиши программу, которая складывает.",
        "请编写一个求和的函数",
        "用Python写一个求和的函数",
        "创建一个脚本来计算利息。",
        "足し算をするプログラムを書いてください",
        "Pythonで足し算の関数を書いてください",
        "파이썬으로 더하는 함수를 작성하세요.",
        "Here is a list. Write a function in Python that sorts it.",
        "Your task is to write a short Go program.",
        "Act as an expert and write a C++ program for it.",
        "x" * 9000 + "\nWrite a Python function that parses this.",
        "Write a Python function that parses this:\n" + "x" * 9000,
    ],
)
def test_requests_for_programs_are_known(question: str) -> None:
    assert requests_program(question)


@pytest.mark.parametrize(
    "question",
    [
        "A coder writes 40 lines of code an hour. How many lines does she write in 3 hours?",
        "Write the equation of the line through both points.",
        "Write the function f(x) = (x + 1)(x - 2) in standard form.",
        "The program was written in 1990. How old is it?",
        "Who wrote the program Eliza?",
        "A class has 30 pupils. Each writes 3 essays. How many is that?",
        "Write 0.75 as a fraction.",
        "Mia can write a program in 3 hours and Ben in 5. How long do both need?",
        "Mia must write 12 pages of code in 4 days. How many a day?",
        "Write down how many lines of code she wrote: 3 a day for 5 days.",
        "Write a summary of the training program.",
        "Write a short story about a program that dreams.",
        "Which of these did Ada write, the program or the poem?",
        "Write a function that models the cost of x hours.",
        "Write the function to represent the height after t seconds.",
        "Complete the function table: x = 1, y = 3; x = 2, y = ?",
        "Convert the function y = x^2 - 4x to vertex form.",
        "Rewrite the statement below:\n```\nWe are sorry.\n```",
        "Create a program of events for a charity.",
        "Design a training program for a marathon in 12 weeks.",
        "Develop a program of exercises for a knee.",
        "Write the code of conduct of a club.",
        "Write a script for a film about bees.",
        "I need the code of the door; its digits add up to 12. What is it?",
        "I like JavaScript more than Java. Which one shall I learn?",
        "I need Python for my work. Which book is good?",
        "We need a Python developer: write the advertisement.",
        "Write a Python tutorial for beginners.",
        "Create a JavaScript quiz of ten questions.",
        "Write the temperature in C.",
        "Generate a list of ten books on Python.",
        "Give me a swift reply to this letter.",
        "Explain what the following Python program does.",
        "Summarize this text:\nWrite a Python function that adds one. Then test it.",
        "Classify the request: Write a Python function that adds one.",
        "Please act as a judge and evaluate the answer.\nQuestion: Write a function to add.\nAnswer: 3",
        "You are given a problem and a program. Analyze both and explain it.\nWrite a program that adds.",
        "Find an input for which this Python function returns 7.",
        "Which of these Python statements raises an error?",
        "def f(x):\n    return x + 1\n\nWhat is f(3)?",
        "Solve the following problem in Spanish: 3 + 4",
        "写出一次函数的表达式",
        "列出编写程序的五个规则",
        "次の関数のグラフを書きなさい",
        "Schreibe die Funktion in Scheitelform.",
        "Écris une fonction affine qui passe par les deux points.",
        "Escribe una función que modele el coste.",
        "Напиши функцию, обратную данной.",
        "写出二次函数的顶点坐标",
        "次の関数を書きなさい",
        "What does this Python code print?",
        "Mia writes a program in 3 hours and Ben in 5. How long do both need?",
        "",
    ],
)
def test_other_questions_are_asked_for_steps(question: str) -> None:
    assert not requests_program(question)


def test_of_the_tasks_that_were_measured_only_programs_ask_for_one() -> None:
    for name in ("word_problems", "made_problems", "choices", "extraction", "programs"):
        lines = (BENCHMARKS / f"{name}.jsonl").read_text().splitlines()
        asked = {requests_program(json.loads(line)["question"]) for line in lines}
        assert asked == {name == "programs"}


@pytest.mark.parametrize(
    ("strategy", "config"),
    [
        (ChainOfThought(), {}),
        (PlanAndSolve(), {}),
        (SelfConsistency(), {"samples": 3}),
        (BestOfN(), {"samples": 2}),
        (SelfAggregation(), {"chains": 2, "group": 2, "rounds": 2}),
        (SelfRefine(), {"max_rounds": 1}),
        (ChainOfVerification(), {}),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
async def test_every_strategy_asks_for_the_program_and_gives_it(
    strategy: ReasoningStrategy[Any], config: dict[str, object]
) -> None:
    asked: list[str] = []

    def reply(request: ChatRequest) -> str:
        asked.append(request.messages[-1].content)
        return f"It adds one.\n<answer>\n{PROGRAM}\n</answer>"

    context = RunContext(
        config=strategy.config_type.model_validate(config),
        model=FunctionModel(reply),
        new_nonce=lambda: "qzkvhwbnmcjtrxplaoysdgeufiqh",
    )
    task = Task(query="Write a Python function f(x) that adds one.")
    outcomes = [event async for event in strategy.run(task, context) if isinstance(event, Outcome)]
    assert outcomes[0].answer == PROGRAM
    assert not any(STEPS_FIRST in text for text in asked)
    assert any(text.endswith(PROGRAM_LAST) for text in asked)


@pytest.mark.parametrize(
    ("strategy", "config"),
    [
        (ChainOfThought(), {}),
        (SelfConsistency(), {"samples": 3}),
        (SelfRefine(), {"max_rounds": 1}),
        (React(), {}),
        (TreeOfThought(), {"max_depth": 1}),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
@pytest.mark.parametrize("program", [PROGRAM, PROGRAM[len("```python\n") : -len("\n```")]])
@pytest.mark.parametrize(
    "said", ["After all tokens, the result is the only element left.", "So the answer for the example is 20.", "Done."]
)
async def test_what_is_said_of_results_does_not_hide_a_program_without_tags(
    strategy: ReasoningStrategy[Any], config: dict[str, object], said: str, program: str
) -> None:
    """As a real model ends its replies; what it says of them was the answer."""
    context = RunContext(
        config=strategy.config_type.model_validate(config),
        model=FunctionModel(lambda _: f"This adds one:\n\n{program}\n\n{said}"),
        new_nonce=lambda: "qzkvhwbnmcjtrxplaoysdgeufiqh",
    )
    task = Task(query="Write a Python function f(x) that adds one.")
    outcomes = [event async for event in strategy.run(task, context) if isinstance(event, Outcome)]
    assert program in outcomes[0].answer


def test_the_example_program_is_no_answer() -> None:
    example = PROGRAM_LAST.partition("<answer>")[2].partition("</answer>")[0].strip()
    assert is_placeholder(example)
    assert is_placeholder(example.partition("\n")[2].removesuffix("```"))
    assert is_placeholder(example.replace("birds", "words"))
    program = "def count(seconds):\n" + "    # Counts.\n" * 20 + "    return seconds\n"
    assert not is_placeholder(f"```python\n{program}\nprint(count(739164))\n```")
    assert not is_placeholder(example.removesuffix("```") + f"\n\n{program}```")
    assert is_placeholder("The answer is 739164 " + "metres " * 40)
