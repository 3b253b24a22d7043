"""Memory and threads of a process: page faults are counted, the wait of threads is looked up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evenhand.process import OWN, wait_politely

PROGRAM = """
import resource, sys, torch
from evenhand.process import keep_freed
if sys.argv[1] == "keep" and not keep_freed():
    sys.exit(3)
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(30):
    torch.ones(1 << 24)
before = faults()
for _ in range(10):
    torch.ones(1 << 24)
print(faults() - before)
"""


@pytest.fixture
def clean_env() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in OWN}


def faults_of(how: str, env: dict[str, str]) -> int | None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, env=env)
    return None if done.returncode == 3 else int(done.stdout)


def test_large_blocks_are_used_again(clean_env: dict[str, str]) -> None:
    kept, plain = faults_of("keep", clean_env), faults_of("plain", clean_env)
    if kept is None:
        pytest.skip("this system's C library has no mallopt")
    assert plain is not None
    assert plain > 10_000  # ten times 64 MB in pages of 4 kB
    assert kept < 1_000


def test_an_allocator_of_ones_own_is_left_alone(clean_env: dict[str, str]) -> None:
    assert faults_of("keep", clean_env | {"MALLOC_TOP_PAD_": "0"}) is None


@pytest.mark.parametrize(
    ("chosen", "found"),
    [({}, "10000"), ({"OMP_WAIT_POLICY": "active"}, None), ({"GOMP_SPINCOUNT": "7"}, "7")],
)
def test_waiting_threads_sleep_soon_unless_told(
    chosen: dict[str, str], found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    wait_politely()
    assert os.environ.get("GOMP_SPINCOUNT") == found
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)


def test_the_command_line_sets_both_before_torch_comes(clean_env: dict[str, str]) -> None:
    program = """
import sys
import evenhand.cli, evenhand.process as process
seen = []
process.wait_politely = lambda: seen.append("torch" in sys.modules)
process.keep_freed = lambda: seen.append("kept")
sys.argv = ["evenhand", "--version"]
try:
    evenhand.cli.main()
finally:
    print(seen)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=clean_env, check=True)
    assert done.stdout.splitlines()[-1] == "[False, 'kept']"


def test_workers_end_with_whoever_started_them(tmp_path: Path, clean_env: dict[str, str]) -> None:
    """A killed command must not leave trainings behind, which would go on with what is queued."""
    (tmp_path / "job.py").write_text("import time\ndef job(name):\n    print(name, flush=True)\n    time.sleep(20)\n")
    (tmp_path / "owner.py").write_text(
        "from evenhand.process import workers\n"
        "from job import job\n"
        "if __name__ == '__main__':\n"
        "    with workers(1) as pool:\n"
        "        pool.submit(job, 'first'), pool.submit(job, 'second')\n"
    )
    command = [sys.executable, "owner.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=clean_env, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "first\n"
        owner.kill()
        assert owner.communicate(timeout=15)[0] == ""  # which waits until all who could write have ended
