"""The daemon's process: `shmrbd`, `python -m shmrbd`, `shmrb serve`."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from functools import partial

from shmrb import __version__
from shmrb.errors import DaemonError, ShmrbError, SpecError
from shmrbd import EXIT_FAILED, EXIT_STOPPED, EXIT_USAGE, config, events, service

_log = logging.getLogger("shmrbd")


def main(argv: Sequence[str] | None = None, *, program: str = "shmrbd") -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code."""
    flags = vars(_parser(program).parse_args(argv))
    file, prints = flags.pop("config"), flags.pop("print_config")
    read = partial(config.resolve, flags, file)
    events.log_to(sys.stderr, "info")
    try:
        settings = read()
        if prints:
            print(config.documented(settings), end="")
            return EXIT_STOPPED
        events.set_level(settings.log_level)
        service.serve(settings, read)
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


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description="Owns replay buffers in shared memory and serves their clients.",
        epilog="A flag overrides the environment, that the configuration file, that the default. "
        "SIGHUP reads the file again. Exit codes: 0 stopped by SIGTERM or SIGINT; 1 failed; "
        "2 wrong usage or configuration; 4 another daemon serves this root or socket.",
    )
    parser.add_argument("--version", action="version", version=f"shmrbd {__version__}")
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="Configuration file, TOML. [$SHMRB_CONFIG, else /etc/shmrb/shmrbd.toml for root and "
        "system users, else ~/.config/shmrb/shmrbd.toml]",
    )
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="Print a configuration file with the settings as they are, each explained, and exit.",
    )
    for flag, options in config.flags().items():
        parser.add_argument(flag, **options)
    return parser


if __name__ == "__main__":
    sys.exit(main())
