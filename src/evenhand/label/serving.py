"""From picks.csv to labels.csv by way of the browser."""

from __future__ import annotations

import shlex
import webbrowser
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from evenhand import locks
from evenhand.data.labels import read_answers
from evenhand.data.picks import read_facts
from evenhand.data.sources.paths import few
from evenhand.errors import UserError
from evenhand.label.answers import Answers, summary
from evenhand.label.journal import Journal
from evenhand.label.picks import read_picks


def serve(
    picks: Path,
    out: Path,
    *,
    pool: Path | None = None,
    port: int = 0,
    needed: int = 1,
    classes: Sequence[str] = (),
    new_classes: bool = False,
    browser: bool = True,
) -> None:
    """Serve the page until it is interrupted; ``out`` is written from the journal at the start and at the end."""
    try:
        import uvicorn

        from evenhand.label.server import HOST, listening_socket, new_token, page_app
    except ImportError as error:
        raise UserError(f'the labelling page needs {error.name}: pip install "evenhand[label]"') from error
    found = read_picks(picks, pool)
    found = replace(found, classes=tuple(dict.fromkeys((*found.classes, *classes))))
    if not found.classes and not new_classes:
        raise UserError("these picks name no classes: give some with --class, or let labellers add them: --new-classes")
    if found.gone:
        print(f"{len(found.gone)} of {len(found.rows)} files are gone and can only be skipped: {few(found.gone)}")
    if found.outside:
        told = f"{len(found.outside)} of {len(found.rows)} images are not inside {found.pool} and are not shown"
        print(f"{told}: {few(found.outside)}; name their folder with --pool")
    journal_path = out.with_suffix(".journal.jsonl")
    with locks.held(journal_path, wait=False, other="--out"):
        journal = Journal(journal_path)
        answers = Answers(found, journal, needed=needed, new_classes=new_classes)

        def finish() -> str:
            answers.write(out)
            return str(out)

        _spare_foreign(out, journal)
        finish()
        listening, token = listening_socket(port), new_token()
        port = listening.getsockname()[1]
        address = f"http://{HOST}:{port}/?token={token}"
        print(
            f"{summary(answers)}\n{address}\nCtrl-C ends; every answer is saved at once in {journal_path}", flush=True
        )
        if browser:
            webbrowser.open(address)
        settings = uvicorn.Config(
            page_app(answers, token, port, finish), log_level="error", access_log=False, server_header=False
        )
        try:
            uvicorn.Server(settings).run(sockets=[listening])
        except KeyboardInterrupt:
            pass
        finally:
            finish()
            journal.close()
    print(f"{summary(answers)}: {out}{closing(picks, out)}")


def closing(picks: Path, out: Path) -> str:
    """How to train with the answers: the run again, where ``select`` could tell; after a cold start a first model."""
    about = read_facts(picks)
    if isinstance(about.get("train_with"), list):
        told = [f"data.labels={out}", *about["train_with"], f"run.folder={about['run']}-labelled"]
        words = ["evenhand", "train", str(Path(about["run"]) / "recipe.toml")]
        return f"\ntrain with them: {shlex.join([*words, *(word for one in told for word in ('--set', one))])}"
    if about.get("run") == "" and about.get("pool"):
        table = str(out.with_name("labelled.csv"))
        first = shlex.join(["evenhand", "labels", "data", str(out), str(about["pool"]), table])
        return f"\ntrain a first model with them: {first} && {shlex.join(['evenhand', 'train', table])}"
    return ""


def _spare_foreign(out: Path, journal: Journal) -> None:
    """Refuse to write over labels that came another way, by ``labels import`` or by hand."""
    asked = {event.get("name") for event in journal.events}
    there = read_answers(out) if out.is_file() else []
    if foreign := [answer.name for answer in there if answer.name not in asked]:
        raise UserError(f"{out} has labels that were not given here ({few(foreign)}): move it, or name another --out")
