"""Engines that work repairs out in other processes."""
