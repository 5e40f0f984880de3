"""The shared-memory driver: the driver model specification as an agent."""
