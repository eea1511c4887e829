"""What strategies are worth, as the console shows the record of `reasond eval`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from reasond_server.testing import FunctionModel, running_server
from tests.console.showing import examine, watched_page
from tests.forking import run_forked

if TYPE_CHECKING:
    from playwright.async_api import Browser

    from reasond_server.llm.model import ChatRequest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

QUESTIONS = Path(__file__).resolve().parents[2] / "examples" / "questions.jsonl"
ROWS = [json.loads(line) for line in QUESTIONS.read_text("utf-8").splitlines()]


def answer(request: ChatRequest) -> str:
    """Give the right number, but be wrong more often, and write less, where no steps are asked for."""
    prompt = "".join(each.content for each in request.messages)
    place, right = next((at, row["answer"]) for at, row in enumerate(ROWS) if row["question"] in prompt)
    is_wrong = place % (7 if "step" in prompt else 3) == 0
    return "<answer>-1</answer>" if is_wrong else f"{'Carefully. ' * 40}<answer>{right}</answer>"


async def test_a_record_of_an_evaluation_is_a_picture_of_gain_over_cost(browser: Browser, tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_bytes(QUESTIONS.read_bytes())
    ways = ("direct", "chain_of_thought", "self_consistency:samples=3", "self_refine")
    options = [word for way in ways for word in ("--way", way)]
    async with running_server(model=FunctionModel(answer, name="scripted")) as server:
        environ = {"REASOND_TARGET": server.grpc, "REASOND_TOKEN": server.token}
        done = await asyncio.to_thread(run_forked, "eval", str(questions), *options, environ=environ, folder=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        async with watched_page(browser, server) as page:
            await page.get_by_role("link", name="Eval").click()
            record = page.get_by_label("Record of reasond eval")
            await record.set_input_files(questions)
            await expect(page.get_by_role("alert").filter(has_text="holds no trials")).to_be_visible()
            await record.set_input_files(tmp_path / "questions.jsonl.trials.jsonl")
            for row in ("direct", "self_consistency:samples=3"):
                told = next(line for line in done.stderr.splitlines() if f" {row} " in f" {line} " and "%" in line)
                right = next(word for word in told.split() if word.isdecimal())
                await expect(page.get_by_role("row", name=row)).to_contain_text(f"{right} of 24")
            await examine(page, "eval", height=900)
            # The picture follows the window, so that its letters stay as large.
            await page.set_viewport_size({"width": 390, "height": 800})
            await expect(page.locator("svg.worth")).to_have_attribute("width", "350")
            wrong = page.get_by_role("region", name="with their steps").get_by_role("link").first
            await wrong.click()
            await expect(page.get_by_role("listbox", name="Steps")).to_be_visible()
