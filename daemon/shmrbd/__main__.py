"""The daemon's process: `shmrbd`, `python -m shmrbd`."""

from __future__ import annotations

import argparse
import logging
import os
import resource
import sys
from collections.abc import Sequence
from functools import partial

from shmrb import __version__
from shmrb.errors import DaemonError, ShmrbError, SpecError
from shmrb.segment.directory import Root
from shmrbd import EXIT_FAILED, EXIT_STOPPED, EXIT_USAGE, config, handlers
from shmrbd.guard import listener_at, only_daemon_of
from shmrbd.janitor import Janitor
from shmrbd.notify import Notifier
from shmrbd.registry import Registry
from shmrbd.server import Server, StopSignals

_log = logging.getLogger("shmrbd")

# Clients hold the administration lock for about a millisecond. A request that meets a stopped one
# fails after this long; the others wait no longer for it.
_LOCK_TIMEOUT_S = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="shmrbd",
        description="Owns replay buffers in shared memory and serves their clients.",
        epilog="Exit codes: 0 stopped by SIGTERM or SIGINT; 1 failed; 2 wrong usage; 4 another "
        "daemon serves this root or socket.",
    )
    parser.add_argument("--root", help="directory of the segments [SHMRB_ROOT]")
    parser.add_argument("--socket", help="path of the control socket [SHMRB_SOCKET]")
    parser.add_argument("--version", action="version", version=f"shmrbd {__version__}")
    flags = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="shmrbd: %(message)s", stream=sys.stderr)
    try:
        serve(config.resolve(flags.root, flags.socket))
    except SpecError as error:
        _log.error("%s", error)
        return EXIT_USAGE
    except DaemonError as error:
        _log.error("%s", error)
        return error.code or EXIT_FAILED
    except (ShmrbError, OSError) as error:
        _log.error("cannot serve: %s", error)
        return EXIT_FAILED
    return EXIT_STOPPED


def serve(settings: config.Config) -> None:
    """Adopt what is in the root, listen, say READY, and serve until a stop signal."""
    _allow_descriptors()
    notifier = Notifier(os.environ.get("NOTIFY_SOCKET"))
    root = Root(settings.root, lock_timeout=_LOCK_TIMEOUT_S)
    root.make()
    with (
        StopSignals() as signals,
        only_daemon_of(settings.root),
        # Whoever may use the root may talk to its daemon.
        listener_at(settings.socket, root.mode) as listener,
        Registry(root) as registry,
    ):
        janitor = Janitor(registry, settings)
        janitor.do_round()
        server = Server(
            listener,
            signals,
            partial(handlers.answer, registry),
            janitor,
            max_connections=settings.max_connections,
        )
        where = f"{settings.root} on {settings.socket}"
        _log.info("serving %s, %d buffers adopted", where, len(registry))
        notifier.ready(f"serving {where}")
        server.run()
        notifier.stopping()
        server.close()
    _log.info("stopped")


def _allow_descriptors() -> None:
    """Lift the soft limit, which is meant for programs that use select."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
