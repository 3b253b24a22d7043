"""The command line. Torch is imported inside commands, so that ``--help`` answers at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from evenhand import __version__
from evenhand.cli import attention, data, exporting, label_page, labelling, listing, predicting, recipes, runs, training


def _say_version(asked: bool) -> None:
    if asked:
        print(f"evenhand {__version__}")
        raise typer.Exit


app = typer.Typer(
    help="Even-handed models from uneven data: rare classes, few labels, other domains.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(data.app, name="data")
app.command("list")(listing.list_)
app.command()(data.look)
app.command()(recipes.show)
app.command()(recipes.copy)
app.command()(recipes.check)
app.command()(training.train)
app.command()(runs.measure)
app.command()(predicting.predict)
app.command()(exporting.export)
app.command()(runs.sample)
app.command()(runs.synthetic)
app.command()(training.reproduce)
app.command()(labelling.select)
app.command()(label_page.label)
app.command()(labelling.cycles)
app.add_typer(labelling.labels_app, name="labels")
app.command()(runs.report)
app.command()(runs.hessian)
app.command()(attention.attention)
app.command()(training.demo)


@app.callback()
def _whole(
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_say_version, help="Say it.")] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2."""
    from evenhand.errors import UserError, beyond_memory, plain_warnings
    from evenhand.process import keep_freed, wait_politely

    wait_politely()
    keep_freed()
    if Path(sys.argv[0]).name == "__main__.py":  # python -m evenhand: runs and tables record what can be typed again
        sys.argv[0] = "evenhand"
    try:
        with plain_warnings():
            app()
    except UserError as error:
        print(f"evenhand: {error}", file=sys.stderr)
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not beyond_memory(error):
            raise
        fewer = "take fewer at a time where the command has --batch"
        gpu = "keep off the GPU by CUDA_VISIBLE_DEVICES= before the command"
        print(f"evenhand: this does not fit into memory; {fewer}, or {gpu}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        where = f"'{error.filename}' ({error.strerror})" if error.filename else ""
        told = f"cannot use {where}; see that it may be read and written, or choose another place" if where else error
        print(f"evenhand: {told}", file=sys.stderr)
        sys.exit(2)
