"""What every test has: one thread, a data folder of its own, and a way to run a script as two processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import hypothesis
import pytest
import torch

from evenhand.errors import UserError
from evenhand.process import keep_freed

Spawn = Callable[..., Path]
# The script, then an end at once: how libraries bear the closing of an interpreter is for the command line's tests.
WHOLE = """
import os, runpy, sys
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
sys.stdout.flush()
os._exit(0)
"""

torch.set_num_threads(1)
keep_freed()
hypothesis.settings.register_profile("calm", deadline=None)  # a busy machine is no fault of the code
hypothesis.settings.load_profile("calm")


@pytest.fixture(scope="session", autouse=True)
def own_data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Neither the user's cache nor the network can serve a test by accident."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVENHAND_DATA", str(tmp_path_factory.mktemp("evenhand-data")))
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("npm_config_offline", "true")
        yield


@pytest.fixture
def global_randomness_untouched() -> Iterator[None]:
    """Nothing here may draw from torch's global generator or reseed it."""
    before = torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), before), "the global torch generator was used"


@pytest.fixture(scope="session")
def tv() -> ModuleType:
    """torchvision with its operations; where it cannot be had, what needs it is skipped and says so."""
    from evenhand.nets.detection.torchvision import torchvision

    try:
        return torchvision()
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Spawn:
    """``two_processes(script, *arguments)`` runs a Python file twice, as torchrun would on one machine.

    Its first argument is a new folder, which is returned when both have ended well.
    """

    def spawn(script: str | Path, *arguments: object) -> Path:
        folder = tmp_path_factory.mktemp("two-processes")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", WHOLE, str(script), str(folder), *map(str, arguments)]
        running = [
            subprocess.Popen(
                command, env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for rank in range(2)
        ]  # fmt: skip
        try:
            said = [process.communicate(timeout=600)[0] for process in running]
        finally:
            for process in running:
                process.kill()
        for rank, process in enumerate(running):
            assert process.returncode == 0, f"rank {rank} failed:\n{said[rank]}"
        return folder

    return spawn
