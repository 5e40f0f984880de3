"""The transports that are compared, each in its fastest documented use."""
