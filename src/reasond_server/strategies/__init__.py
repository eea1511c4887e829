"""Ways of working a question out, one file each; none imports another, none knows the transport."""
