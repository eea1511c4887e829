"""Programs that try to get out of the sandbox, and what runs them."""
