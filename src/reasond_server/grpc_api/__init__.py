"""The gRPC side: servicers, conversion, interceptors, health, reflection; the only room that knows protobuf."""
