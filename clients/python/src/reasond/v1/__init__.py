"""Generated messages and stubs of proto package `reasond.v1`."""
