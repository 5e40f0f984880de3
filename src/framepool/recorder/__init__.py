"""What joins lossy live streams and work that can be repeated: frames kept as they are, and every loss a row."""
