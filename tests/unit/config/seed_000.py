"""The examples of config.toml in seed 000, verbatim."""

from __future__ import annotations

# Seed 000, Feature 4, verbatim.
FEATURE_4 = """
[reasoning]
default_strategy = "chain_of_thought"  # or null for no default
enabled_strategies = ["chain_of_thought", "bounded_context", "react"]

[reasoning.strategies.bounded_context]
default_chunk_size = 8192
default_carryover_size = 4096
default_max_iterations = 5
max_allowed_iterations = 50

[reasoning.strategies.chain_of_thought]
default_max_tokens = 32768

[reasoning.strategies.react]
default_max_tool_calls = 10
"""

# Seed 000, CR-1 and CR-2, verbatim.
CR_1_AND_2 = """
[llm]
provider = "openai"
model = "gpt-4.1"
api_key_env = "OPENAI_API_KEY"

[reasoning]
# Default strategy for reasoning requests (null = no default, must be specified)
default_strategy = "chain_of_thought"  # or null

# List of enabled strategies (empty list = no strategies enabled)
enabled_strategies = ["chain_of_thought", "bounded_context", "react"]

# Strategy-specific configurations
[reasoning.strategies.bounded_context]
default_chunk_size = 8192
default_carryover_size = 4096
default_max_iterations = 5
max_allowed_iterations = 50

[reasoning.strategies.chain_of_thought]
default_max_tokens = 32768

[reasoning.strategies.react]
default_max_tool_calls = 10

# Performance settings
[reasoning.performance]
max_concurrent_requests = 100
strategy_selection_timeout_ms = 50
enable_metrics = true
"""
