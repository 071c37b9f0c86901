"""The generator: its published outputs, its laws, and what it depends on."""

import torch
from scipy import stats

from springwell.noise import Noise, mix


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
