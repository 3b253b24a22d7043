"""``evenhand attention``: what the tokens of a vision transformer do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def attention(
    run: Annotated[Path, typer.Argument(help="The folder of a run with a vision transformer.")],
    class_: Annotated[list[str] | None, typer.Option("--class", help="Rare class, repeatable. Default: tail.")] = None,
    checkpoints: Annotated[bool, typer.Option(help="Every checkpoint that run.keep_every kept.")] = False,
    max_samples: Annotated[int, typer.Option(min=2, help="At most that many images of each kind.")] = 256,
    pictures: Annotated[int, typer.Option(min=0, help="Images with attention rollouts; 0: none.")] = 6,
    thesis_centring: Annotated[
        bool, typer.Option("--thesis-centring", help="Of ranks: centre the features of all classes only.")
    ] = False,
) -> None:
    """Where a transformer looks: attention distance, token ranks, CLS against DIST, rollouts, the teacher's entropy."""
    from evenhand.run.attention import study

    study(
        run, classes=class_, every_checkpoint=checkpoints, max_samples=max_samples, pictures=pictures,
        centre_both=not thesis_centring,
    )  # fmt: skip
