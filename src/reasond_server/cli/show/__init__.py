"""What people see of runs, turns and repairs on a terminal or in a log."""
