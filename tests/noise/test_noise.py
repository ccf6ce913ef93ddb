"""Noise: a real cipher with a full key, the normal law out to its far tail, and no other source in the package."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from randomgen import UserBitGenerator
from scipy import stats

import cords_dp
from cords_dp.errors import MechanismError
from cords_dp.noise.generators import KEY_BYTES, noise_source, secure_generator, standard_normal
from cords_dp.noise.primitives import gaussian_release

KEY = bytes(range(KEY_BYTES))


# --- the generator --------------------------------------------------------------------------------------------------


def encrypted(key: bytes, block: bytes, *, instructions: bool = True) -> bytes:
    """One block from the generator, with its counter at ``block``."""
    rng = secure_generator(key)
    bits = rng.bit_generator
    before = bits.use_aesni
    bits.use_aesni = before and instructions
    try:
        bits.seed(key=int.from_bytes(key, "little"), counter=int.from_bytes(block, "little"))
        if not instructions:  # seeding looks for the instructions again
            bits.use_aesni = False
        return bits.random_raw(2).astype("<u8").tobytes()
    finally:
        bits.use_aesni = before


@pytest.mark.parametrize("instructions", [True, False])
@pytest.mark.parametrize(
    ("key", "plain", "cipher"),
    [
        # FIPS 197, appendix C.1: all ten rounds of AES-128; then SP 800-38A, F.1.1
        ("000102030405060708090a0b0c0d0e0f", "00112233445566778899aabbccddeeff", "69c4e0d86a7b0430d8cdb78070b4c55a"),
        ("2b7e151628aed2a6abf7158809cf4f3c", "6bc1bee22e409f96e93d7e117393172a", "3ad77bb40d7a3660a89ecaf32466ef97"),
    ],
)
def test_the_generator_is_aes_as_the_standard_has_it(key, plain, cipher, instructions):
    assert encrypted(bytes.fromhex(key), bytes.fromhex(plain), instructions=instructions).hex() == cipher


def test_every_bit_of_the_key_counts():
    first = secure_generator(KEY).bit_generator.random_raw(2).tolist()
    for bit in range(8 * KEY_BYTES):
        changed = (int.from_bytes(KEY, "big") ^ (1 << bit)).to_bytes(KEY_BYTES, "big")
        assert secure_generator(changed).bit_generator.random_raw(2).tolist() != first


def test_the_operating_system_draws_a_whole_key(monkeypatch):
    asked = []

    def token_bytes(size):
        asked.append(size)
        return KEY

    monkeypatch.setattr("cords_dp.noise.generators.secrets.token_bytes", token_bytes)
    drawn = secure_generator()
    assert asked == [KEY_BYTES]
    assert np.array_equal(drawn.random(5), secure_generator(KEY).random(5))


def test_two_generators_differ_and_one_key_repeats():
    assert not np.array_equal(secure_generator().random(5), secure_generator().random(5))
    assert np.array_equal(secure_generator(KEY).standard_normal(1000), secure_generator(KEY).standard_normal(1000))


@pytest.mark.parametrize("key", [b"", b"short", bytes(KEY_BYTES + 1), "0123456789abcdef", 5])
def test_a_key_of_another_length_is_refused(key):
    with pytest.raises(MechanismError, match="16 bytes"):
        secure_generator(key)


# --- the law --------------------------------------------------------------------------------------------------------


def rate_is_right(seen: int, draws: int, chance: float) -> bool:
    return stats.binomtest(seen, draws, chance).pvalue > 1e-4


@pytest.mark.parametrize("secure", [False, True])
def test_the_tail_has_its_share(secure):
    """Twenty million draws with a fixed key: beyond four deviations 1267 are expected, beyond five 11."""
    rng = secure_generator(KEY)
    parts, size = (20, 1_000_000) if not secure else (5, 1_000_000)
    lengths = np.concatenate([np.abs(standard_normal(rng, (size,), secure)) for _ in range(parts)])
    for edge in (1.0, 2.0, 3.0, 4.0, 4.5, 5.0):
        assert rate_is_right(int((lengths > edge).sum()), len(lengths), 2 * stats.norm.sf(edge)), edge


def tail_draws(count: int) -> np.ndarray:
    """Draws of numpy's normals given that they fall beyond 3.654, where the ziggurat hands over to its tail."""
    source = secure_generator(KEY)
    uniforms = iter(source.random(8 * count).tolist())
    # the low eight bits choose the lowest strip, bits 9 to 60 a place beyond its end
    beyond_the_strip = 0x000FFFFFFFFFFFFF << 9
    bits = UserBitGenerator(lambda _: beyond_the_strip, 64, next_double=lambda _: next(uniforms))
    return np.random.Generator(bits).standard_normal(count)


def test_the_far_tail_has_its_share():
    """Values beyond 5.8 have chance 6.6e-9: too rare to wait for, so draw given that the tail was entered."""
    draws = 400_000
    tail = np.abs(tail_draws(draws))
    start = 3.6541528853610088
    assert tail.min() >= start
    for edge in (4.0, 4.5, 5.0, 5.5, 5.77, 5.8):
        chance = stats.norm.sf(edge) / stats.norm.sf(start)
        assert rate_is_right(int((tail > edge).sum()), draws, chance), edge
    assert (tail > 5.8).sum() >= 3  # float32 Box–Muller: none


@pytest.mark.parametrize("value", [5.8, 8.0, 10.0, 12.0])
def test_the_generator_can_reach_values_far_out(value):
    """The uniforms that lead there exist, so no observer can exclude a record by a value that noise never takes."""
    start = 3.6541528853610088
    uniforms = iter([-math.expm1(-(value - start) * start), 1 - 2.0**-53])
    bits = UserBitGenerator(lambda _: 0x000FFFFFFFFFFFFF << 9, 64, next_double=lambda _: next(uniforms))
    assert abs(np.random.Generator(bits).standard_normal()) == pytest.approx(value, rel=1e-4)


@pytest.mark.slow
def test_values_beyond_five_point_eight_appear_in_the_stream_itself():
    """2^31 draws, about half a minute: 14 expected."""
    rng = secure_generator(KEY)
    part = np.empty(2**20)
    seen = 0
    for _ in range(2**11):
        rng.standard_normal(out=part)
        seen += int((np.abs(part, out=part) > 5.8).sum())
    assert rate_is_right(seen, 2**31, 2 * stats.norm.sf(5.8))


@pytest.mark.parametrize("secure", [False, True])
def test_normals_have_variance_one(secure):
    values = standard_normal(secure_generator(KEY), (1_000_000,), secure)
    assert values.dtype == np.float64
    assert float(values.std()) == pytest.approx(1.0, abs=5e-3)  # seven deviations of the estimate
    assert stats.kstest(values[:100_000], "norm").pvalue > 1e-3


def test_the_secure_draw_is_four_draws_over_two():
    plain, secure = secure_generator(KEY), secure_generator(KEY)
    four = [plain.standard_normal((3, 2)) for _ in range(4)]
    assert np.array_equal(standard_normal(secure, (3, 2), secure=True), (four[0] + four[1] + four[2] + four[3]) / 2)


@pytest.mark.parametrize("secure", [False, True])
def test_a_noise_source_draws_on(secure):
    source = noise_source(secure_generator(KEY), secure=secure)
    first, second = source((2, 3)), source((2, 3))
    assert first.shape == (2, 3)
    assert first.dtype == np.float64
    assert not np.array_equal(first, second)


# --- the release ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("multiplier", [None, 0.0, float("nan"), float("inf"), -1.0])
def test_a_release_without_a_noise_multiplier_is_refused(multiplier):
    """Mutant: ``sigma or 0.0`` turned a missing noise multiplier into no noise."""
    with pytest.raises(MechanismError, match="noise multiplier"):
        gaussian_release(np.zeros(3), sensitivity=1.0, noise_multiplier=multiplier, rng=secure_generator(KEY))


@pytest.mark.parametrize("multiplier", [None, 0.0])
def test_a_noiseless_release_has_to_be_asked_for(multiplier):
    total = np.arange(3.0)
    released = gaussian_release(
        total, sensitivity=1.0, noise_multiplier=multiplier, rng=secure_generator(KEY), noiseless=True
    )
    assert np.array_equal(released, total)
    assert released is not total


def test_a_noiseless_release_with_noise_is_refused():
    with pytest.raises(MechanismError, match="which of the two"):
        gaussian_release(np.zeros(3), sensitivity=1.0, noise_multiplier=2.0, rng=secure_generator(KEY), noiseless=True)


@pytest.mark.parametrize("secure", [False, True])
def test_a_release_adds_scaled_normals(secure):
    total = np.arange(6.0).reshape(2, 3)
    released = gaussian_release(total, sensitivity=0.5, noise_multiplier=3.0, rng=secure_generator(KEY), secure=secure)
    noise = standard_normal(secure_generator(KEY), (2, 3), secure)
    np.testing.assert_allclose(released, total + 1.5 * noise, rtol=1e-15)


# --- no other source ------------------------------------------------------------------------------------------------

SOURCES = re.compile(
    r"torch\.(normal|randn\w*|rand|rand_like|randint|randperm|bernoulli|multinomial|Generator|manual_seed)\s*\("
    r"|\.(normal_|uniform_|bernoulli_|exponential_)\s*\("
    r"|np\.random\.(?!Generator\b|SeedSequence\b)\w+|\b(MT19937|PCG64\w*|Philox|SFC64|default_rng)\b"
    r"|\brandom\.(random|gauss|normalvariate|seed|shuffle|sample|choice|randint)\s*\("
)

# What is public, or no part of a mechanism, file by file. A new line here needs a reason.
PUBLIC = {
    "auditing/replay.py": {"torch.Generator(", "torch.randn("},  # made-up records for an audit
    "auditing/toys.py": {"torch.manual_seed(", "np.random.default_rng"},
    "auditing/transcripts.py": {"np.random.default_rng"},  # noise that an audit freezes
    "training/step.py": {"torch.randint("},  # views, from the generator that is passed in
    "evaluation/released.py": {"np.random.default_rng"},  # intervals: made-up noise on released values
    "estimators/fitting.py": {"np.random.get_state", "np.random.set_state"},  # global ones are put back as they were
    "estimators/parameters.py": {"np.random.RandomState"},  # scikit-learn's random_state
    "estimators/repeats.py": {"np.random.PCG64DXSM"},  # keys of a hash in memory, from a secret of the process
    "models/build.py": {"torch.manual_seed("},  # initial weights, from the public seed
    "models/features.py": {"torch.Generator(", "torch.randn("},  # made-up records: do rows depend on each other?
    "models/dead_leaves.py": {"np.random.PCG64", "random.random("},  # made-up images that fix the features
    "models/leaf_filters.py": {"np.random.PCG64", "random.random("},  # patches of those images
    "studies/models.py": {"torch.Generator(", "torch.randn(", "torch.randint("},  # made-up inputs for a table
    "noise/generators.py": {  # the public streams, the views' generator and the global ones
        "np.random.PCG64DXSM", "torch.Generator(", "torch.manual_seed(", "np.random.seed", "random.seed(",
    },
    "report/budget_page.py": {"np.random.default_rng"},  # places at which a public grid is checked
    "selection/last_layer.py": {"torch.Generator(", "torch.randn("},  # a public projection, the same for everyone
    "training/gradients/choose.py": {"torch.Generator(", "torch.randn("},  # more made-up inputs
    "training/engine.py": {"torch.Generator(", "torch.randn(", "torch.randint("},  # made-up inputs: choice of a mode
}  # fmt: skip


def random_sources(path: Path) -> set[str]:
    code = "\n".join(line.split("#")[0] for line in path.read_text().splitlines())
    code = re.sub(r'""".*?"""', "", code, flags=re.DOTALL)
    return {match.group(0) for match in SOURCES.finditer(code)}


def test_no_module_has_a_random_source_of_its_own():
    root = Path(cords_dp.__file__).parent
    found = {path.relative_to(root).as_posix(): random_sources(path) for path in sorted(root.rglob("*.py"))}
    unknown = {name: sources - PUBLIC.get(name, set()) for name, sources in found.items()}
    assert {name: sources for name, sources in unknown.items() if sources} == {}


def test_the_search_for_sources_finds_them(tmp_path):
    """Mutant: noise from torch or from a generator of one's own."""
    for line in (
        "torch.normal(0, 1, (3,))",
        "x.normal_()",
        "np.random.default_rng()",
        "PCG64(3)",
        "random.gauss(0, 1)",
    ):
        (tmp_path / "m.py").write_text(line)
        assert random_sources(tmp_path / "m.py"), line
