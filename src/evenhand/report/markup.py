"""HTML from templates, everything escaped; nobody else in the report writes a tag."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from evenhand.report.records import NOT_RUN

_TEMPLATES = Environment(
    loader=PackageLoader("evenhand.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
    lstrip_blocks=True,
)  # fmt: skip
_TEMPLATES.globals["NOT_RUN"] = NOT_RUN
# figure(svg, caption), fold(title, inside, opened), note(text), missing(text) ...: the macros of parts.html.
parts: Any = _TEMPLATES.get_template("parts.html").module


def script(name: str) -> tuple[Markup, str]:
    """A script of ours to stand in a page, and the hash by which the page's policy lets it run and no other."""
    text = _TEMPLATES.loader.get_source(_TEMPLATES, name)[0]  # type: ignore[union-attr]
    return Markup(text), base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def render(template: str, **facts: Any) -> Markup:
    return Markup(_TEMPLATES.get_template(template).render(facts))


def joined(pieces: Iterable[str]) -> Markup:
    return Markup("").join(pieces)
