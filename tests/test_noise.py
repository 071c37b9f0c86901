"""The generator: its published outputs, its laws, and what it depends on."""

import ast
import contextlib
import inspect
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import springwell
import springwell.applications
import springwell.likelihood
from springwell import noise as noise_module
from springwell.applications.batches import _STREAMS
from springwell.errors import UserError
from springwell.evaluation.longrun import STREAMS_PER_RUN
from springwell.likelihood.bracket import MAX_SOURCES
from springwell.model import MOST_ATTEMPTS
from springwell.noise import MixedNoise, Noise, Stream, mix
from springwell.training.rollback import ROLLBACK_FACTORS, STREAMS_PER_ROLLBACK


def _int64(word: int) -> int:
    word %= 1 << 64
    return word - (1 << 64) if word >> 63 else word


def test_mix_gives_the_published_outputs_of_splitmix64():
    # The first words of SplitMix64 seeded with 1234567, as published with the reference implementation.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    states = [1234567 + 0x9E3779B97F4A7C15 * n for n in range(1, 6)]
    words = mix(torch.tensor([_int64(s) for s in states]))
    assert [int(w) % (1 << 64) for w in words] == expected


def test_values_do_not_depend_on_the_batch_or_on_draws_ahead():
    whole = Noise(3, torch.arange(100), stream=5, ahead=7)
    part = Noise(3, torch.arange(40, 60), stream=5, ahead=1)
    for _ in range(10):
        assert torch.equal(whole.normal(3)[40:60], part.normal(3))
        assert torch.equal(whole.uniform()[40:60], part.uniform())
    # Changing shape in the middle must not change later values either.
    assert torch.equal(whole.normal(2, 2)[40:60], part.normal(2, 2))
    assert torch.equal(whole.normal(5)[40:60], part.normal(5))


def test_seed_stream_index_and_draw_all_matter():
    base = Noise(0, torch.arange(50)).normal(4)
    others = [
        Noise(1, torch.arange(50)).normal(4),
        Noise(0, torch.arange(50), stream=1).normal(4),
        Noise(0, torch.arange(50, 100)).normal(4),
    ]
    assert all(not bool((base == other).any()) for other in others)
    noise = Noise(0, torch.arange(50))
    assert not bool((noise.normal(4) == noise.normal(4)).any())


def test_laws_and_independence():
    """Kolmogorov-Smirnov and correlation over draws, samples, seeds and streams: all p-values above 1e-4."""
    n = 20_000
    index = torch.arange(n)
    blocks = [Noise(0, index).normal(3), Noise(1, index).normal(3), Noise(0, index, stream=1).normal(3)]
    normals = torch.cat(blocks, 1)
    p_values = [stats.kstest(column.numpy(), "norm").pvalue for column in normals.T]
    uniforms = Noise(0, index).uniform(3)
    p_values += [stats.kstest(column.numpy(), "uniform").pvalue for column in uniforms.T]
    columns = torch.cat([normals, normals.roll(1, 0), normals**2], 1)
    correlation = torch.corrcoef(columns.T)
    upper = correlation[torch.triu(torch.ones_like(correlation), 1).bool()]
    # x and x^2 of one column are uncorrelated too; every entry is about N(0, 1/n).
    p_values += stats.norm.sf(upper.abs().numpy() * n**0.5).tolist()
    assert min(p_values) > 1e-4 / 10
    assert float(uniforms.min()) > 0
    assert float(uniforms.max()) < 1


def test_float64_has_the_same_numbers():
    fine, coarse = (Noise(0, torch.arange(1000), dtype=dtype) for dtype in (torch.float64, torch.float32))
    x = fine.normal(2)
    assert x.dtype == torch.float64
    torch.testing.assert_close(coarse.normal(2).double(), x, rtol=0, atol=1e-4)


# The largest number that each use adds to its own of the table, from the limits in the code.
MOST_ITERATIONS = 10**9
MOST_LEVELS = 100_000
LAST_ATTEMPT = (len(ROLLBACK_FACTORS) - 1) * STREAMS_PER_ROLLBACK
MOST_STEPS = 10**8
REACH = {
    Stream.TRAINING: LAST_ATTEMPT + MOST_ITERATIONS,
    Stream.SAMPLING: MOST_ATTEMPTS - 1,
    Stream.KEEPING: MOST_ATTEMPTS - 1,
    Stream.LEVELS: LAST_ATTEMPT + MOST_ITERATIONS,
    Stream.DATA: 0,
    Stream.NULL: 0,
    Stream.MOMENTS: 0,
    Stream.LABELS: 0,
    Stream.CLASSES: 0,
    Stream.CALIBRATION: 2,
    Stream.PILOT: MOST_LEVELS,
    Stream.LONGRUN: MOST_STEPS * STREAMS_PER_RUN + MOST_LEVELS,
    Stream.LONGRUN_FREE: 10**15,
    Stream.DIAGNOSIS: MOST_LEVELS,
    Stream.SOURCES: 8,
    Stream.POINTS: 1,
    Stream.BRACKET: 16 * 10**12 + 15,
    Stream.SCORES: 0,
    Stream.RATIOS: 2 + MOST_STEPS,
    Stream.INPAINTING: _STREAMS - 1,
    Stream.RESTORATION: _STREAMS - 1,
    Stream.PROBES: 0,
    Stream.MEASUREMENT: _STREAMS - 1,
}


def test_no_two_uses_share_a_stream():
    """From its own number to the largest it reaches, every use ends before the next begins; all are words of 64 bits."""
    assert set(REACH) == set(Stream)
    table = sorted(Stream)
    assert len({int(stream) for stream in table}) == len(Stream.__members__)
    for stream, following in itertools.pairwise(table):
        assert stream + REACH[stream] < following, f"{stream.name} runs into {following.name}"
    assert table[0] == 0
    assert table[-1] + REACH[table[-1]] < 2**63


def test_what_reaches_within_a_stream_is_apart():
    # An attempt of training ends before the next begins, and a long run's level before the next number of steps.
    assert MOST_ITERATIONS < STREAMS_PER_ROLLBACK
    assert MOST_LEVELS + 1 < STREAMS_PER_RUN
    # Of a bracket's 16: SMC, forward walks, one for each source, and from 8 what SMC resamples with.
    assert 2 + MAX_SOURCES <= 8


def test_streams_are_numbered_in_the_table_alone():
    """No other file has a number large enough to be the beginning of a stream, but for sizes, limits and hashes."""
    root = Path(springwell.__file__).parent
    allowed = {
        "training/rollback.py": {2**36},
        "applications/batches.py": {2**44},
    }
    for package in ("samplers", "likelihood", "training", "evaluation", "applications"):
        for path in (root / package).rglob("*.py"):
            found = {
                node.left.value**node.right.value
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
                if all(isinstance(side, ast.Constant) and isinstance(side.value, int) for side in (node.left, node.right))
            }
            name = path.relative_to(root).as_posix()
            assert {number for number in found if 2**36 <= number < 2**63} <= allowed.get(name, set()), name


def test_members_of_the_table_draw_different_numbers():
    index = torch.arange(100)
    draws = torch.stack([Noise(0, index, stream + reach).normal(4) for stream in Stream for reach in {0, REACH[stream]}])
    for i, j in itertools.combinations(range(len(draws)), 2):
        assert not bool((draws[i] == draws[j]).any())


def test_every_nth_sample_keeps_its_numbers():
    noise = Noise(3, torch.arange(12), 5)
    noise.normal(2)
    part, rest = noise.every(4), noise.normal(3)
    assert torch.equal(part.normal(3), rest[::4])
    assert len(part) == 3


def test_draws_are_computed_ahead_while_they_are_small_and_one_by_one_when_large(monkeypatch):
    """``ahead`` draws take one pass of the hash, up to 2^16 words; and no number depends on it."""
    calls = []
    noises = [Noise(0, torch.arange(2), ahead=ahead) for ahead in (4, 1)]
    large = [Noise(0, torch.arange(2), ahead=ahead) for ahead in (100, 1)]
    huge = Noise(0, torch.arange(2**10), ahead=4)
    monkeypatch.setattr(noise_module, "mix", lambda z: calls.append(z.numel()) or mix(z))
    for _ in range(8):
        assert torch.equal(noises[0].normal(6), noises[1].normal(6))
    assert sorted(calls) == [6] * 8 + [4 * 6] * 2
    assert torch.equal(large[0].normal(4001), large[1].normal(4001))
    calls.clear()
    for _ in range(3):
        huge.uniform(128)
    assert calls == [2**16] * 3


def test_the_extreme_words_give_uniforms_inside_the_open_interval(monkeypatch):
    """All bits 0 and all bits 1: 2^-33 and, in float32, the largest number below 1; normals of both are finite."""
    for word, expected in ((0, 2.0**-33), (-1, 1 - 2.0**-24)):
        noise = Noise(0, torch.arange(2))
        with monkeypatch.context() as patched:
            patched.setattr(noise_module, "mix", lambda z, word=word: torch.full_like(z, word))
            uniform, normal = noise.uniform(3), noise.normal(3)
        assert torch.equal(uniform, torch.full((2, 3), expected))
        assert bool(normal.isfinite().all())


def test_a_mixture_of_noises_is_their_weighted_sum_and_that_of_uniforms_goes_through_the_normal_law():
    def sources():
        return [Noise(seed, torch.arange(3), dtype=torch.float64) for seed in (1, 2)]

    weights = torch.tensor([[0.6, 0.8], [-0.8, 0.6], [0.0, 1.0]], dtype=torch.float64)
    mixed, (first, second) = MixedNoise(sources(), weights), sources()
    w_1, w_2 = weights[:, :1], weights[:, 1:]
    torch.testing.assert_close(mixed.normal(5), w_1 * first.normal(5) + w_2 * second.normal(5))
    a, b = first.uniform(5), second.uniform(5)
    expected = torch.special.ndtr(w_1 * torch.special.ndtri(a) + w_2 * torch.special.ndtri(b))
    torch.testing.assert_close(found := mixed.uniform(5), expected)
    assert torch.equal(found[2], b[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_mixture_of_one_source_has_the_bits_of_its_numbers(dtype):
    """Through the normal law and back, most of so many numbers would be rounded."""

    def sources():
        return [Noise(seed, torch.arange(2), dtype=dtype) for seed in (1, 2)]

    mixed, (first, second) = MixedNoise(sources(), torch.eye(2, dtype=dtype)), sources()
    for draw in (lambda noise: noise.normal(1000), lambda noise: noise.uniform(1000)):
        found, one, two = draw(mixed), draw(first), draw(second)
        assert torch.equal(found[0], one[0])
        assert torch.equal(found[1], two[1])


def test_numbers_are_splitmix64_of_seed_stream_and_index():
    """By integers without bounds: seeds, streams and samples keep their numbers from one version to the next."""
    golden, num_words = 0x9E3779B97F4A7C15, 1 << 64

    def mixed(word):
        word %= num_words
        word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % num_words
        word = (word ^ (word >> 27)) * 0x94D049BB133111EB % num_words
        return word ^ (word >> 31)

    for seed, stream, index in itertools.product((0, 7), (0, 3, 2**50), (0, 5)):
        key = mixed(mixed(mixed(seed + golden) + golden * (stream + 1)) + golden * (index + 1))
        gamma = mixed(key ^ 0xD1B54A32D192ED03) | 1
        # Uniforms take the odd words of a sample, normals the even ones; the two halves of a word make two numbers.
        words = [mixed(key + n * gamma) for n in (1, 2, 3, 4)]
        u, v = np.array([[word >> 32, word & 0xFFFFFFFF] for word in words]).T
        u, v = (u + 0.5) / 2**32, (v + 0.5) / 2**32
        noise = Noise(seed, torch.tensor([index]), stream, dtype=torch.float64)
        np.testing.assert_allclose(noise.uniform(4)[0], np.stack([u[::2], v[::2]], 1).ravel(), rtol=1e-14)
        radius, angle = np.sqrt(-2 * np.log(u[1::2])), 2 * np.pi * v[1::2]
        np.testing.assert_allclose(
            noise.normal(4)[0], np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).ravel(), rtol=1e-9
        )


def test_the_table_keeps_its_numbers():
    """Another number would give all users of a seed other draws of that use."""
    assert {stream.name: int(stream) for stream in Stream} == {
        "TRAINING": 0,
        "SAMPLING": 1 << 40,
        "KEEPING": 3 << 39,
        "LEVELS": 1 << 41,
        "DATA": 1 << 42,
        "NULL": 1 << 43,
        "MOMENTS": 1 << 44,
        "LABELS": 3 << 43,
        "CLASSES": 7 << 42,
        "CALIBRATION": 1 << 45,
        "PILOT": 1 << 50,
        "LONGRUN": 1 << 51,
        "LONGRUN_FREE": 1 << 52,
        "DIAGNOSIS": 1 << 53,
        "SOURCES": 1 << 54,
        "POINTS": 1 << 55,
        "BRACKET": 1 << 56,
        "SCORES": 1 << 57,
        "RATIOS": 1 << 58,
        "INPAINTING": 1 << 59,
        "RESTORATION": 1 << 60,
        "PROBES": 1 << 61,
        "MEASUREMENT": 3 << 60,
    }


def test_the_index_of_samples_is_a_tensor():
    with pytest.raises(UserError, match=r"^index: is an int; give the number of every sample, such as torch.arange\(16\)$"):
        Noise(0, 3)


def test_a_seed_that_nobody_gives_is_zero():
    """Whatever is public and has a default seed, so that two calls with the same arguments draw the same numbers."""
    defaults = {}
    for package in (springwell, springwell.applications, springwell.likelihood):
        for name in package.__all__:
            with contextlib.suppress(TypeError, ValueError, KeyError):
                defaults[name] = inspect.signature(getattr(package, name)).parameters["seed"].default
            if name in defaults and defaults[name] is inspect.Parameter.empty:
                del defaults[name]
    assert {"Draws", "Settings", "tune_steps"} <= set(defaults)
    assert set(defaults.values()) == {0}, defaults
