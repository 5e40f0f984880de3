"""`framepool media-driver`: the media driver as a program of its own."""

from __future__ import annotations

import grp
import json as json_module
import os
from pathlib import Path

from framepool.cli.stopping import stop_asked
from framepool.errors import ConfigurationError
from framepool.transport.media_driver import MediaDriver
from framepool.transport.settings import AeronSettings, Threading, default_directory

DEFAULTS = AeronSettings(directory="")


def media_driver(
    *,
    dir: Path | None = None,
    group: str = "",
    threading: Threading = DEFAULTS.threading,
    client_liveness: float = DEFAULTS.client_liveness_timeout,
    publication_unblock: float = DEFAULTS.publication_unblock_timeout,
    image_liveness: float = DEFAULTS.image_liveness_timeout,
    untethered_window_limit: float = DEFAULTS.untethered_window_limit_timeout,
    untethered_resting: float = DEFAULTS.untethered_resting_timeout,
    term_length: int = DEFAULTS.term_length,
    ipc_term_length: int = DEFAULTS.ipc_term_length,
    json: bool = False,
) -> None:
    """Run a media driver until SIGINT or SIGTERM, then remove its directory.

    Parameters
    ----------
    dir
        Its directory, by default AERON_DIR or one of this user in /dev/shm.
    group
        Whose members may use it, and disturb whoever does; by default nobody but its user.
    threading
        One thread for all, one for the network and one for the rest, or one for each task.
    client_liveness
        Seconds after which a client that gives no sign of life is given up.
    publication_unblock
        Seconds after which a claim that was never finished is passed over; more than client_liveness.
    image_liveness
        Seconds after which a publisher on another machine that gives no sign of life is given up.
    untethered_window_limit
        Seconds after which an untethered subscriber that does not read is left behind.
    untethered_resting
        Seconds after which such a subscriber may join again by itself.
    term_length
        Bytes of a term buffer of a UDP channel that does not name it.
    ipc_term_length
        Bytes of a term buffer of a local channel that does not name it.
    json
        Print the ready line as JSON.
    """
    settings = AeronSettings(
        directory=str(dir) if dir is not None else default_directory(),
        threading=threading,
        client_liveness_timeout=client_liveness,
        publication_unblock_timeout=publication_unblock,
        image_liveness_timeout=image_liveness,
        untethered_window_limit_timeout=untethered_window_limit,
        untethered_resting_timeout=untethered_resting,
        term_length=term_length,
        ipc_term_length=ipc_term_length,
    )
    with stop_asked() as asked, MediaDriver(settings, group=_group_id(group) if group else None) as driver:
        ready = {"event": "ready", "dir": driver.directory, "pid": os.getpid()}
        text = f"media driver ready in {driver.directory} (process {os.getpid()})"
        print(json_module.dumps(ready) if json else text, flush=True)
        asked.wait()


def _group_id(name: str) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigurationError(f"--group {name!r}: no such group") from None


if __name__ == "__main__":
    import cyclopts

    from framepool.errors import FramepoolError

    try:
        cyclopts.run(media_driver)
    except FramepoolError as error:
        raise SystemExit(f"framepool media-driver: {error}") from None
