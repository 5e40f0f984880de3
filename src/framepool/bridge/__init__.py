"""The UDP bridge: the same stream on another host (Bridge specification)."""
