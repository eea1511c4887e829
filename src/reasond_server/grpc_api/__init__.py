"""The gRPC side: servicers, conversion, layers of handlers, health, reflection; no other package imports protobuf."""
