"""The command line: one file per group of commands, loaded only when called.

Exit codes are the same everywhere: 0 it worked, 1 it did not, 2 the command or its input was wrong, 130 Ctrl-C.
"""

from __future__ import annotations

import os
import sys

import cyclopts

import framepool
from framepool.errors import FramepoolError

app = cyclopts.App(
    name="framepool",
    help="Zero-copy shared-memory tensor transport.",
    version=framepool.__version__,
    suppress_keyboard_interrupt=False,
)
app.command("framepool.cli.demo:demo", name="demo", help="Live streams, readers and the console, to look at.")
app.command("framepool.cli.demo_parts:camera", name="demo-camera", show=False)
app.command("framepool.cli.demo_parts:sources", name="demo-sources", show=False)
app.command("framepool.cli.demo_parts:readers", name="demo-readers", show=False)
app.command("framepool.cli.demo_parts:recorder", name="demo-recorder", show=False)
app.command("framepool.cli.demo_parts:console", name="demo-console", show=False)
app.command("framepool.cli.driver:driver", name="driver", help="Run a shared-memory driver.")
app.command("framepool.cli.registry:registry", name="registry", help="Run a discovery registry for many drivers.")
app.command("framepool.cli.driver:status", name="status", help="Show what the running driver does.")
app.command("framepool.cli.driver:gc", name="gc", help="Remove what dead drivers left behind.")
app.command("framepool.cli.bridge:bridge", name="bridge", help="Run a UDP bridge: the same stream on another host.")
app.command("framepool.cli.ls:ls", name="ls", help="List the streams, of this host and of others.")
app.command("framepool.cli.supervisor:supervisor", name="supervisor", help="Watch streams, tell what happens, act.")
app.command("framepool.cli.stream:publish", name="publish", help="Publish patterns or files on a stream.")
app.command("framepool.cli.stream:consume", name="consume", help="Read the frames of a stream.")
app.command("framepool.cli.record:record", name="record", help="Record streams, every frame or a row why not.")
app.command("framepool.cli.replay:replay", name="replay", help="Publish the frames of a recording again.")
app.command("framepool.cli.recordings:recordings", name="recordings", help="List, verify and export recordings.")
app.command("framepool.cli.spark:spark", name="spark", help="Jobs on recordings: statistics, quality, reports.")
app.command("framepool.cli.limiter:limiter", name="limiter", help="Republish a stream at a lower rate, for displays.")
app.command("framepool.cli.services:services", name="services", help="List the services, their state and age.")
app.command("framepool.cli.ctl:ctl", name="ctl", help="Send a command to a service and wait for its echo.")
app.command("framepool.cli.events:events", name="events", help="Follow commands to services and what they say.")
app.command("framepool.cli.tap:tap", name="tap", help="Show the messages of the control plane as they pass.")
app.command("framepool.cli.lease:attach", name="attach", help="Ask the driver for a lease, to see its answer.")
app.command("framepool.cli.lease:keepalive", name="keepalive", help="Keep a lease alive by hand.")
app.command("framepool.cli.lease:detach", name="detach", help="Give a lease back by hand.")
app.command("framepool.cli.decode:decode", name="decode", help="Say what a message contains.")
app.command("framepool.cli.media_driver:media_driver", name="media-driver", help="Run an Aeron media driver.")
app.command("framepool.cli.console:console", name="console", help="A web page of what goes on.")
app.command("framepool.cli.bench:bench", name="bench", help="Compare framepool with other transports, here and now.")
app.command("framepool.cli.top:top", name="top", help="Streams at a glance in this terminal.")
app.command("framepool.cli.doctor:doctor", name="doctor", help="Check this machine and say what to change.")
app.command("framepool.cli.torture:torture", name="torture", help="Break a cluster on purpose and check every frame.")
app.command("framepool.cli.config:config", name="config", help="Check a configuration file.")


def main() -> None:
    """The entry point of `framepool`: an error of ours is one line, not a traceback."""
    try:
        app()
    except FramepoolError as error:
        print(f"framepool: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `framepool … | head`: whoever read us has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
