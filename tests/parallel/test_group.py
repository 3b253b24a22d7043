"""Two processes that wait for each other: the agreed stop, and the machine's first.

Run as a script this file is one of the two processes.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from evenhand import parallel
from evenhand.parallel import group


def stopped(every: int) -> dict[str, Any]:
    """The second process is asked in its 13th step."""
    asked, plain = [], group.any_process
    group.any_process = lambda flag: asked.append(flag) or plain(flag)  # type: ignore[func-returns-value]
    try:
        agreed = [s for s in range(1, 31) if parallel.agreed_stop(parallel.rank() == 1 and s >= 13, s, every)]
    finally:
        group.any_process = plain
    return {"first": agreed[0], "messages": len(asked)}


def fetched(file: Path, *, fails: bool = False) -> dict[str, Any]:
    """Who finds the file on coming in; the first process takes its time to write it, or fails after that."""
    found: dict[str, Any] = {"failed": False}
    try:
        with parallel.first_on_machine():
            found["there"] = file.exists()
            with parallel.first_on_machine():
                time.sleep(0.3 if parallel.rank() == 0 else 0)
            if parallel.rank() == 0:
                time.sleep(0.3)
                file.write_text("")
                if fails:
                    raise OSError("no network")
    except OSError:
        found["failed"] = True
    return found


def native_threads() -> int:
    """Those of the groups among them, which Python does not know of."""
    return len(list(Path("/proc/self/task").glob("*"))) if Path("/proc/self/task").is_dir() else -parallel.world()


def main(folder: Path) -> None:
    parallel.start(torch.device("cpu"))
    found = {
        "every": {every: stopped(every) for every in (1, 10)},
        "fetched": fetched(folder / "a"),
        "failed": fetched(folder / "b", fails=True),
        "again": fetched(folder / "c"),
    }
    rank, threads = parallel.rank(), native_threads()
    parallel.stop()
    found["left"] = {"world": parallel.world(), "kept": group.patient_group.cache_info().currsize}
    found["fewer threads"] = native_threads() < threads
    (folder / f"{rank}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def both(two_processes: Any) -> list[dict[str, Any]]:
    folder = two_processes(__file__)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize(("every", "step", "messages"), [(1, 13, 30), (10, 20, 3)])
def test_all_processes_stop_at_the_same_step(both: list[Any], every: int, step: int, messages: int) -> None:
    assert [found["every"][str(every)] for found in both] == [{"first": step, "messages": messages}] * 2


def test_after_stop_no_group_is_left_to_meet_the_end_of_the_interpreter(both: list[Any]) -> None:
    assert [found["left"] for found in both] == [{"world": 1, "kept": 0}] * 2
    assert all(found["fewer threads"] for found in both)


def test_alone_a_stop_is_at_once() -> None:
    assert [s for s in range(30) if parallel.agreed_stop(s == 13, s)] == [13]


@pytest.mark.parametrize("case", ["fetched", "again"])
def test_the_first_on_a_machine_goes_in_alone(both: list[Any], case: str) -> None:
    assert [found[case] for found in both] == [{"failed": False, "there": there} for there in (False, True)]


def test_if_the_first_fails_the_others_try_for_themselves(both: list[Any]) -> None:
    assert [found["failed"] for found in both] == [{"failed": True, "there": False}, {"failed": False, "there": True}]


def test_alone_one_goes_straight_in(tmp_path: Path) -> None:
    assert not fetched(tmp_path / "a")["there"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
