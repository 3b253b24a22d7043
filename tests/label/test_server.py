"""The server by itself: who is let in, what it answers, and that nothing a program sends breaks it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason="the labelling page needs the extra: pip install 'evenhand[label]'")
pytest.importorskip("httpx", reason="fastapi's test client needs httpx")

from fastapi.testclient import TestClient

from evenhand import locks
from evenhand.cli import main
from evenhand.data.labels import read_answers
from evenhand.errors import UserError
from evenhand.label.answers import Answers
from evenhand.label.journal import Journal
from evenhand.label.picks import read_picks
from evenhand.label.server import listening_socket, page_app
from evenhand.label.serving import serve

TOKEN, PORT = "right-token", 4321
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def answers(picks: Path) -> Answers:
    return Answers(read_picks(picks), Journal(picks.parent / "labels.journal.jsonl"))


@pytest.fixture
def client(answers: Answers, tmp_path: Path) -> TestClient:
    def finish() -> str:
        answers.write(tmp_path / "labels.csv")
        return "labels.csv"

    return TestClient(page_app(answers, TOKEN, PORT, finish), base_url=f"http://127.0.0.1:{PORT}")


@pytest.mark.parametrize(
    "path", ["/", "/page.js", "/api/state?labeller=a", "/api/images/1", "/openapi.json", "/nothing"]
)
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"Cookie": f"evenhand-{PORT}=wrong"},
                                     {"Cookie": f"evenhand-1={TOKEN}"}])  # fmt: skip
def test_without_the_token_nothing_is_answered(client: TestClient, path: str, headers: dict[str, str]) -> None:
    answer = client.get(path, headers=headers)
    assert answer.status_code == 401
    assert "open the address" in answer.json()["detail"]


def test_the_address_with_the_token_sets_a_cookie_and_hides_it(client: TestClient) -> None:
    assert client.get("/?token=wrong").status_code == 401
    entered = client.get(f"/?token={TOKEN}", follow_redirects=False)
    assert entered.headers["location"] == "/"
    assert "HttpOnly" in entered.headers["set-cookie"]
    assert "samesite=strict" in entered.headers["set-cookie"].lower()
    assert client.get("/").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:4321", "127.0.0.1:1", "127.0.0.1"])
def test_another_host_name_is_refused(client: TestClient, host: str) -> None:
    assert client.get("/", headers=BEARER | {"Host": host}).status_code == 400


def test_every_answer_forbids_what_the_page_does_not_need(client: TestClient) -> None:
    for path, headers in (("/", BEARER), ("/api/images/1", BEARER), ("/", {})):
        found = client.get(path, headers=headers).headers
        assert "default-src 'none'" in found["content-security-policy"]
        assert found["x-content-type-options"] == "nosniff"
        assert found["cache-control"] == "no-store"


def test_the_page_asks_for_nothing_from_elsewhere(client: TestClient) -> None:
    for path in ("/", "/page.js", "/page.css"):
        text = client.get(path, headers=BEARER).text
        assert "http://" not in text
        assert "https://" not in text
        assert "//cdn" not in text


def test_answers_undo_and_finish(client: TestClient, tmp_path: Path) -> None:
    client.headers.update(BEARER)
    state = client.get("/api/state", params={"labeller": "ann"}).json()
    assert state["next"]["rank"] == 1
    assert state["next"]["guesses"] == [{"name": "lynx", "confidence": 0.6}, {"name": "otter", "confidence": 0.25}]
    state = client.post("/api/answers", json={"rank": 1, "label": "sable", "labeller": "ann"}).json()
    assert (state["done"], state["left"], state["next"]["rank"]) == (1, 9, 2)
    client.post("/api/answers", json={"rank": 2, "none": True, "labeller": "ann"})
    client.post("/api/answers", json={"rank": 3, "labeller": "ann"})
    assert client.post("/api/undo", json={"labeller": "ann"}).json()["undone"]["rank"] == 3
    client.post("/api/finish", json={"labeller": "ann"})
    assert [row.label for row in read_answers(tmp_path / "labels.csv")] == ["sable", "#none"]
    shown = client.get("/api/images/1")
    assert shown.headers["content-type"] == "image/png"


def test_conflicts_are_shown_and_settled(client: TestClient, answers: Answers) -> None:
    client.headers.update(BEARER)
    client.post("/api/answers", json={"rank": 1, "label": "lynx", "labeller": "ann"})
    state = client.post("/api/answers", json={"rank": 1, "label": "otter", "labeller": "ben"}).json()
    assert state["conflicts"][0]["others"] == {"ann": "lynx", "ben": "otter"}
    told = {"rank": 1, "label": "lynx", "labeller": "ann", "settles": True}
    assert client.post("/api/answers", json=told).json()["conflicts"] == []
    assert [row.label for row in answers.rows()] == ["lynx"]


def test_what_others_say_is_hidden_until_one_has_answered(client: TestClient, answers: Answers) -> None:
    client.headers.update(BEARER)
    answers.needed = 3
    client.post("/api/answers", json={"rank": 1, "label": "lynx", "labeller": "ann"})
    state = client.get("/api/state", params={"labeller": "ben"}).json()
    assert (state["next"]["rank"], state["next"]["others"]) == (1, {})
    assert client.get("/api/picks/1", params={"labeller": "ben"}).json()["others"] == {}
    state = client.post("/api/answers", json={"rank": 1, "label": "otter", "labeller": "ben"}).json()
    assert state["conflicts"][0]["others"] == {"ann": "lynx", "ben": "otter"}
    assert client.get("/api/picks/1", params={"labeller": "ben"}).json()["others"] == {"ann": "lynx"}
    assert client.get("/api/state", params={"labeller": "eve"}).json()["conflicts"] == []  # she has yet to answer
    undone = client.post("/api/undo", json={"labeller": "ben"}).json()["undone"]
    assert undone["others"] == {}


@pytest.mark.parametrize(("path", "body", "status"), [
    ("/api/answers", {"rank": 1, "label": "zebra", "labeller": "a"}, 400),
    ("/api/answers", {"rank": 1, "label": "lynx", "none": True, "labeller": "a"}, 400),
    ("/api/answers", {"rank": 1, "settles": True, "labeller": "a"}, 400),
    ("/api/answers", {"rank": 99, "label": "lynx", "labeller": "a"}, 404),
    ("/api/answers", {"rank": 1, "label": "lynx"}, 422),
    ("/api/answers", {"rank": 1, "label": "lynx", "labeller": "a\n"}, 422),
    ("/api/answers", {"rank": 1, "label": "lynx", "labeller": "a", "time": "now"}, 422),
    ("/api/classes", {"name": "zebra", "labeller": "a"}, 400),
])  # fmt: skip
def test_bad_requests_keep_nothing(client: TestClient, answers: Answers, path: str, body: dict, status: int) -> None:
    assert client.post(path, json=body, headers=BEARER).status_code == status
    assert answers.journal.path.read_bytes() == b""


def test_fuzzed_from_its_own_description(client: TestClient, picks: Path) -> None:
    schemathesis = pytest.importorskip("schemathesis", reason="fuzzing needs schemathesis")
    from hypothesis import HealthCheck, Phase, given, settings

    how = settings(max_examples=15, deadline=None, derandomize=True, database=None,
                   suppress_health_check=list(HealthCheck), phases=[Phase.explicit, Phase.generate])  # fmt: skip
    schema = schemathesis.openapi.from_dict(client.get("/openapi.json", headers=BEARER).json())
    tried = 0
    for found in schema.get_all_operations():
        operation = found.ok()

        @how
        @given(case=operation.as_strategy())
        def fuzz(case) -> None:
            nonlocal tried
            tried += 1
            sent = case.as_transport_kwargs(base_url=f"http://127.0.0.1:{PORT}")
            kept = {key: sent[key] for key in ("method", "url", "params", "json", "content", "data") if key in sent}
            answer = client.request(**kept, headers=BEARER)
            assert answer.status_code in (200, 400, 401, 404, 405, 422), (case, answer.text)

        fuzz()
    assert tried >= 50
    Answers(read_picks(picks), Journal(picks.parent / "labels.journal.jsonl"))  # whatever was kept can be read again


# starting


def test_a_port_in_use_and_a_journal_in_use_are_one_line(picks: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} cannot be used.*--port"):
            serve(picks, picks.with_name("labels.csv"), port=port, browser=False)
    with (
        locks.held(picks.with_name("labels.journal.jsonl"), wait=False),
        pytest.raises(UserError, match=r"in use.*--out"),
    ):
        serve(picks, picks.with_name("labels.csv"), browser=False)


def test_labels_that_came_another_way_are_not_written_over(picks: Path) -> None:
    labels = picks.with_name("labels.csv")
    labels.write_text(kept := "name,label\nimported.png,lynx\n")
    with pytest.raises(UserError, match=r"labels that were not given here \(imported\.png\): move it, or .*--out"):
        serve(picks, labels, browser=False)
    assert labels.read_text() == kept


def test_only_this_machine_can_connect() -> None:
    listening = listening_socket(0)
    assert listening.getsockname()[0] == "127.0.0.1"
    socket.create_connection(listening.getsockname(), timeout=5).close()  # whoever opens the address at once may wait
    listening.close()


def test_picks_without_classes_need_some(picks: Path) -> None:
    picks.with_suffix(".json").write_text("{}")
    with pytest.raises(UserError, match="--new-classes"):
        serve(picks, picks.with_name("labels.csv"), browser=False)


def test_the_command_names_what_is_missing(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["evenhand", "label", str(tmp_path / "none.csv"), "--no-browser"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "no file" in capsys.readouterr().err
