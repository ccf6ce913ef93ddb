"""Models keep CORDS' contract, Opacus' and ours; scattering features are those of kymatio and cached."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from conftest import REPOSITORY

from cords_dp.data.feature_cache import with_features
from cords_dp.data.record_set import array_set
from cords_dp.errors import ConfigError
from cords_dp.models.build import build_model, model_names
from cords_dp.models.dead_leaves import dead_leaves
from cords_dp.models.private import make_private_ready
from cords_dp.models.scattering import Scattering, scattering_maps


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
        ("TanhCNN", "mnist", (1, 28, 28)),
        ("TanhCNN", "cifar10", (3, 32, 32)),
        ("WideResNet", "cifar10", (3, 32, 32)),
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


def test_threads_do_not_draw_from_each_others_seeds():
    """Torch's generator is one for all threads."""
    from concurrent.futures import ThreadPoolExecutor

    cfg = {"model": {"architecture": "LogisticRegNet", "input_dim": 300, "numclasses": 200}, "dataset": {}}

    def weights(seed):
        return next(build_model(cfg, seed=seed).parameters()).detach()

    alone = {seed: weights(seed) for seed in range(4)}
    with ThreadPoolExecutor(8) as pool:
        for seed, drawn in zip([0, 1, 2, 3] * 25, pool.map(weights, [0, 1, 2, 3] * 25), strict=True):
            assert torch.equal(drawn, alone[seed])


@pytest.mark.parametrize("name", ["ScatterLinear", "ScatterCNN"])
def test_scattering_models_take_raw_images_in_any_precision(name):
    """Modes are checked in float64, and datasets that are not ours reach the model as images."""
    model = build_model(config(name, "mnist"), seed=0)
    images = torch.randn(2, 1, 28, 28)
    exact = copy.deepcopy(model).double()(images.double())
    assert exact.dtype == torch.float64
    torch.testing.assert_close(exact.float(), model(images), atol=1e-4, rtol=1e-3)


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
    torch.testing.assert_close(together.pow(2).mean(dim=(1, 2, 3)), torch.ones(4), atol=1e-4, rtol=0)


def test_scattering_maps_are_kymatio_s():
    from kymatio.torch import Scattering2D

    images = torch.randn(2, 3, 32, 32)
    expected = Scattering2D(J=2, shape=(32, 32))(images).reshape(2, 243, 8, 8)
    torch.testing.assert_close(scattering_maps(images, (3, 32, 32)), expected)


def test_made_up_images_are_normalised_to_unit_size_and_less_correlation():
    """The constants come from dead leaves alone: on those, channels have size 1 and little of their correlation."""
    shape = (1, 28, 28)
    leaves = dead_leaves(64, shape, seed=7)
    features, raw = Scattering(shape)(leaves), scattering_maps(leaves, shape)

    def spread(maps):
        values = torch.linalg.eigvalsh(torch.corrcoef(maps.permute(1, 0, 2, 3).flatten(1)))
        return float(values.max() / values.mean())

    assert spread(features) < 0.3 * spread(raw)


def test_the_learning_rate_follows_the_plan():
    """Four times the noise, or sixteen times the steps: a quarter of the rate. Nothing to follow: a clear error."""
    from dataclasses import replace

    from builders import make_plan
    from dotmap import DotMap

    from cords_dp.training.optim import planned_learning_rate

    plan = make_plan("FullDP", max_grad_norm=0.1, delta=None, epochs=2, n=54_000, n_validation=6_000)
    assert plan.shape.batch_size == 4096
    model = build_model(config("ScatterLinear", "mnist"), seed=0)
    cfg = DotMap(optimizer={"type": "sgd", "lr": "auto", "momentum": 0.9})
    rate = planned_learning_rate(cfg, plan, model)
    noise_in_logits = rate * plan.sigma * 0.1 * plan.shape.steps**0.5 * 3969**0.5 / 4096 / 0.1
    assert noise_in_logits == pytest.approx(2.5)
    assert planned_learning_rate(cfg, replace(plan, sigma=4 * plan.sigma), model) == pytest.approx(rate / 4)
    with pytest.raises(ConfigError, match="input_norm"):
        planned_learning_rate(cfg, plan, build_model(config("MnistNet", "mnist"), seed=0))


@pytest.mark.parametrize(
    ("pool", "k", "batch"),
    [(54_000, 54_000, 4096), (5_400, 5_400, 1024), (400, 400, 64), (3, 3, 1), (45_000, 4_500, 2250),
     (45_000, 9_001, 3001), (1_437, 143, 72), (100, 1, 1)],
)  # fmt: skip
def test_the_batch_follows_the_plan(pool, k, batch):
    """A part of a pool is used up in equal steps: at most one gradient a step more than k, never a whole batch."""
    from cords_dp.planning.schedule import planned_batch_size

    assert planned_batch_size(pool, k) == batch
    if k < pool:
        steps = -(-k // batch)
        assert k <= steps * batch < k + steps + 1


def test_views_are_shifts_and_mirror_images():
    from cords_dp.training.step import augmented_views

    images = torch.arange(2 * 3 * 32 * 32, dtype=torch.float32).reshape(2, 3, 32, 32)
    views = augmented_views(images, 50, np.random.default_rng(0))
    assert views.shape == (100, 3, 32, 32)
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4), mode="reflect")
    seen = set()
    for number, view in enumerate(views):
        source = padded[number // 50]
        crops = {(i, j, m): source[:, i : i + 32, j : j + 32] for i in range(9) for j in range(9) for m in (0,)}
        found = [key for key, crop in crops.items() if torch.equal(crop, view)]
        mirrored = [(*key[:2], 1) for key, crop in crops.items() if torch.equal(crop.flip(-1), view)]
        assert found + mirrored
        seen.update(found + mirrored)
    assert {m for *_, m in seen} == {0, 1}
    assert len(seen) > 50
    grey = augmented_views(torch.arange(784.0).reshape(1, 1, 28, 28), 200, np.random.default_rng(0))
    assert bool((grey[:, 0, 14, 15] > grey[:, 0, 14, 14]).all())  # digits are not mirrored


def test_a_run_with_augmented_views_and_one_that_cannot_have_them(make_config, tmp_path):
    from cords_dp.training.trainer import TrainClassifier

    x = np.random.default_rng(0).normal(size=(60, 1, 28, 28)).astype(np.float32)
    train, test = (array_set(images, np.arange(60) % 10) for images in (x, -x))
    data = {"trainset": train, "validset": train, "testset": test, "num_cls": 10}
    changes = {"dataset": {"name": "mnist"}, "dataloader": {"batch_size": 10}, "train_args": {"num_epochs": 1}}
    privacy = {"augmentations": 2, "grad_sample_mode": "auto"}
    net = {"architecture": "TanhCNN", "args": {"width": 8}}
    trainer = TrainClassifier(make_config("FullDP", model=net, privacy=privacy, **changes))
    trainer.train(**data)
    assert trainer.spent().epsilon <= 3.0
    scatter = make_config("FullDP", model={"architecture": "ScatterLinear"}, privacy=privacy, **changes)
    scatter.dataset.datadir = str(tmp_path)
    with pytest.raises(ConfigError, match="views"):
        TrainClassifier(scatter).train(**data)


DOCUMENTED = REPOSITORY / "docs" / "models.md"


def documented_rows():
    lines = [line for line in DOCUMENTED.read_text().splitlines() if line.startswith("| ")]
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines[1:]}


def test_every_model_is_in_the_table_of_the_docs():
    from cords_dp.models.build import _OURS, _cords_names

    assert set(documented_rows()) == {*_OURS, *_cords_names()}


def test_cords_has_the_models_that_are_not_looked_for():
    from cords_dp.models.build import _COMMON, _cords_names

    assert _cords_names() >= _COMMON


def test_what_is_said_of_our_models_without_importing_them_is_so():
    from cords_dp.models.build import _OURS, builder_of, takes

    for name, (_, features) in _OURS.items():
        assert takes(builder_of(name), "features") == features


@pytest.mark.parametrize("name", ["MnistNet", "ScatterLinear", "LSTM", "TanhCNN", "LogisticRegNet"])
def test_the_table_of_the_docs_is_what_trying_gives(name):
    from cords_dp.report.tables import to_markdown
    from cords_dp.studies.models import model_table

    assert to_markdown(model_table([name])).splitlines()[-1] == documented_rows()[name]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_table_of_the_docs_is_what_trying_gives():
    from cords_dp.report.tables import to_markdown
    from cords_dp.studies.models import model_table

    assert to_markdown(model_table()).splitlines()[2:] == list(documented_rows().values())


def test_features_are_computed_once_and_serve_every_split(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (12, 1, 28, 28), dtype=np.uint8), np.arange(12)
    transform = Scattering((1, 28, 28))
    one = array_set(x, y, (0.1,), (0.3,), rows=np.array([3, 1, 4]))
    features = with_features(one, transform, tmp_path, progress=False)
    direct = transform(one.batch([0, 1, 2])[0])
    torch.testing.assert_close(features.batch([0, 1, 2])[0], direct, atol=5e-3, rtol=5e-3)
    assert features.batch([2])[1].tolist() == [4]
    monkeypatch.setattr(Scattering, "forward", lambda *_: pytest.fail("computed again"))
    other = with_features(array_set(x, y, (0.1,), (0.3,), rows=np.array([7])), transform, tmp_path, progress=False)
    assert other.batch([0])[1].tolist() == [7]
    assert len(list(tmp_path.glob("*.npy"))) == 1


def test_changed_records_are_computed_anew(tmp_path):
    transform = Scattering((1, 28, 28))
    for value in (0, 9):
        x = np.full((2, 1, 28, 28), value, dtype=np.uint8)
        with_features(array_set(x, np.zeros(2)), transform, tmp_path, progress=False)
    assert len(list(tmp_path.glob("*.npy"))) == 2


def test_a_scattering_model_takes_images_or_features():
    model = build_model(config("ScatterLinear", "mnist"), seed=0)
    torch.nn.init.normal_(model.linear.weight)
    images = torch.randn(2, 1, 28, 28)
    torch.testing.assert_close(model(images), model(model.input_transform(images)))
