"""What is kept of a run besides its events, so that it can be gone on with: its plan, its calls, what they cost."""
