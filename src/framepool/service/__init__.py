"""Commands to every service, accepted ones echoed on the status stream (Service control plane)."""

from framepool.service.commands import Command, Parameter, command
from framepool.service.events import Event, Format, Ref, Value
from framepool.service.service import Service, ServiceState
from framepool.service.tags import service_tag

__all__ = [
    "Command",
    "Event",
    "Format",
    "Parameter",
    "Ref",
    "Service",
    "ServiceState",
    "Value",
    "command",
    "service_tag",
]
