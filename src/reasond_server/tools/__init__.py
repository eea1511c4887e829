"""Tools that a model may call: their protocol, their execution, the built-in ones; decides nothing about when."""
