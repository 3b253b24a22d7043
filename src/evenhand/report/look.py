"""What ``evenhand look`` found, as one page with thumbnails and no network."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import escape
from PIL import Image, ImageOps

from evenhand import atomic
from evenhand.data.sources.files import convert

SIDE = 88
STYLE = """
:root { color-scheme: light dark } body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem auto; max-width: 62rem;
padding: 0 1rem } table { border-collapse: collapse } td, th { padding: .2rem .7rem; text-align: right; vertical-align:
top; border-top: 1px solid #8884 } td:first-child, th:first-child, td.pictures { text-align: left } img { height: 88px;
margin: 2px; border-radius: 3px } code { overflow-wrap: anywhere } .error { color: #c33 } .warning { color: #b70 }
.scroll { overflow-x: auto }
"""


def write_look(out: Path, findings: Any, lines: Sequence[str], advice: Sequence[str]) -> Path:
    """The page: findings in words, advice, and for every class its counts and some pictures."""
    splits = list(findings.counts)
    rows = "".join(
        f"<tr><td>{escape(name)}</td>"
        + "".join(f"<td>{findings.counts[split].get(name, 0)}</td>" for split in splits)
        + f'<td class="pictures">{_pictures(findings.examples.get(name, ()))}</td></tr>'
        for name in sorted(findings.classes, key=lambda name: -findings.train[name])
    )
    head = "".join(f"<th>{escape(split)}</th>" for split in splits)
    copied = "".join(
        f"<h3>{'near' if some.near else 'exact'} copies {'across ' + some.across if some.across else ''}</h3>"
        f"<p>{_pictures(some.names[:8])}<br>{escape(', '.join(some.names[:8]))}</p>"
        for some in findings.copies[:30]
    )
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(findings.path)}</title><style>{STYLE}</style><h1>{escape(findings.path)}</h1>"
        f"<ul>{_items(lines)}</ul><h2>What to do</h2><ul>{_items(advice)}</ul>"
        f'<h2>Classes</h2><div class="scroll"><table><tr><th>class</th>{head}<th>pictures</th></tr>{rows}</table></div>'
        + (f"<h2>Copies</h2>{copied}" if copied else "")
        + "</html>"
    )
    atomic.write(out, page)
    return out


def _items(lines: Iterable[str]) -> str:
    kinds: Mapping[str, str] = {"error": "error", "warning": "warning"}
    return "".join(f'<li class="{kinds.get(line.partition(":")[0], "")}">{escape(line)}</li>' for line in lines)


def _pictures(names: Iterable[str]) -> str:
    return "".join(_picture(name) for name in names)


def _picture(name: str) -> str:
    """A thumbnail inside the page; nothing for what is no file or cannot be read, which the page says elsewhere."""
    try:
        with Image.open(name) as image:
            image.draft("RGB", (2 * SIDE, 2 * SIDE))
            small = convert(ImageOps.exif_transpose(image), "RGB")
    except Exception:  # decoders raise OSError, SyntaxError, struct.error, zlib.error and others
        return ""
    small.thumbnail((4 * SIDE, SIDE))
    content = io.BytesIO()
    small.save(content, "JPEG", quality=80)
    data = base64.b64encode(content.getvalue()).decode()
    return f'<img alt="{escape(Path(name).name)}" title="{escape(name)}" src="data:image/jpeg;base64,{data}">'
