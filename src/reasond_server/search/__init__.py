"""The search controller: proposes, judges and selects nodes of a tree; independent of prompts and models."""
