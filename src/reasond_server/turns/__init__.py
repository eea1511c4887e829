"""Turns: conversations in which the model calls tools of the server and of the client until it answers."""
