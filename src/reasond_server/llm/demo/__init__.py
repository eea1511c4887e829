"""The embedded demo model: fixed rules behind the port of a language model, so that no key is needed to try the server.

It works out arithmetic, percentages and interest, answers questions about a text with sentences of it, judges thoughts
and calls a calculator. It understands nothing and says so. The way of a call: `demo_model` streams, `prompt` reads the
last user message, `writing` decides what is answered, `computation` (over `arithmetic` and `numerals`) works it out,
`extraction` finds it in the text. Nothing outside this package knows these rules.
"""

from reasond_server.llm.demo.demo_model import DemoModel

__all__ = ["DemoModel"]
