"""Snapshots of clients' files: manifests and contents, kept by tenant and addressed by their content."""
