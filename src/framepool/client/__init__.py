"""Producers and consumers: the wire specification, both roles, on leases from a driver."""
