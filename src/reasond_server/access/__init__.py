"""Access control: verifies tokens and looks up permissions; independent of the transports."""
