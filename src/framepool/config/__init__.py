"""Configuration: TOML to frozen values, with the numbers that the specifications leave to a deployment.

Everything has a default and an empty file is a valid configuration. Unknown keys are refused, and what a key may
hold is checked here once, so that no other module checks it again. `FRAMEPOOL_<SECTION>_<KEY>` in the environment
overrides a scalar of the file. The stream-id plan is `decisions.md` section 0; ids that overlap are refused.
One module a part: the plan of streams, the driver, and so on; `file` puts them together.
"""

from framepool.config.bridge import BridgeConfig, LinkConfig, MappingConfig, check_bridge, direction
from framepool.config.client import ClientConfig
from framepool.config.console import ConsoleConfig
from framepool.config.discovery import (
    AccessRule,
    DiscoveryConfig,
    DiscoveryLimits,
    RegistryConfig,
    ResponseConfig,
    SourceConfig,
)
from framepool.config.driver import (
    DEFAULT_EPOCH_BYTES,
    DEFAULT_NSLOTS,
    SIZE_CLASSES,
    DriverConfig,
    Limits,
    PoolConfig,
    ProfileConfig,
    StreamConfig,
    default_profile,
)
from framepool.config.file import Config, load, variables
from framepool.config.plan import Channels, StreamIds
from framepool.config.recorder import RecorderConfig
from framepool.config.section import IdRange, NotNegative, Positive, Section, StreamId
from framepool.config.service import ServiceConfig
from framepool.config.supervisor import SupervisorConfig, SupervisorLimits, SupervisorRule

__all__ = [
    "DEFAULT_EPOCH_BYTES",
    "DEFAULT_NSLOTS",
    "SIZE_CLASSES",
    "AccessRule",
    "BridgeConfig",
    "Channels",
    "ClientConfig",
    "Config",
    "ConsoleConfig",
    "DiscoveryConfig",
    "DiscoveryLimits",
    "DriverConfig",
    "IdRange",
    "Limits",
    "LinkConfig",
    "MappingConfig",
    "NotNegative",
    "PoolConfig",
    "Positive",
    "ProfileConfig",
    "RecorderConfig",
    "RegistryConfig",
    "ResponseConfig",
    "Section",
    "ServiceConfig",
    "SourceConfig",
    "StreamConfig",
    "StreamId",
    "StreamIds",
    "SupervisorConfig",
    "SupervisorLimits",
    "SupervisorRule",
    "check_bridge",
    "default_profile",
    "direction",
    "load",
    "variables",
]
