"""Frozen features: a row depends on its record alone; heads train on them; caches are private, bounded and true."""

from __future__ import annotations

import stat

import numpy as np
import pytest
import torch
from builders import guarded
from torch import nn
from torch.utils.data import Dataset

from cords_dp.data.feature_cache import with_features
from cords_dp.data.record_set import ClassTarget, array_set
from cords_dp.data.sources.texts import TextRecords, decode_text, encode_texts
from cords_dp.data.store import PixelConstants
from cords_dp.errors import ConfigError, MechanismError, UnsupportedModelError
from cords_dp.models.backbones import _prepared, build_features
from cords_dp.models.build import build_model
from cords_dp.models.features import register_features, registered_features, unit_mean_square
from cords_dp.training.step import PrivateEngine

SHAPE = (3, 16, 16)
CE = nn.CrossEntropyLoss(reduction="none")


class SmallNet(nn.Module):
    """Everything that behaves otherwise in training: BatchNorm and dropout."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(torch.relu(self.norm(self.conv(x)))).mean(dim=(2, 3))


def seeded(build):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build()


@pytest.fixture
def registered(monkeypatch):
    """Features of the test's own, forgotten afterwards."""
    monkeypatch.setattr("cords_dp.models.features._REGISTERED", dict(registered_features()))
    register_features("small", lambda input_shape: seeded(SmallNet))
    register_features("hides", lambda input_shape: lambda x: torch.nan_to_num(x.flatten(1), nan=1.0, posinf=1.0))


@pytest.fixture(scope="module")
def resnet_file(tmp_path_factory):
    """Made-up weights of torchvision's ResNet18, with statistics that are not those of any batch."""
    from torchvision.models import resnet18

    network = seeded(resnet18)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.fill_(0.1)
            layer.running_var.fill_(0.5)
    path = tmp_path_factory.mktemp("weights") / "resnet18.pth"
    torch.save(network.state_dict(), path)
    return path


def section_for(name, resnet_file):
    return {"features": name, "weights": str(resnet_file) if name.startswith("torchvision") else None}


def head(name, dataset="cifar10", **section):
    config = {"model": {"architecture": name, "numclasses": 10, **section}, "dataset": {"name": dataset}}
    return build_model(config, seed=0)


@pytest.mark.parametrize("name", ["scattering", "torchvision:resnet18", "small"])
def test_a_row_depends_on_its_record_alone(name, registered, resnet_file):
    """Bit for bit in a batch of the same size, whatever the other records are; and alone up to rounding."""
    features = build_features(section_for(name, resnet_file), SHAPE, None)
    generator = torch.Generator().manual_seed(1)
    one, other = torch.randn(2, 3, *SHAPE, generator=generator)
    changed = torch.cat([one[:1], 100 * other[1:2], torch.full_like(one[2:], torch.nan)])
    rows = features(one)
    assert torch.equal(rows[0], features(changed)[0])
    torch.testing.assert_close(rows[:1], features(one[:1]), rtol=1e-4, atol=1e-5)
    assert not torch.equal(rows[0], rows[1])
    assert rows.shape[1:] == features.feature_shape != features.input_shape
    torch.testing.assert_close(rows.flatten(1).pow(2).mean(dim=1), torch.ones(3), rtol=1e-3, atol=0)
    assert torch.isnan(features(changed)[2]).all()


def test_a_backbone_stays_as_it_is(registered):
    """No training mode reaches it, no statistic is updated, and neither weights nor buffers are the model's."""
    model = head("LinearHead", features="small")
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    before = model.embed(images)
    model.train()
    model.double().float()
    for _ in range(3):
        model(5 + 3 * images)
    assert torch.equal(model.embed(images), before)
    assert list(model.state_dict()) == ["linear.weight", "linear.bias"]
    assert len(list(model.parameters())) == 2
    assert not list(model.buffers())


def test_what_mixes_records_is_refused(registered):
    class NoStatistics(SmallNet):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(4, track_running_stats=False)

    register_features("mixes", lambda input_shape: NoStatistics())
    register_features("centres", lambda input_shape: lambda x: x.flatten(1) - x.flatten(1).mean(dim=0))
    register_features("adds up", lambda input_shape: lambda x: x.flatten(1).sum(dim=0, keepdim=True))
    for name in ("mixes", "centres"):
        with pytest.raises(UnsupportedModelError, match="depend on the other records"):
            build_features({"features": name}, SHAPE, None)
    with pytest.raises(UnsupportedModelError, match="one row for each record"):
        build_features({"features": "adds up"}, SHAPE, None)
    with pytest.raises(UnsupportedModelError, match="cannot read records of shape"):
        build_features({"features": "small"}, (7,), None)


@pytest.mark.parametrize("name", ["hides", "small", "scattering"])
def test_no_backbone_hides_that_a_record_is_not_finite(name, registered):
    features = build_features({"features": name}, SHAPE, None)
    x = torch.randn(4, *SHAPE, generator=torch.Generator().manual_seed(0))
    x[1, 0, 0, 0], x[2, 2, 3, 3] = torch.nan, torch.inf
    assert torch.isfinite(features(x).flatten(1)).all(dim=1).tolist() == [True, False, False, True]


def test_rows_of_zeros_of_infinities_and_of_extremes():
    x = torch.tensor([[3.0, 4.0], [0, 0], [torch.nan, 1], [torch.inf, 1], [1e30, 1e30], [1e-25, 0]])
    rows = unit_mean_square(x)
    assert torch.isnan(rows).all(dim=1).tolist() == [False, False, True, True, False, False]
    torch.testing.assert_close(rows[4], torch.ones(2))
    torch.testing.assert_close(rows[5], torch.tensor([2**0.5, 0]))
    torch.testing.assert_close(rows[0], torch.tensor([3.0, 4.0]) / 12.5**0.5)
    assert rows[1].tolist() == [0, 0]


@pytest.mark.parametrize("mode", ["linear", "ghost"])
def test_a_record_that_is_not_finite_contributes_nothing_to_a_head(mode):
    def step(x, y):
        model = head("LinearHead", "digits")
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        engine = PrivateEngine(model, optimizer, CE, sigma=0.0, max_grad_norm=0.1, batch_size=4, mode=mode)
        engine.step(x, y, torch.ones(len(y)))
        return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    x, y = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)), torch.arange(3)
    bad = torch.stack([torch.full((64,), torch.nan), torch.full((64,), torch.inf), torch.zeros(64)])
    torch.testing.assert_close(step(torch.cat([x, bad[:2]]), torch.arange(5)), step(x, y))
    assert torch.isfinite(step(bad, torch.arange(3))).all()


def test_scatter_linear_is_a_case_of_it(tmp_path):
    """The same numbers from the same seed, under the same name on disk."""
    old, new = head("ScatterLinear", "mnist"), head("LinearHead", "mnist", features="scattering")
    images = torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    assert torch.equal(old.embed(images), new.embed(images))
    assert old.input_norm == new.input_norm == 63.0
    assert list(old.state_dict()) == list(new.state_dict()) == ["linear.weight", "linear.bias"]
    pixels = (np.arange(12 * 784) % 251).astype(np.uint8).reshape(12, 1, 28, 28)
    data = array_set(pixels, np.arange(12) % 10, (0.1307,), (0.3081,), rows=np.array([3, 1]))
    with_features(data, new.input_transform, tmp_path, progress=False)
    assert [path.name for path in tmp_path.glob("*.npy")] == ["scattering-38cc557d7d50e54ee282aabb.npy"]


def test_images_are_given_the_constants_that_a_backbone_knows():
    pixels = torch.rand(2, 1, 224, 224, generator=torch.Generator().manual_seed(0))
    own = (pixels - 0.3) / 0.2
    expected = (pixels.expand(-1, 3, -1, -1) - torch.tensor([0.485, 0.456, 0.406]).reshape(1, 3, 1, 1)) / torch.tensor(
        [0.229, 0.224, 0.225]
    ).reshape(1, 3, 1, 1)
    torch.testing.assert_close(_prepared(own, PixelConstants((0.3,), (0.2,))), expected, atol=1e-5, rtol=1e-5)
    assert _prepared(own[:, :, :28, :28], None).shape == (2, 3, 224, 224)


# --- what can be wrong with the keys ---------------------------------------------------------------------------------


def test_mistakes_in_the_keys_are_named(registered, resnet_file, tmp_path, monkeypatch):
    def refused(match, architecture="LinearHead", **section):
        with pytest.raises(ConfigError, match=match):
            head(architecture, **section)

    refused(r"model\.features = 'scatering'.*did you mean 'scattering'", features="scatering")
    refused(r"model\.features = 'torchvision:resnet19'.*resnet18", features="torchvision:resnet19")
    refused(r"model\.features = 'scattering': MnistNet has features of its own", "MnistNet", features="scattering")
    refused(r"model\.weights.*is the weights file of", features="scattering", weights="x.pth")
    refused(r"model\.weights.*no such file", features="torchvision:resnet18", weights=str(tmp_path / "none.pth"))
    refused(r"has no config\.json", features=f"sentence:{tmp_path}")
    (tmp_path / "junk.pth").write_bytes(b"no weights")
    refused("is no state_dict", features="torchvision:resnet18", weights=str(tmp_path / "junk.pth"))
    refused("other weights than those of", features="torchvision:resnet34", weights=str(resnet_file))
    refused("is for images", dataset="digits", features="torchvision:resnet18", weights=str(resnet_file))
    refused("is for images of at least", dataset="digits", features="scattering")

    def unreachable(*_, **__):
        raise OSError("no route to host")

    monkeypatch.setattr("torch.hub.load_state_dict_from_url", unreachable)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", unreachable)
    refused(r"model\.weights = None: .*fetch resnet18-.*\.pth elsewhere", features="torchvision:resnet18")
    with pytest.raises(MechanismError, match="already"):
        register_features("small", SmallNet)


# --- caches ----------------------------------------------------------------------------------------------------------


class Lazy(Dataset):
    """Images that are made when they are read; counts how many are read at a time and altogether."""

    def __init__(self, n, first=0, labels=None):
        self.n, self.first, self.read_at_once, self.total = n, first, 0, 0
        self.labels = torch.arange(n) % 10 if labels is None else torch.as_tensor(labels)

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return self.batch([index])[0][0], self.labels[index]

    def batch(self, indices):
        self.read_at_once, self.total = max(self.read_at_once, len(indices)), self.total + len(indices)
        seeds = torch.as_tensor(np.asarray(indices)) + self.first
        x = torch.sin(seeds.reshape(-1, 1, 1, 1) * torch.linspace(1, 9, 768).reshape(1, *SHAPE))
        return x, self.labels[torch.as_tensor(np.asarray(indices))]


def test_any_dataset_is_cached_by_content_in_bounded_memory(registered, tmp_path):
    features = build_features({"features": "small"}, SHAPE, None)
    data = Lazy(700)
    made = with_features(data, features, tmp_path / "f", progress=False)
    x, y = made.batch(np.array([699, 3]))
    torch.testing.assert_close(x, features(data.batch([699, 3])[0]), atol=2e-3, rtol=2e-3)
    assert y.tolist() == [9, 3]
    assert data.read_at_once <= 256
    assert data.total <= 2 * 700 + 2
    again = Lazy(700)
    assert torch.equal(with_features(again, features, tmp_path / "f", progress=False).batch([699, 3])[0], x)
    assert again.total == 700  # to know its content; nothing is computed
    with_features(Lazy(700, first=1), features, tmp_path / "f", progress=False)
    assert len(list((tmp_path / "f").glob("*.npy"))) == 2


def test_a_cache_is_for_its_owner_and_says_so(registered, tmp_path):
    features = build_features({"features": "small"}, SHAPE, None)
    folder = tmp_path / "f"
    folder.mkdir(mode=0o755)
    with_features(Lazy(5), features, folder, progress=False)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.glob("*.npy")} == {0o600}
    assert "private" in (folder / "README.txt").read_text()


def test_without_a_cache_nothing_is_kept(registered, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    features = build_features({"features": "small"}, SHAPE, None)
    data = Lazy(9)
    made = with_features(data, features, None, progress=False)
    assert list(tmp_path.iterdir()) == []
    torch.testing.assert_close(made.batch([8])[0], features(data.batch([8])[0]), atol=2e-3, rtol=2e-3)
    assert made.batch([8])[1].tolist() == [8]


@pytest.mark.parametrize("kept", [True, False])
def test_an_impossible_label_makes_features_void_whatever_is_cached(registered, tmp_path, kept):
    """Also where the features would hide that a record is not finite; a label that is mended counts at once."""
    features = build_features({"features": "hides"}, SHAPE, None)
    cache = tmp_path if kept else None
    labels = torch.arange(6)
    labels[2] = 77
    void = with_features(guarded(Lazy(6, labels=labels), 10), features, cache, progress=False)
    for dataset in (void, with_features(guarded(Lazy(6, labels=labels), 10), features, cache, progress=False)):
        x, y = dataset.batch(np.arange(6))
        assert torch.isnan(x).all(dim=1).tolist() == [False, False, True, False, False, False]
        assert y.tolist() == [0, 1, 0, 3, 4, 5]
    mended = with_features(guarded(Lazy(6), 10), features, cache, progress=False)
    assert torch.isfinite(mended.batch(np.arange(6))[0]).all()
    assert len(list(tmp_path.glob("*.npy"))) == (1 if kept else 0)


# --- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "args"), [("LinearHead", {}), ("MLPHead", {"width": 32})])
def test_heads_train_at_the_planned_rate(train, name, args):
    privacy = {"epsilon": 8.0, "max_grad_norm": 0.1, "grad_sample_mode": "auto"}
    trainer = train(
        "FullDP", model={"architecture": name, "args": args}, optimizer={"lr": "auto"}, privacy=privacy,
        train_args={"num_epochs": 15, "print_every": 15},
    )  # fmt: skip
    assert trainer.history.last("tst_acc") > 0.75
    assert trainer.run.planned_learning_rate


def test_a_run_keeps_no_features_if_it_is_told_so(train, tmp_path, registered):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(160, *SHAPE)).astype(np.float32), np.arange(160) % 10
    train_set, test_set = (array_set(x, y, rows=np.arange(start, start + 80)) for start in (0, 80))
    data = {"trainset": train_set, "validset": train_set, "testset": test_set, "num_cls": 10}
    changes = {"dataset": {"datadir": str(tmp_path / "data")}, "dataloader": {"batch_size": 20}, "data": data}
    train("FullDP", model={"architecture": "MLPHead", "features": "small", "feature_cache": False}, **changes)
    assert not (tmp_path / "data").exists()
    trainer = train("FullDP", model={"architecture": "MLPHead", "features": "small"}, **changes)
    assert len(list((tmp_path / "data" / "features").glob("small-*.npy"))) == 1
    assert trainer.data.train.target == ClassTarget(10)


# --- texts -----------------------------------------------------------------------------------------------------------


def test_a_text_is_a_row_of_bytes_of_a_public_length():
    rows = encode_texts(["Füße", "", None, 3.5, "a\0b", "x" * 50], 8)
    assert rows.dtype == torch.uint8
    assert rows.shape == (6, 8)
    assert [decode_text(row) for row in rows] == ["Füße", "", "", "", "a b", "x" * 8]
    assert decode_text(encode_texts(["ßß"], 3)[0]) == "ß"  # cut in the middle of a character
    x, y = TextRecords(["one", "two"], [0, 1], 4).batch([1])
    assert (decode_text(x[0]), y.tolist()) == ("two", [1])
