"""Tools that a model may call: the protocol, the execution and the built-in tools. Strategies decide when to call."""
