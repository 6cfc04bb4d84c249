"""Where the checkout lies, and what a test process may import from it.

The checkout's `shmrb/` has no native module unless somebody built one there, so it must never hide
the installed package by standing earlier on the path. Developers who built in place say so with
PYTHONPATH.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
CHECKOUT = TESTS.parent


def _named_by_user() -> list[str]:
    return [
        os.path.abspath(entry)
        for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if entry
    ]


def arrange_import_path() -> None:
    """Puts tests/ first and the checkout last (for `bench`), unless PYTHONPATH names the checkout.

    PYTHONPATH is made absolute, so that children inherit its meaning in any working directory.
    """
    named = _named_by_user()
    if named:
        os.environ["PYTHONPATH"] = os.pathsep.join(named)
    helpers = str(TESTS / "helpers")
    own = {helpers, str(TESTS)}
    if str(CHECKOUT) not in named:
        own.add(str(CHECKOUT))
    rest = [entry for entry in sys.path if os.path.realpath(entry or os.curdir) not in own]
    sys.path[:] = [str(TESTS), *rest]
    if str(CHECKOUT) not in sys.path:
        sys.path.append(str(CHECKOUT))
