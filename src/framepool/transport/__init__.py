"""What carries the messages: Aeron, its media driver, its channels."""
