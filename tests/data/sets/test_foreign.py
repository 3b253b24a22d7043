"""Other programs' weight files, made small: read without executing anything, named as torchvision has it, checked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from evenhand.data.sets import catalogue
from evenhand.data.sets.catalogue import DATASETS, digest_of, obtain_weights
from evenhand.data.sets.foreign import caffe_resnet, folded_resnet, onnx_tensors, tfjs_tensors
from evenhand.errors import UserError
from evenhand.nets import build_net


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def write_tfjs(folder: Path, arrays: dict[str, np.ndarray]) -> Path:
    """In two shards that cut an array in the middle."""
    folder.mkdir(parents=True)
    content = b"".join(array.astype("<f4").tobytes() for array in arrays.values())
    middle = len(content) // 2 + 2
    (folder / "a.bin").write_bytes(content[:middle])
    (folder / "b.bin").write_bytes(content[middle:])
    weights = [{"name": n, "shape": list(a.shape), "dtype": "float32"} for n, a in arrays.items()]
    manifest = [{"paths": ["a.bin", "b.bin"], "weights": weights}]
    (folder / "model.json").write_text(json.dumps({"weightsManifest": manifest}))
    return folder / "model.json"


def write_onnx(path: Path, tensors: dict[str, np.ndarray], *, beside: bool) -> Path:
    onnx = pytest.importorskip("onnx", reason="needs the extra 'export'")
    initialisers = [onnx.numpy_helper.from_array(value, name) for name, value in tensors.items()]
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    ends = [onnx.helper.make_tensor_value_info(name, 1, [1]) for name in ("x", "y")]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", ends[:1], ends[1:], initialisers))
    path.parent.mkdir(parents=True, exist_ok=True)
    more = {"save_as_external_data": True, "location": f"{path.name}.data", "size_threshold": 0} if beside else {}
    onnx.save_model(model, path, **more)
    return path


@pytest.mark.parametrize("beside", [False, True], ids=["inside", "beside"])
def test_onnx_initialisers(tmp_path: Path, beside: bool) -> None:
    tensors = {"conv1.weight": floats(4, 3, 300), "conv1.weight_bias": floats(4, seed=1), "one": floats(1)}
    path = write_onnx(tmp_path / "m.onnx", {**tensors, "axes": np.array([2, 3], np.int64)}, beside=beside)
    found = onnx_tensors(path)
    assert found.keys() == tensors.keys()
    assert all(np.array_equal(found[name].numpy(), value) for name, value in tensors.items())


def test_an_onnx_file_that_points_elsewhere_is_refused(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "m.onnx", {"w": floats(4)}, beside=True)
    path.write_bytes(path.read_bytes().replace(b"m.onnx.data", b"../nnx.data"))
    with pytest.raises(UserError, match=r"points to data elsewhere \('../nnx.data'\)"):
        onnx_tensors(path)


def test_folded_names_are_those_of_the_network(tmp_path: Path) -> None:
    tensors = {"conv1.weight": floats(4, 3, 7, 7), "conv1.weight_bias": floats(4), "val_230": floats(1)}
    write_onnx(tmp_path / "x" / "resnet18.onnx", tensors, beside=True)
    found = folded_resnet(tmp_path)
    assert set(found) == {"conv1.weight", "conv1.bias"}
    assert set(found) <= set(build_net("resnet18-folded", num_classes=2, width=8).state_dict())


def test_tfjs_shards(tmp_path: Path) -> None:
    arrays = {"a": floats(3, 2), "b": floats(5, seed=1)}
    found = tfjs_tensors(write_tfjs(tmp_path / "m", arrays))
    assert all(np.array_equal(found[name], value) for name, value in arrays.items())
    text = (tmp_path / "m" / "model.json").read_text().replace('"float32"}', '"float32", "quantization": {}}', 1)
    (tmp_path / "m" / "model.json").write_text(text)
    with pytest.raises(UserError, match="a is not plain float32"):
        tfjs_tensors(tmp_path / "m" / "model.json")


def keras_resnet(width: int = 2, classes: int = 3) -> dict[str, np.ndarray]:
    """All layers of Keras's ResNet-50, narrow."""
    arrays: dict[str, np.ndarray] = {}

    def layer(name: str, norm: str, *shape: int) -> None:
        arrays[f"{name}/kernel"], arrays[f"{name}/bias"] = floats(*shape, seed=len(arrays)), floats(shape[-1], seed=7)
        for part in ("gamma", "beta", "moving_mean", "moving_variance"):
            arrays[f"{norm}/{part}"] = np.abs(floats(shape[-1], seed=len(arrays))) + 0.1

    layer("conv1", "bn_conv1", 7, 7, 3, width)
    inputs = width
    for stage, blocks in zip((2, 3, 4, 5), (3, 4, 6, 3), strict=True):
        planes = width * 2 ** (stage - 2)
        for block in "abcdef"[:blocks]:
            place = f"{stage}{block}_branch"
            layer(f"res{place}2a", f"bn{place}2a", 1, 1, inputs, planes)
            layer(f"res{place}2b", f"bn{place}2b", 3, 3, planes, planes)
            layer(f"res{place}2c", f"bn{place}2c", 1, 1, planes, 4 * planes)
            if block == "a":
                layer(f"res{place}1", f"bn{place}1", 1, 1, inputs, 4 * planes)
            inputs = 4 * planes
    arrays["fc1000/kernel"], arrays["fc1000/bias"] = floats(inputs, classes), floats(classes)
    return arrays


def test_keras_layers_find_their_places(tmp_path: Path) -> None:
    arrays = keras_resnet()
    write_tfjs(tmp_path / "ResNet50", arrays)
    state = caffe_resnet(tmp_path)
    net = build_net("resnet50-caffe", num_classes=3, width=2)
    own = {name for name in net.state_dict() if not name.endswith("num_batches_tracked")}
    assert state.keys() == own
    net.load_state_dict(state, strict=False)
    conv, norm = net.layer2[1].conv2, net.layer2[1].bn2  # type: ignore[union-attr, index]
    assert np.array_equal(conv.weight.detach().numpy()[1, 0], arrays["res3b_branch2b/kernel"][:, :, 0, 1])
    # A convolution's bias before BatchNorm: the same value either way.
    x = torch.randn(1, 4, 1, 1, dtype=torch.float64)
    bias, mean, var, gamma, beta = (
        torch.from_numpy(arrays[key].astype(np.float64)).view(1, -1, 1, 1)
        for key in (
            "res3b_branch2b/bias", "bn3b_branch2b/moving_mean", "bn3b_branch2b/moving_variance",
            "bn3b_branch2b/gamma", "bn3b_branch2b/beta",
        )
    )  # fmt: skip
    expected = (x + bias - mean) / (var + 1e-3).sqrt() * gamma + beta
    torch.testing.assert_close(norm.double().eval()(x), expected, atol=1e-5, rtol=1e-5)
    head = arrays["fc1000/kernel"]
    assert np.array_equal(net.head.weight.detach().numpy(), head.T)


def test_another_networks_file_is_told(tmp_path: Path) -> None:
    write_tfjs(tmp_path / "ResNet50", {"res9z_branch2a/kernel": floats(1, 1, 2, 2)})
    with pytest.raises(UserError, match="a ResNet has no layer '9z_branch2a'"):
        caffe_resnet(tmp_path)


def test_converted_once_and_checked_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENHAND_DATA", str(tmp_path))
    made: list[int] = []
    tensors = {"conv1.weight": torch.ones(2, 3)}
    row = replace(DATASETS["resnet18"], convert=lambda _: (made.append(1), tensors)[1], digest=digest_of(tensors))
    monkeypatch.setitem(DATASETS, "resnet18", row)
    monkeypatch.setattr(catalogue, "obtain", lambda *_, **__: tmp_path)
    path = obtain_weights("resnet18")
    assert obtain_weights("resnet18") == path
    assert path.suffix == ".safetensors"
    assert len(made) == 1
    tensors["conv1.weight"] = torch.zeros(2, 3)
    path.unlink()
    with pytest.raises(UserError, match=r"the tensors of 'resnet18' have digest .*delete .*resnet18-"):
        obtain_weights("resnet18")


def test_a_digest_knows_names_shapes_and_values() -> None:
    one = {"a": torch.arange(6.0)}
    others = [{"b": torch.arange(6.0)}, {"a": torch.arange(6.0).view(2, 3)}, {"a": torch.arange(6.0) + 1}]
    assert digest_of(one) == digest_of(dict(one))
    assert len({digest_of(state) for state in [one, *others]}) == 4
