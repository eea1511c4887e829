"""Ways of working a question out, one file or package each; none imports another, none knows the transport."""
