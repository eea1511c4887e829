"""The front door of the core: which strategies exist, which one works, start, follow, look up, cancel."""
