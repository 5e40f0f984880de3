"""The supervisor: what is going on, folded from what is said; what to do about it, decided; and done (Wire 10.5)."""
