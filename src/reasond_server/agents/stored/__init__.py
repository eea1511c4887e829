"""The directory of agents in a database."""
