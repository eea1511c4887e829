"""Replies become changed files, and changed files a patch; asks no model and runs no check."""
