"""The Bruno collection: every request is sent to a real server, and its assertions hold.

The files are read here, because Bruno's own command has 300 packages; it was run by hand on the same files. What this
reader does not know fails, so a request cannot pass unseen.
"""

from __future__ import annotations

import json
import re
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[2]
COLLECTION = ROOT / "examples" / "bruno"
BLOCK = re.compile(r"^(?P<name>[a-z:-]+) \{\n(?P<body>.*?)^\}$", re.MULTILINE | re.DOTALL)
KNOWN = {"meta", "get", "post", "headers", "body:json", "vars:post-response", "assert", "docs"}
STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
LEFT_OUT = {
    "repair.execute",
    "repair.get",
    "repair.create_snapshot",
    "repair.upload_blobs",
    "turns.reenter",
}
LIMIT_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back: the status, and the body as JSON or, if it is none, as text."""

    status: int
    body: Any


def read_blocks(path: Path) -> dict[str, str]:
    text = path.read_text(encoding="utf-8")
    blocks = {match["name"]: match["body"] for match in BLOCK.finditer(text)}
    assert not BLOCK.sub("", text).strip(), f"{path.name} has more than blocks"
    return blocks


def pairs_in(body: str) -> dict[str, str]:
    lines = (line.strip().partition(": ") for line in body.splitlines() if line.strip())
    return {name: value for name, _, value in lines}


def requests() -> list[tuple[str, dict[str, str]]]:
    """Return name and blocks of each request, in the order in which Bruno runs them."""
    folders = sorted(path for path in COLLECTION.iterdir() if path.is_dir() and path.name != "environments")
    files = [path for folder in folders for path in folder.glob("*.bru")]
    found = [(path.parent.name, read_blocks(path), path.stem) for path in files]
    found.sort(key=lambda each: (each[0], int(pairs_in(each[1]["meta"])["seq"])))
    return [(name, blocks) for _, blocks, name in found]


def fill(text: str, variables: Mapping[str, str]) -> str:
    return re.sub(r"\{\{([\w.]+)\}\}", lambda match: variables[match[1]], text)


def send(blocks: Mapping[str, str], variables: Mapping[str, str]) -> Answer:
    """Send a request of the collection, with its bearer token."""
    method = "post" if "post" in blocks else "get"
    target = pairs_in(blocks[method])
    assert target["auth"] == "inherit"
    auth = pairs_in(read_blocks_of_collection()["auth:bearer"])
    headers = {"Authorization": f"Bearer {fill(auth['token'], variables)}", **pairs_in(blocks.get("headers", ""))}
    data = None
    if target["body"] == "json":
        data = fill(blocks["body:json"], variables).encode()
        json.loads(data)
        headers["Content-Type"] = "application/json"
    request = urllib.request.Request(fill(target["url"], variables), data, headers, method=method.upper())
    with urllib.request.urlopen(request, timeout=LIMIT_S) as response:
        text = response.read().decode()
        is_json = response.headers.get_content_type() in {"application/json", "application/a2a+json"}
        return Answer(status=response.status, body=json.loads(text) if is_json else text)


def read_blocks_of_collection() -> dict[str, str]:
    return read_blocks(COLLECTION / "collection.bru")


def find_value(answer: Answer, path: str) -> Any:
    """Return what a path such as `res.body.result[0].id` leads to."""
    assert path.startswith(("res.status", "res.body")), path
    value: Any = {"status": answer.status, "body": answer.body}
    for name, index in STEP.findall(path.removeprefix("res")):
        value = value[name] if name else value[int(index)]
    return value


def check(answer: Answer, path: str, rule: str) -> None:
    operator, _, operand = rule.partition(" ")
    value = find_value(answer, path)
    if operator == "isDefined":
        assert value is not None, path
    elif operator == "contains":
        assert operand in value, (path, value)
    else:
        assert operator == "eq", f"{operator} is not read here"
        wanted = json.loads(operand) if re.fullmatch(r'-?\d+|".*"', operand) else operand
        assert value == wanted, path


def test_every_request_of_the_collection_gets_what_it_asserts(dev_server: Mapping[str, str]) -> None:
    environment = pairs_in(read_blocks(COLLECTION / "environments" / "dev.bru")["vars"])
    assert environment == {"http": "http://127.0.0.1:8001"}
    variables = {"http": f"http://{dev_server['http']}", "process.env.REASOND_TOKEN": dev_server["token"]}
    listed = requests()
    assert len(listed) > 30
    for name, blocks in listed:
        assert blocks.keys() <= KNOWN, name
        answer = send(blocks, variables)
        for path, rule in pairs_in(blocks["assert"]).items():
            try:
                check(answer, path, rule)
            except (AssertionError, KeyError, IndexError, TypeError) as error:
                raise AssertionError(f"{name}: {path}: {rule}: {answer.body}") from error
        for variable, path in pairs_in(blocks.get("vars:post-response", "")).items():
            variables[variable] = find_value(answer, path)


def test_the_collection_has_every_method_but_those_that_need_more(dev_server: Mapping[str, str]) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "no.such"}).encode()
    headers = {"Authorization": f"Bearer {dev_server['token']}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{dev_server['http']}/api/v1/jsonrpc", body, headers)
    with urllib.request.urlopen(request, timeout=LIMIT_S) as response:
        message = json.load(response)["error"]["message"]
    methods = set(re.findall(r"'(\w+\.\w+)'", message)) - {"no.such"}
    sent = {
        match for _, blocks in requests() for match in re.findall(r'"method": "([\w.]+)"', blocks.get("body:json", ""))
    }
    assert len(methods) > 20
    assert sent | LEFT_OUT == methods
    assert not sent & LEFT_OUT
