"""The embedded demo model: fixed rules behind the port of a language model, so that no key is needed to try the server.

It computes arithmetic, percentages and interest, answers questions about a text with sentences of the text, judges
thoughts, calls a calculator and the tools that a request names, and makes one-line edits of Python code. It has no
understanding, and its answers have a warning. `demo_model` streams a reply, `prompt` reads the last user message,
`reply_writer` selects the kind of reply. `computation` computes with `arithmetic` and `numerals`, `extraction` finds
sentences. `repair_replies` edits code with `mutations`. Nothing outside this package depends on these rules.
"""

from reasond_server.demo.demo_model import DemoModel

__all__ = ["DemoModel"]
