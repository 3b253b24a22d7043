"""How our plots look, and how a matplotlib figure becomes a small inline SVG.

The same data give the same bytes. Ink is ``currentColor`` and grid lines are a CSS variable, so the page's
theme reaches into the plot; text stays text. Nothing touches pyplot or leaves global state behind, and
matplotlib is imported when the first plot is drawn.
"""

from __future__ import annotations

import hashlib
import html
import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours without black and yellow (lost on dark and light pages), then some of Tol's.
PALETTE = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00",
    "#56B4E9", "#AA4499", "#999933", "#888888", "#6A6FD0",
)  # fmt: skip
GREY = "#888888"
EXPLODED = 30.0  # times the median: such a value gets a logarithmic axis
WIDTH = 11.4  # inches: the page's panel
MARKERS = "osD^vP*X<>"
INK, GRID, SHADE = "#010203", "#040506", "#070809"  # stand-ins for the page's colours
THEME = {INK: "currentColor", GRID: "var(--grid, #d5d9e0)", SHADE: "var(--shade, #8891a5)"}
STYLE: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "evenhand", "text.parse_math": False, "font.size": 9,
    "axes.titlesize": 9.5, "axes.titlelocation": "left", "axes.titleweight": "bold", "text.color": INK,
    "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK, "axes.edgecolor": GRID,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "axes.grid.axis": "y",
    "axes.axisbelow": True, "grid.color": GRID, "grid.linewidth": 0.8, "xtick.major.size": 0,
    "ytick.major.size": 0, "xtick.minor.size": 0, "ytick.minor.size": 0, "legend.frameon": False,
    "lines.linewidth": 1.6,
}  # fmt: skip


def colour(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


def marker(index: int) -> str:
    return MARKERS[index % len(MARKERS)]


def draw(
    width: float,
    height: float,
    alt: str,
    paint: Callable[[Figure], None],
    tips: Mapping[str, str] | None = None,
) -> str:
    """What ``paint(figure)`` draws, as SVG; sizes in inches. ``tips``: an artist's gid -> its hover text."""
    import matplotlib
    from matplotlib.figure import Figure

    out = io.StringIO()
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # Letters our font lacks (Chinese class names) are drawn by the reader's browser.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
        paint(figure)
        for axes in figure.axes:
            axes.set_facecolor("none")
        figure.savefig(out, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return _inline(out.getvalue(), alt, tips or {}, round(96 * width))


def _inline(svg: str, alt: str, tips: Mapping[str, str], pixels: int) -> str:
    """Less than half the size, themed, named for screen readers, with ids no other plot of a page has."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.S)
    svg = re.sub(r">\s+<", "><", svg)
    for gid, text in tips.items():
        svg = svg.replace(f'<g id="{gid}">', f"<g><title>{html.escape(text)}</title>")
    key = hashlib.sha256((alt + svg).encode()).hexdigest()[:8]
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', svg))

    def keep_if_used(found: re.Match[str]) -> str:
        return f' id="{key}{found[1]}"' if found[1] in used else ""

    def tidy(found: re.Match[str]) -> str:
        tag = found[0].replace("\n", "")
        tag = re.sub(r"(\d\.\d{2})\d+", r"\1", tag)
        tag = re.sub(r' id="([^"]*)"', keep_if_used, tag)
        tag = re.sub(r'(url\(#|href="#)', rf"\g<1>{key}", tag)
        tag = re.sub(r" font-family: [^;]*;| transform=\"rotate\(-0 [^\"]*\"", "", tag)
        for stand_in, css in THEME.items():
            tag = tag.replace(stand_in, css)
        return tag

    svg = re.sub(r"<[^>]*>", tidy, svg)  # inside tags only: labels may hold digits and quotes of their own
    svg = re.sub(r"<g></g>|<g/>|<defs></defs>|<defs/>", "", svg)
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg)
    return (
        f'<svg role="img" aria-label="{html.escape(alt)}" style="width:100%;max-width:{pixels}px;--natural:{pixels}px" '
        f'font-family="system-ui, sans-serif" stroke-linejoin="round"{svg.removeprefix("<svg").rstrip()}\n'
    )


def legend(figure: Figure, handles: Sequence[Any], names: Sequence[str], room: int = 100) -> None:
    """Above the plot, in as many columns as ``room`` letters allow."""
    # A leading underscore would hide the entry.
    labels = [f"\u200b{name}" if name.startswith("_") else name for name in names]
    columns = max(1, min(len(names), room // (max(map(len, names), default=1) + 6)))
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, handlelength=1.4)


def robust_axis(axes: Any, values: Any) -> bool:
    """A logarithmic axis where one value would flatten all others; whether it is one."""
    there = np.abs(np.asarray(values, dtype=float))
    there = there[np.isfinite(there) & (there > 0)]
    if not len(there) or there.max() < EXPLODED * np.median(there):
        return False
    if np.nanmin(np.asarray(values, dtype=float)) > 0:
        axes.set_yscale("log")
    else:
        axes.set_yscale("symlog", linthresh=np.median(there))
    axes.yaxis.set_major_formatter("{x:g}")  # its own are mathematics, which our texts are not
    axes.yaxis.set_minor_formatter("")
    return True


def thinned(x: Any, y: Any, limit: int = 150) -> tuple[np.ndarray, np.ndarray]:
    """At most ``limit`` points: means of neighbouring ones."""
    xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(xs) <= limit:
        return xs, ys
    parts = [np.array([part.mean() for part in np.array_split(v, limit)]) for v in (xs, ys)]
    return parts[0], parts[1]
