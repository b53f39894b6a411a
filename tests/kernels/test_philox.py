"""Philox against the known answers of Random123, and the keying of the noise."""

from __future__ import annotations

import pytest
import torch

from kernels.philox import Stream, gumbel, philox_4x32_10, uniform, uniform_at, uniform_at_triton, uniform_triton

# Random123, tests/kat_vectors: philox4x32 with 10 rounds.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
SEEDS = torch.tensor([0, 1, 2**40 + 5, -1])  # -1 is the seed 2**64 - 1
POSITIONS = torch.tensor([0, 7, 7, 1000])


def _words(text: str) -> list[torch.Tensor]:
    return [torch.tensor(int(word, 16)) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(counter: str, key: str, expected: str) -> None:
    c0, c1, c2, c3 = _words(counter)
    k0, k1 = _words(key)
    result = philox_4x32_10((c0, c1, c2, c3), (k0, k1))
    assert " ".join(f"{int(word):08x}" for word in result) == expected


def test_the_words_go_where_the_docstring_says() -> None:
    seed, position, token = 0x299F31D0A4093822, 12, 4 * 9 + 2
    counter = tuple(torch.tensor(word) for word in (9, position, int(Stream.DRAFT), 0))
    bits = philox_4x32_10(counter, (torch.tensor(0xA4093822), torch.tensor(0x299F31D0)))[2]  # type: ignore[arg-type]
    noise = uniform(torch.tensor([seed]), torch.tensor([position]), Stream.DRAFT, 100)
    assert noise[0, token].item() == int(bits >> 8) / 2**24


def test_noise_of_a_row_does_not_depend_on_the_others() -> None:
    together = uniform(SEEDS, POSITIONS, Stream.TARGET, 1001)
    for row in range(len(SEEDS)):
        alone = uniform(SEEDS[row : row + 1], POSITIONS[row : row + 1], Stream.TARGET, 1001)
        assert torch.equal(together[row : row + 1], alone)


def test_noise_of_a_token_does_not_depend_on_the_vocabulary() -> None:
    assert torch.equal(
        uniform(SEEDS, POSITIONS, Stream.TARGET, 1003)[:, :17], uniform(SEEDS, POSITIONS, Stream.TARGET, 17)
    )


def test_noise_of_some_tokens_is_that_of_all() -> None:
    tokens = torch.randint(0, 300_000, (len(SEEDS), 50))
    everything = uniform(SEEDS, POSITIONS, Stream.ACCEPT, 300_000)
    assert torch.equal(uniform_at(SEEDS, POSITIONS, Stream.ACCEPT, tokens), everything.gather(1, tokens))


def test_seed_position_and_stream_all_count() -> None:
    noises = [
        uniform(torch.tensor([seed]), torch.tensor([position]), stream, 64)
        for seed in (3, 3 + 2**32)
        for position in (0, 1)
        for stream in Stream
    ]
    assert len({tuple(noise.flatten().tolist()) for noise in noises}) == 16


def test_uniforms_are_even_and_strictly_inside_the_unit_interval() -> None:
    noise = uniform(torch.arange(64), torch.zeros(64, dtype=torch.long), Stream.TARGET, 4096).flatten()
    assert noise.min() > 0.0 and noise.max() < 1.0
    counts = torch.histc(noise, bins=256, min=0.0, max=1.0)
    chi_square = ((counts - noise.numel() / 256) ** 2 / (noise.numel() / 256)).sum()
    assert chi_square < 330.5  # the 99.9 % quantile for 255 degrees of freedom
    assert gumbel(noise).isfinite().all()


def test_the_extreme_words_stay_inside() -> None:
    from kernels.philox import _to_unit_interval

    low, high = _to_unit_interval(torch.tensor([0, 2**32 - 1])).tolist()
    assert low > 0.0 and high < 1.0


@pytest.mark.parametrize("stream", Stream)
def test_triton_gives_the_same_bits(stream: Stream, device: str) -> None:
    for vocab_size in (1, 5, 1027):
        by_triton = uniform_triton(SEEDS.to(device), POSITIONS.to(device), stream, vocab_size)
        assert torch.equal(by_triton.cpu(), uniform(SEEDS, POSITIONS, stream, vocab_size))
    tokens = torch.randint(0, 2**31, (len(SEEDS), 9))
    by_triton = uniform_at_triton(SEEDS.to(device), POSITIONS.to(device), stream, tokens.to(device))
    assert torch.equal(by_triton.cpu(), uniform_at(SEEDS, POSITIONS, stream, tokens))


def test_rows_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="seeds and positions must be"):
        uniform(SEEDS, POSITIONS[:2], Stream.TARGET, 8)
