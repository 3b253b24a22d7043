"""``evenhand export``: a run as a file for other programs."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    onnx = "onnx"
    torch = "torch"
    safetensors = "safetensors"


def export(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    format_: Annotated[
        Format, typer.Option("--format", help="onnx: any runtime; torch: torch.export; safetensors: weights alone.")
    ] = Format.onnx,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder. Default: export in the run's.")] = None,
) -> None:
    """One file from framed samples to calibrated probabilities, and a model card in Markdown."""
    from evenhand.run.exporting import export as export_run

    path = export_run(run, format=format_.value, out=out)
    print(f"{path}   about it: {path.with_name('MODEL-CARD.md')}")
