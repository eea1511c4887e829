"""Opens screens of the console and checks them: with axe, as a screen reader hears them, and at both widths.

REASOND_PICTURES=FOLDER keeps the pictures that docs/guides/console.md shows.
"""

from __future__ import annotations

import asyncio
import os
from base64 import b64decode
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from playwright.async_api import expect

from reasond_server.access.token_keys import SigningKey
from tests.browsing import LIMIT_MS, new_page
from tests.console.screen_reader import find_problems, read_tree

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import Browser, Locator, Page

    from reasond_server.base.addresses import Listening

PICTURES = os.environ.get("REASOND_PICTURES", "")
AXE = resources.files("axe_playwright_python").joinpath("axe.min.js")
WIDTH = 1100
HEIGHT = 800
WIDTHS = (390, 1400)
HIGHEST_PICTURE = 1500
SERIOUS = {"serious", "critical"}
KEY = SigningKey(id="console", secret=b"kQ3v9ZpX7mT2cR8wLb5NfH4sYgJ6dAeU")
expect.set_options(timeout=LIMIT_MS)


@asynccontextmanager
async def watched_page(browser: Browser, listening: Listening, *, is_dark: bool = False) -> AsyncIterator[Page]:
    """Open the console with its token; afterwards nothing may have been complained about or loaded from elsewhere."""
    async with new_page(browser, listening.http, width=WIDTH, is_dark=is_dark) as (page, watch):
        await page.goto(listening.console_link)
        await expect(page.get_by_role("heading", level=1)).to_be_visible()
        yield page
        assert watch.complaints == []
        assert watch.foreign == []


async def show(page: Page, listening: Listening, address: str) -> None:
    await page.goto(f"{listening.console}#/{address}")


async def show_run(page: Page, listening: Listening, execution_id: str) -> None:
    await show(page, listening, f"run/{execution_id}")
    await expect(page.get_by_role("listbox", name="Steps")).to_be_visible()


def link_to(page: Page, execution_id: str) -> Locator:
    """Return the link of a list to that run."""
    return page.locator(f'a[href="#/run/{execution_id}"]')


async def examine(page: Page, name: str, *, height: int = HIGHEST_PICTURE) -> None:
    """Check the page with axe in both colour schemes, as a screen reader hears it, and that nothing overflows it.

    A picture of its first `height` pixels is kept if any are wanted, unless it has no name.
    """
    if not await page.evaluate("typeof window.axe === 'object'"):
        await page.evaluate(AXE.read_text("utf-8"))
    schemes: tuple[tuple[Literal["dark", "light"], str], ...]
    schemes = (("dark", "runOnly: ['color-contrast'], "), ("light", ""))
    for scheme, rules in schemes:
        await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        found = await page.evaluate(f"axe.run(document, {{{rules}resultTypes: ['violations']}})")
        serious = [
            (each["id"], [node["html"] for node in each["nodes"]][:3])
            for each in found["violations"]
            if each["impact"] in SERIOUS
        ]
        assert serious == [], (name, scheme, serious)
    problems = find_problems(await read_tree(page))
    assert problems == [], (name, problems)
    for width in WIDTHS:
        await page.set_viewport_size({"width": width, "height": HEIGHT})
        assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (name, width)
    await page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    if PICTURES and name:
        await page.mouse.move(0, 0)
        # What keeps to the lower edge of the window stands in its place where the window has the height of the page.
        await page.set_viewport_size({"width": WIDTH, "height": height})
        picture = await take_picture(page, height)
        await page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
        await asyncio.to_thread((Path(PICTURES) / f"console_{name}.webp").write_bytes, picture)


async def take_picture(page: Page, most: int) -> bytes:
    """Return a picture of the whole page, or of its upper `most` pixels."""
    height = min(await page.evaluate("document.documentElement.scrollHeight"), most)
    session = await page.context.new_cdp_session(page)
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": 1}
    options = {"format": "webp", "quality": 80, "captureBeyondViewport": True, "clip": clip}
    told = await session.send("Page.captureScreenshot", options)
    return b64decode(told["data"])
