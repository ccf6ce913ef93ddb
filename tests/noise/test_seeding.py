"""Streams: what a seed fixes, what the operating system draws, and that no stream tells about another."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cords_dp.errors import MechanismError
from cords_dp.noise.generators import Streams, seed_global_generators

SECRET = ("selection", "batches", "noise", "validation", "augmentation", "global")


def draw(streams, stream, **options):
    return tuple(streams.numpy(stream, **options).random(4))


@pytest.mark.parametrize("stream", ["data", "init"])
def test_a_seed_fixes_data_and_initial_weights(stream):
    assert draw(Streams(7), stream) == draw(Streams(7, attempt=3, context="x", entropy=9), stream)
    assert draw(Streams(7), stream) != draw(Streams(8), stream)
    assert draw(Streams(None), stream) == draw(Streams(None), stream)


def test_splits_stay_what_they_were():
    """Cached splits and published results hang on the stream of the data."""
    sequence = np.random.SeedSequence([7, 0])
    assert draw(Streams(7), "data") == tuple(np.random.Generator(np.random.PCG64DXSM(sequence)).random(4))


@pytest.mark.parametrize("stream", SECRET)
@pytest.mark.parametrize("seed", [None, 0, 7])
def test_a_seed_fixes_nothing_secret(stream, seed):
    """Found in review: sweeps count seeds from 0 up, and whoever guesses one subtracts the noise."""
    assert draw(Streams(seed), stream) != draw(Streams(seed), stream)


@pytest.mark.parametrize("stream", SECRET)
def test_reproducible_streams_repeat_and_are_asked_for(stream):
    assert draw(Streams(7, reproducible=True), stream) == draw(Streams(7, reproducible=True), stream)
    assert draw(Streams(7, reproducible=True), stream) != draw(Streams(8, reproducible=True), stream)


@pytest.mark.parametrize("stream", SECRET)
def test_processes_that_share_entropy_draw_alike(stream):
    assert draw(Streams(7, entropy=5), stream) == draw(Streams(7, entropy=5), stream)
    assert draw(Streams(7, entropy=5), stream) != draw(Streams(7, entropy=6), stream)


@pytest.mark.parametrize("root", [{"entropy": 5}, {"seed": 7, "reproducible": True}])
def test_streams_attempts_contexts_and_ranks_are_separate(root):
    """Equal noise of two budgets would cancel in the difference of the two models; replayed noise would show itself."""
    seen = [
        draw(Streams(attempt=attempt, context=context, **root), stream, rank=rank)
        for stream, attempt, context, rank in itertools.product(SECRET, (0, 1), ("", "a", "b"), (0, 1, 2))
    ]
    assert len(set(seen)) == len(seen)


@given(one=st.tuples(st.integers(0, 20), st.text(max_size=5), st.integers(0, 20)), other=st.data())
def test_labels_cannot_be_confused(one, other):
    """Mutant: joining the parts of a label without marks would let (1, "2") and (12, "") share a stream."""
    two = other.draw(st.tuples(st.integers(0, 20), st.text(max_size=5), st.integers(0, 20)))
    keys = [Streams(entropy=5, attempt=a, context=c)._key("noise", r) for a, c, r in (one, two)]
    assert (keys[0] == keys[1]) == (one == two)


def test_the_secret_root_has_256_bits_and_the_key_is_full(monkeypatch):
    asked = []

    def token_bytes(size):
        asked.append(size)
        return bytes(size)

    monkeypatch.setattr("cords_dp.noise.generators.secrets.token_bytes", token_bytes)
    assert len(Streams(7)._key("noise", 0)) == 16
    assert asked == [32]


@pytest.mark.parametrize("entropy", [-1, 1 << 256])
def test_entropy_of_another_size_is_refused(entropy):
    with pytest.raises(MechanismError, match="256 bits"):
        Streams(entropy=entropy)


def test_entropy_is_not_shown():
    assert "123456789" not in repr(Streams(1, entropy=123456789))


def test_an_unknown_stream_is_refused():
    with pytest.raises(MechanismError, match="no stream"):
        Streams(entropy=5).numpy("noises")


def test_views_are_seeded_apart_on_every_rank():
    seeds = {Streams(entropy=5).numpy("augmentation", rank=rank).random() for rank in range(4)}
    assert len(seeds) == 4
    assert Streams(7).numpy("augmentation").random() != Streams(7).numpy("augmentation").random()


def global_draws():
    legacy = np.random.random()  # noqa: NPY002 - this is the generator under test
    return float(torch.rand(())), float(legacy), random.random()


def seeded_draws(streams, rank=0):
    torch.manual_seed(0)  # what the caller's script did
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    seed_global_generators(streams, rank)
    return global_draws()


def test_global_generators_follow_the_operating_system():
    """Mutant: seeded from the public seed, dropout masks could be foretold."""
    for streams in (Streams(7), Streams(None)):
        first, second = seeded_draws(streams), seeded_draws(streams)
        assert all(a != b for a, b in zip(first, second, strict=True))


def test_global_generators_repeat_where_the_run_is_reproducible():
    streams = Streams(7, reproducible=True)
    assert seeded_draws(streams) == seeded_draws(streams)
    assert seeded_draws(streams, rank=1) != seeded_draws(streams)


def test_global_generators_tell_nothing_about_the_noise():
    """They have a stream of their own; its key is no other stream's."""
    streams = Streams(entropy=5)
    assert len({streams._key(stream, 0) for stream in SECRET}) == len(SECRET)
