"""Whether domains have the same classes, and how to say that they do not."""

from __future__ import annotations

from collections.abc import Mapping

from evenhand.data.sources.paths import few
from evenhand.errors import UserError


def shared_classes(found: Mapping[str, set[str]], *, intersection: bool, remedy: str, least: int = 1) -> set[str]:
    """The classes of all domains; if they differ, what each lacks is an error unless the intersection is wanted."""
    every = set().union(*found.values())
    shared = every.intersection(*found.values())
    if intersection and len(shared) < least:
        raise UserError(f"the domains {', '.join(found)} share {len(shared)} class(es); compare their folder names")
    if not intersection and shared != every:
        lacks = "; ".join(f"'{name}' lacks {few(every - has)}" for name, has in found.items() if every - has)
        raise UserError(f"domains must have the same classes: {lacks}; {remedy}")
    return shared
