"""The gRPC side: servicers, conversion, interceptors, health, reflection; the only package that imports protobuf."""
