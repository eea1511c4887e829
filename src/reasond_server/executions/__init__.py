"""What can be done with any execution, of whatever kind: read, follow, observe, list, cancel, delete."""
