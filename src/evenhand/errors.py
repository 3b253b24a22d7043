"""The one exception a user should ever see: what is wrong, with what value, and what to do."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

TOO_LARGE = (
    "out of memory", "tried to allocate", "size calculation overflowed", "multiplication overflow",
    "overflow when unpacking",
)  # fmt: skip


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
    except (MemoryError, RuntimeError, TypeError) as error:
        if not beyond_memory(error):
            raise
        raise UserError(f"{where}: does not fit into memory; lower the largest of its sizes") from error


def beyond_memory(error: Exception) -> bool:
    """Whether torch, numpy or Python say that something is too large, in their words."""
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in TOO_LARGE)


class Stopped(KeyboardInterrupt):
    """A training that was asked to stop, and did so in all its processes, with its state saved."""


@contextmanager
def repeatable() -> Iterator[None]:
    """Work in parts that are kept as far as they came: whoever interrupts one goes on by the command of the whole."""
    try:
        yield
    except KeyboardInterrupt as stop:
        raise type(stop)("Runs are saved as far as they came: repeat the same command to go on") from stop


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
