"""Freed memory is kept: large tensors are not paid for in page faults again and again."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from evenhand.memory import OWN

PROGRAM = """
import resource, sys, torch
from evenhand.memory import keep_freed
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
