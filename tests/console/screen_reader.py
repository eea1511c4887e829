"""What a screen reader is told of a page: the tree that Chromium gives to it, and what is wrong with it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from playwright.async_api import Page

_NAMED = {
    *("button", "checkbox", "columnheader", "combobox", "dialog", "group", "heading", "image", "link", "listbox"),
    *("main", "navigation", "option", "radio", "region", "rowheader", "slider", "spinbutton", "tab", "tablist"),
    *("tabpanel", "textbox"),
}
_MUTE = {"generic", "none", "paragraph", "presentation"}
_LANDMARKS = ("banner", "main", "navigation")


async def read_tree(page: Page) -> Sequence[Mapping[str, Any]]:
    """Return the nodes that a screen reader is told of, in the order of the page.

    Each has `role`, `name`, and those of its properties that it has: `focusable`, `level`, `live` and others.
    """
    session = await page.context.new_cdp_session(page)
    told = await session.send("Accessibility.getFullAXTree")
    await session.detach()
    nodes = {node["nodeId"]: node for node in told["nodes"]}

    def walk(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        if not node["ignored"]:
            properties = {each["name"]: each["value"].get("value") for each in node.get("properties", ())}
            yield {**properties, "role": node["role"]["value"], "name": node.get("name", {}).get("value", "")}
        for child in node.get("childIds", ()):
            if child in nodes:
                yield from walk(nodes[child])

    return list(walk(told["nodes"][0]))


def find_problems(tree: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what a person who hears the page cannot make sense of."""
    found = [f"a {node['role']} has no name" for node in tree if node["role"] in _NAMED and not node["name"].strip()]
    found += [
        f"the focus may be on {node['name'][:60]!r}, of which nobody tells what it is"
        for node in tree
        if node.get("focusable") and node["role"] in _MUTE
    ]
    if any(node["role"] == "dialog" for node in tree):
        # What is behind it is told to nobody.
        return found
    levels = [int(node["level"]) for node in tree if node["role"] == "heading"]
    if levels[:1] != [1] or levels.count(1) != 1:
        found.append(f"the headings {levels} do not begin with the only one of level 1")
    found += [
        f"a heading of level {below} follows one of {level}" for level, below in pairwise(levels) if below > level + 1
    ]
    counts = {landmark: sum(node["role"] == landmark for node in tree) for landmark in _LANDMARKS}
    found += [f"{count} landmarks of role {landmark}" for landmark, count in counts.items() if count != 1]
    if not any(node["role"] == "alert" and node.get("live") == "assertive" for node in tree):
        found.append("nothing tells that the server cannot be reached")
    return found
