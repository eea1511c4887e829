"""The text of PDF and Word documents, which a process with bounds takes out."""
