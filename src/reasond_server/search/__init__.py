"""The search controller: proposes, judges and selects nodes of a tree; knows neither prompts nor models."""
