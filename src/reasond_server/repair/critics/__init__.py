"""What judges a candidate: checks that run, and analyses that do not."""
