"""The page's server: on this machine only, for whoever has the token.

A browser proves itself by a cookie that the first address sets (``/?token=...``), a program by ``Authorization:
Bearer``. Requests that name another host are refused, so that no other site can reach the page through the browser.
"""

from __future__ import annotations

import hmac
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Path, Query, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response
from pydantic import BaseModel, ConfigDict, StringConstraints

from evenhand.data.labels import NONE
from evenhand.errors import UserError
from evenhand.label.answers import Answers
from evenhand.label.picks import Pick, shown

HOST = "127.0.0.1"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
PAGE = {"": "text/html", "page.js": "text/javascript", "page.css": "text/css"}
ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "the request is refused, with the reason"},
    401: {"description": "the token is missing or wrong"},
    404: {"description": "no such pick"},
}
Name = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Rank = Annotated[int, Path(ge=0, le=2**31)]


class Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    labeller: Name


class AnswerGiven(Asked):
    rank: int
    label: Name | None = None
    none: bool = False
    settles: bool = False


class ClassAdded(Asked):
    name: Name


def new_token() -> str:
    return secrets.token_urlsafe(24)


def listening_socket(port: int) -> socket.socket:
    """A socket on the loopback, where browsers may wait for the server already; port 0 is any free one."""
    taken = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((HOST, port))
        taken.listen()
    except (OSError, OverflowError) as error:
        taken.close()
        raise UserError(f"port {port} cannot be used ({error}); choose another with --port, or 0 for any") from error
    return taken


def page_app(answers: Answers, token: str, port: int, finish: Callable[[], str]) -> FastAPI:
    """The application; ``finish`` writes labels.csv and says where."""
    app = FastAPI(title="evenhand label", docs_url=None, redoc_url=None)
    lock = threading.Lock()  # of the answers: requests come in several threads
    by_rank = {row.rank: row for row in answers.picks.rows}
    cookie = f"evenhand-{port}"

    @app.middleware("http")
    async def guard(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        response = await _admitted(request, call)
        for name, value in HEADERS.items():
            response.headers[name] = value
        return response

    async def _admitted(request: Request, call: Callable[[Request], Awaitable[Response]]) -> Response:
        if request.headers.get("host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            return _said(400, "this page answers on this machine only")
        given = request.query_params.get("token", "")
        if request.url.path == "/" and _same(given, token):
            entered = RedirectResponse("/", status_code=303)
            entered.set_cookie(cookie, token, httponly=True, samesite="strict")
            return entered
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not (_same(bearer, token) or _same(request.cookies.get(cookie, ""), token)):
            return _said(401, "wrong or missing token: open the address that `evenhand label` printed")
        return await call(request)

    @app.exception_handler(UserError)
    async def refused(_: Request, error: UserError) -> Response:
        return _said(400, str(error))

    def pick(rank: int) -> Pick:
        if rank not in by_rank:
            raise HTTPException(404, f"no pick {rank}")
        return by_rank[rank]

    def told(row: Pick, labeller: str) -> dict[str, Any]:
        given = answers.of(row.name)
        answered = labeller in given or not labeller  # an opinion that has seen another one is worth less
        others = {who: _word(answer.label) for who, answer in given.items() if who != labeller and answered}
        mine = _word(given[labeller].label) if labeller in given else None
        return {
            "rank": row.rank,
            "name": row.name,
            "text": row.text,
            "image": row.file is not None,
            "label": row.label,
            "guesses": [
                {"name": n, "confidence": c if c == c else None} for n, c in row.guesses if n in answers.classes
            ],
            "mine": mine,
            "others": others,
        }

    def state(labeller: str) -> dict[str, Any]:
        left = answers.open_for(labeller)
        unseen = {row.rank for row in left}
        return {
            "labeller": labeller,
            "classes": answers.classes,
            "new_classes": answers.new_classes,
            "total": len(answers.picks.rows),
            "done": sum(answers.done(row.name) for row in answers.picks.rows),
            "left": len(left),
            "next": told(left[0], labeller) if left else None,
            "conflicts": [told(row, "") for row in answers.conflicts() if row.rank not in unseen],
        }

    @app.get("/api/state", responses=ERRORS)
    def read_state(labeller: Annotated[Name, Query()]) -> dict[str, Any]:
        with lock:
            return state(labeller)

    @app.get("/api/picks/{rank}", responses=ERRORS)
    def read_pick(rank: Rank, labeller: Annotated[Name, Query()]) -> dict[str, Any]:
        with lock:
            return told(pick(rank), labeller)

    @app.get("/api/images/{rank}", responses=ERRORS)
    def read_image(rank: Rank) -> Response:
        data = shown(pick(rank), answers.picks.pool)
        return Response(data, media_type="image/png" if data.startswith(b"\x89PNG") else "image/jpeg")

    @app.post("/api/answers", responses=ERRORS)
    def answer(given: AnswerGiven) -> dict[str, Any]:
        if given.none and given.label is not None:
            raise UserError("an answer is a class or none of these, not both")
        label = NONE if given.none else given.label
        with lock:
            answers.give(pick(given.rank).name, label, given.labeller, settles=given.settles)
            return state(given.labeller)

    @app.post("/api/undo", responses=ERRORS)
    def undo(given: Asked) -> dict[str, Any]:
        with lock:
            row = answers.undo(given.labeller)
            return state(given.labeller) | {"undone": None if row is None else told(row, given.labeller)}

    @app.post("/api/classes", responses=ERRORS)
    def add_class(given: ClassAdded) -> dict[str, Any]:
        with lock:
            answers.add_class(given.name)
            return state(given.labeller)

    @app.post("/api/finish", responses=ERRORS)
    def finish_(given: Asked) -> dict[str, Any]:
        with lock:
            return state(given.labeller) | {"written": finish()}

    app.get("/favicon.ico", include_in_schema=False)(lambda: Response(status_code=204))
    for name, kind in PAGE.items():
        data = (files("evenhand.label") / "page" / (name or "page.html")).read_bytes()
        app.get(f"/{name}", include_in_schema=False)(_constant(data, kind))
    return app


def _constant(data: bytes, kind: str) -> Callable[[], Response]:
    return lambda: Response(data, media_type=kind)


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _said(status: int, why: str) -> Response:
    return JSONResponse({"detail": why}, status_code=status)


def _word(label: str | None) -> str:
    """How an answer is shown."""
    return "skipped" if label is None else "none of these" if label == NONE else label
