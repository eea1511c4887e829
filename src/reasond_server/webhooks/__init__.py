"""Webhooks: what receivers are told of executions and budgets, kept in the store until they have confirmed it."""
