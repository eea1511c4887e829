"""Agent cards and the directory of agents; nothing is ever fetched."""
