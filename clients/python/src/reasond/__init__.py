"""Client of reasond, the reasoning server; the generated stubs are in `reasond.v1`."""
