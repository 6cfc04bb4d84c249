"""The command line, `shmrb`; floor F6. Torch is imported by nothing here but the demo."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from shmrb import __version__
from shmrb.cli import buffers, care, exits, top
from shmrb.errors import ShmrbError

app = typer.Typer(
    name="shmrb",
    help="Replay buffers in shared memory, which many processes write and sample.",
    epilog=exits.EPILOGUE,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(buffers.create)
app.command()(buffers.ls)
app.command()(buffers.show)
app.command()(buffers.stats)
app.command()(buffers.drop)
app.command()(top.top)
app.command()(care.events)
app.command()(care.doctor)
app.command()(care.gc)


def main() -> None:
    """Run the command line and exit with a code of `shmrb.cli.exits`."""
    try:
        app(prog_name="shmrb")
    except ShmrbError as error:
        print(f"shmrb: {error}", file=sys.stderr)
        sys.exit(exits.code_of(error))


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"shmrb {__version__}")
        raise typer.Exit(exits.OK)


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


# Words that a command reads by itself, its --help too.
_RAW = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command(add_help_option=False, context_settings=_RAW)
def serve(context: typer.Context) -> None:
    """Run the daemon in this process, until SIGTERM or Ctrl-C. See `serve --help`."""
    from shmrbd.__main__ import main as serve_until_stopped

    raise typer.Exit(serve_until_stopped(context.args, program="shmrb serve"))


@app.command(name="selftest")
def run_selftest(as_json: buffers.Json = False) -> None:
    """Check on this machine that processes share records and survive each other's death."""
    from shmrb.cli.selftest import run

    raise typer.Exit(exits.OK if run(as_json=as_json) else exits.FAILED)


@app.command(add_help_option=False, context_settings=_RAW)
def demo(context: typer.Context) -> None:
    """Collectors, a learner and a daemon on a real environment, with kills. See `demo --help`."""
    from shmrb.demo import main as run_demo

    raise typer.Exit(run_demo(context.args))
