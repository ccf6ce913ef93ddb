"""Models keep CORDS' contract, Opacus' and ours; scattering features are those of kymatio and cached."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cords_dp.datasets import ArrayDataset
from cords_dp.errors import ConfigError
from cords_dp.models import build_model, make_private_ready, model_names, with_features
from cords_dp.models.scattering import GROUPS, Scattering


def config(name, dataset="cifar10", **section):
    return {"model": {"architecture": name, "numclasses": 10, **section}, "dataset": {"name": dataset}}


@pytest.mark.parametrize(
    ("name", "dataset", "shape"),
    [
        ("MnistNet", "mnist", (1, 28, 28)),
        ("ResNet18", "cifar10", (3, 32, 32)),
        ("MobileNetV2", "cifar10", (3, 32, 32)),
        ("TwoLayerNet", "digits", (64,)),
        ("ThreeLayerNet", "digits", (64,)),
        ("LogisticRegNet", "synthetic", (10,)),
        ("ScatterLinear", "mnist", (1, 28, 28)),
        ("ScatterCNN", "cifar10", (3, 32, 32)),
    ],
)
def test_the_contract_of_cords(name, dataset, shape):
    model, _ = make_private_ready(build_model(config(name, dataset), seed=0))
    out, embedding = model.eval()(torch.randn(2, *shape), last=True, freeze=True)
    assert out.shape == (2, 10)
    assert embedding.shape == (2, model.get_embedding_dim())


def test_the_seed_decides_the_weights_and_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    a, b, c = (build_model(config("MnistNet", "mnist"), seed=s).fc2.weight for s in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(before, torch.get_rng_state())


def test_a_missing_argument_is_named():
    with pytest.raises(ConfigError, match=r"model\.input_dim"):
        build_model(config("ThreeLayerNet", "cifar10"), seed=0)


def test_model_names_hold_cords_and_ours():
    assert {"ResNet18", "MnistNet", "LSTM", "ScatterLinear", "ScatterCNN"} <= set(model_names())


def test_scattering_looks_at_one_image_at_a_time():
    transform = Scattering((1, 28, 28))
    images = torch.randn(4, 1, 28, 28)
    together = transform(images)
    assert together.shape == (4, 81, 7, 7)
    torch.testing.assert_close(together[2:3], transform(images[2:3]), rtol=1e-4, atol=1e-5)
    groups = together.reshape(4, GROUPS, -1)
    torch.testing.assert_close(groups.mean(dim=2), torch.zeros(4, GROUPS), atol=1e-4, rtol=0)


def test_features_are_computed_once_and_serve_every_split(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (12, 1, 28, 28), dtype=np.uint8), np.arange(12)
    transform = Scattering((1, 28, 28))
    one = ArrayDataset(x, y, (0.1,), (0.3,), rows=np.array([3, 1, 4]))
    features = with_features(one, transform, tmp_path, progress=False)
    direct = transform(one.batch([0, 1, 2])[0])
    torch.testing.assert_close(features.batch([0, 1, 2])[0], direct, atol=5e-3, rtol=5e-3)
    assert features.batch([2])[1].tolist() == [4]
    monkeypatch.setattr(Scattering, "forward", lambda *_: pytest.fail("computed again"))
    other = with_features(ArrayDataset(x, y, (0.1,), (0.3,), rows=np.array([7])), transform, tmp_path, progress=False)
    assert other.batch([0])[1].tolist() == [7]
    assert [p.suffix for p in tmp_path.iterdir()] == [".npy"]


def test_changed_records_are_computed_anew(tmp_path):
    transform = Scattering((1, 28, 28))
    for value in (0, 9):
        x = np.full((2, 1, 28, 28), value, dtype=np.uint8)
        with_features(ArrayDataset(x, np.zeros(2)), transform, tmp_path, progress=False)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_scattering_model_takes_images_or_features():
    model = build_model(config("ScatterLinear", "mnist"), seed=0)
    torch.nn.init.normal_(model.linear.weight)
    images = torch.randn(2, 1, 28, 28)
    torch.testing.assert_close(model(images), model(model.input_transform(images)))
