"""The one exception a user should ever see: what is wrong, with what value, and what to do."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class UserError(ValueError):
    """A mistake in data, recipe or command; the command line prints it as one line and exits with 2."""


@contextmanager
def users_mistake(where: str) -> Iterator[None]:
    """Bad values that a user's recipe hands to a piece are her mistake, not a bug: name the place."""
    try:
        yield
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


@contextmanager
def fits_memory(where: str) -> Iterator[None]:
    """What no memory can hold is a mistake in a size."""
    try:
        yield
    except (RuntimeError, TypeError) as error:
        if not any(word in str(error).lower() for word in ("allocate", "overflow", "out of memory")):
            raise
        raise UserError(f"{where}: does not fit into memory; lower the largest of its sizes") from error


class Stopped(KeyboardInterrupt):
    """A training that was asked to stop, and did so in all its processes, with its state saved."""


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """A hint such as ``did you mean 'epochs'?``, or the known names when none is close."""
    known = sorted(known)
    close = difflib.get_close_matches(wrong, known, n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}"


@contextmanager
def plain_warnings() -> Iterator[None]:
    """A warning is one line, said once however often the data are built."""
    said: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in said:
            said.add(str(message))
            print(f"evenhand: {message}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
