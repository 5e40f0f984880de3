"""Who has which stream: an advisory inventory, its providers, and those who ask them (Discovery)."""
