"""What models write and gateways report, one table a subject; each row has its source and its reading."""
