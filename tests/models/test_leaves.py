"""Features from dead leaves: public, the same for everyone, and of one image each."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from cords_dp import TrainClassifier, config_for
from cords_dp.errors import ConfigError
from cords_dp.models import leaf_filters, leaves
from cords_dp.models.backbones import build_features
from cords_dp.models.build import build_model
from cords_dp.models.dead_leaves import dead_leaves, other_views
from cords_dp.models.leaves import Leaves
from cords_dp.models.whitening import frequencies, steady_whitening

SHAPE = (3, 16, 16)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(cache, monkeypatch):
    """Kept while these tests last: fitting takes seconds."""
    monkeypatch.setenv("CORDS_DP_CACHE", str(cache))
    monkeypatch.setattr(leaves, "_LEAVES", {"scattering": 30, "filters": 60})
    leaves._whitenings.cache_clear()
    yield cache
    leaves._whitenings.cache_clear()


def test_leaves_are_the_same_for_everyone_and_look_like_images():
    images = dead_leaves(40, SHAPE, seed=5)
    assert torch.equal(images, dead_leaves(40, SHAPE, seed=5))
    assert not torch.equal(images[:4], dead_leaves(4, SHAPE, seed=6))
    torch.testing.assert_close(images.std(dim=(1, 2, 3), correction=0), torch.ones(40), atol=2e-3, rtol=0)
    steps = images * 2**10
    assert torch.equal(steps, steps.round()), "rounded, so that other machines' last digits do not show"
    neighbours = torch.corrcoef(torch.stack([images[..., 1:].flatten(), images[..., :-1].flatten()]))[0, 1]
    assert neighbours > 0.5, "neighbouring pixels mostly belong to one leaf"


def test_the_first_leaves_have_known_pixels():
    """Filters and whitening follow from these: if they move, features on disk and models trained on them are void."""
    some = dead_leaves(2, (1, 8, 8), seed=0)[:, 0, 3, ::3] * 2**10
    assert some.tolist() == [[-375, 341, -302], [483, 2545, 659]]


@pytest.mark.slow
def test_shipped_filters_are_rebuilt_bit_by_bit(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["leaf_filters"])
    assert leaf_filters.main() == 0, capsys.readouterr().out


def test_k_means_does_not_depend_on_how_sums_are_ordered():
    """Products of whole numbers of this length are exact in float32, in whatever order they are added."""
    rows = leaf_filters._to_length(np.random.default_rng(0).normal(size=(200, 108)))
    assert np.array_equal(rows, np.round(rows))
    exact = rows.astype(np.int64) @ rows.astype(np.int64).T
    assert np.abs(exact).max() < 2**24
    assert np.array_equal(torch.from_numpy(rows) @ torch.from_numpy(rows).T, exact)


@pytest.mark.parametrize("kind", ["plain", "mirrored", "steady"])
def test_a_row_is_a_function_of_its_image(kind):
    features = Leaves(SHAPE, kind)
    one = dead_leaves(5, SHAPE, seed=9)
    other = one.clone()
    other[1:] = -3 * other[1:].flip(-1) + 1
    other[2, 0, 0, 0], other[3, 1, 2, 3] = torch.nan, torch.inf
    rows, changed = features(one), features(other)
    torch.testing.assert_close(rows[0], changed[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(rows[:1], features(one[:1]), atol=1e-4, rtol=1e-4)
    assert torch.isnan(changed[2:4]).all()
    assert torch.isfinite(changed[[0, 1, 4]]).all()
    assert rows.shape == (5, *features.feature_shape)
    torch.testing.assert_close(rows.square().mean(dim=1), torch.ones(5))


@pytest.mark.parametrize("kind", ["plain", "steady"])
def test_no_row_is_longer_than_the_head_believes(kind):
    features = Leaves(SHAPE, kind)
    hard = torch.stack([torch.zeros(SHAPE), torch.full(SHAPE, 1e30), torch.full(SHAPE, 1e-30), torch.randn(SHAPE)])
    rows = features(hard)
    lengths = rows[torch.isfinite(rows).all(dim=1)].norm(dim=1)
    assert len(lengths) >= 2
    assert (lengths <= 1.0001 * features.feature_shape[0] ** 0.5).all()


@pytest.mark.parametrize("kind", ["mirrored", "steady"])
def test_mirrored_features_do_not_tell_left_from_right(kind):
    images = dead_leaves(3, SHAPE, seed=3)
    mirrored, plain = Leaves(SHAPE, kind), Leaves(SHAPE)
    torch.testing.assert_close(mirrored(images), mirrored(images.flip(-1)), atol=1e-3, rtol=1e-3)
    assert (plain(images) - plain(images.flip(-1))).abs().max() > 0.5
    assert mirrored.feature_shape < plain.feature_shape
    assert mirrored.settings != plain.settings, "they are other files on disk"


@pytest.mark.parametrize("shape", [SHAPE, (1, 28, 28)])
def test_other_views_are_the_same_for_everyone_and_like_their_image(shape):
    images = dead_leaves(40, shape, seed=11)
    views = other_views(images, seed=4)
    assert torch.equal(views, other_views(images, seed=4))
    assert not torch.equal(views, other_views(images, seed=5))
    assert (views - images).abs().mean() > 0.3
    like, unlike = (torch.cosine_similarity(images.flatten(1), some.flatten(1)) for some in (views, views.roll(1, 0)))
    assert like.mean() > 0.3 > unlike.mean() + 0.1


def test_what_two_views_share_weighs_most():
    """Of three directions one is the same in both views, one is half noise and one all noise, however large."""
    draw = torch.Generator().manual_seed(0)
    shared, *noise = (torch.randn(4000, 3, 2, 2, generator=draw) for _ in range(3))
    share = torch.tensor([1.0, 0.5, 0.0]).reshape(1, 3, 1, 1)
    one, other = (share.sqrt() * shared + (1 - share).sqrt() * some for some in noise)
    one[:, 2], other[:, 2] = 50 * one[:, 2], 50 * other[:, 2]
    white = steady_whitening(one, other)
    assert white(one).std(dim=(0, 2, 3)) == pytest.approx([1.0, 0.5**0.5, 0.055], abs=0.06)
    assert white.gain == pytest.approx(torch.ones(2, 2).numpy(), abs=0.05)
    rows = torch.randn(2, 3, 5, 4, generator=draw)
    torch.testing.assert_close(frequencies(rows).norm(), rows.norm())


@pytest.mark.parametrize("kind", ["plain", "steady"])
def test_whitening_is_kept_and_a_forged_file_is_made_again(own_cache, kind):
    images = dead_leaves(2, SHAPE, seed=3)
    rows = Leaves(SHAPE, kind)(images)
    files = sorted((own_cache / "features").glob(f"*-3x16x16-{kind}.npz"))
    assert len(files) == 2
    leaves._whitenings.cache_clear()
    assert torch.equal(Leaves(SHAPE, kind)(images), rows)
    for mean, matrix in FORGED:
        np.savez(files[1], mean=np.float32(mean), matrix=np.float32(matrix), gain=np.float32(mean))
        files[0].write_bytes(b"no whitening")
        leaves._whitenings.cache_clear()
        torch.testing.assert_close(Leaves(SHAPE, kind)(images), rows)


FORGED = [(0.0, 0.0), (np.zeros(1), np.ones((1, 1))), (np.zeros(1600), np.full((1600, 1600), np.nan))]


def test_names_and_shapes_that_have_no_leaves_are_refused():
    with pytest.raises(ConfigError, match=r"leaves:miror.*did you mean 'leaves:mirrored'"):
        build_features({"features": "leaves:miror"}, SHAPE, None)
    for shape in ((64,), (4, 32, 32), (3, 6, 32)):
        with pytest.raises(ConfigError, match="is for grey or colour images"):
            build_features({"features": "leaves"}, shape, None)


def test_a_head_on_leaves_reads_images_and_ready_features():
    config = {"model": {"architecture": "LinearHead", "features": "leaves:steady"}, "dataset": {"name": "custom"}}
    model = build_model(config, seed=0, num_classes=4, input_shape=(1, 28, 28))
    images = dead_leaves(3, (1, 28, 28), seed=1)
    ready = model.input_transform(images)
    torch.nn.init.normal_(model.linear.weight)
    torch.testing.assert_close(model(images), model(ready))
    assert model.input_norm == pytest.approx(ready.norm(dim=1).max().item(), rel=1e-4)


@pytest.mark.slow  # seven seconds
def test_the_preset_of_cifar100_trains_on_images_of_its_shape(tmp_path):
    """No registry has CIFAR-100: made-up images of its shape and its hundred classes take its place."""
    images, labels = dead_leaves(160, (3, 32, 32), seed=4), torch.arange(160) % 100
    sets = [TensorDataset(images[part], labels[part]) for part in (slice(100), slice(100, 130), slice(130, 160))]
    config = config_for(
        "cifar100",
        "GLISTERDP",
        dss_args=dict(fraction=0.5, select_every=1),
        privacy=dict(epsilon=8.0, delta=1e-3),
        model=dict(feature_cache=False),
        train_args=dict(num_epochs=2, device="cpu", results_dir=str(tmp_path)),
        ckpt=dict(is_save=False, dir=str(tmp_path)),
    )
    config["dataset"]["name"] = "custom"
    trainer = TrainClassifier(config)
    trainer.train(trainset=sets[0], validset=sets[1], testset=sets[2], num_cls=100)
    assert trainer.model.linear.weight.shape == (100, 14176)
    assert torch.isfinite(trainer.model.linear.weight).all()
    assert trainer.spent().epsilon <= 8
