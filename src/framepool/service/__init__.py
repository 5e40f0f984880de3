"""Commands to every service, accepted ones echoed on the status stream (Service control plane)."""

from framepool.service.commander import Commander, Sent
from framepool.service.commands import Command, Parameter, command
from framepool.service.directory import Directory, ServiceStatus
from framepool.service.events import Event, Format, Ref, Value
from framepool.service.service import Service, ServiceState
from framepool.service.tags import service_tag

__all__ = [
    "Command",
    "Commander",
    "Directory",
    "Event",
    "Format",
    "Parameter",
    "Ref",
    "Sent",
    "Service",
    "ServiceState",
    "ServiceStatus",
    "Value",
    "command",
    "service_tag",
]
