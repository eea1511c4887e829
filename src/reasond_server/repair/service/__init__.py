"""Repairs as a kind of work, and the door to them: requests, parameters, plans, recovery, engines."""
