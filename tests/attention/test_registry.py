"""Which backend serves a model, and what is said when the one asked for cannot."""

from __future__ import annotations

from typing import get_args

import pytest
import torch

from engine.attention import registry
from engine.attention.backend import AttentionSpec
from engine.attention.registry import available_backends, make_backend
from engine.config import AttentionBackendName
from engine.errors import ConfigError

CPU = AttentionSpec(
    num_heads=4, num_kv_heads=2, head_size=16, block_size=8, dtype=torch.float32, device=torch.device("cpu")
)


def test_a_backend_can_be_asked_for_by_name() -> None:
    assert make_backend("torch", CPU).name == "torch"


def test_auto_takes_one_that_is_available() -> None:
    assert make_backend("auto", CPU).name in available_backends(CPU)
    assert "torch" in available_backends(CPU)


def test_the_configuration_names_exactly_those_that_there_are() -> None:
    assert set(get_args(AttentionBackendName)) == {"auto", *registry.BACKENDS}


def test_every_name_is_the_name_of_its_backend() -> None:
    for name in available_backends(CPU):
        assert make_backend(name, CPU).name == name


@pytest.mark.parametrize("name", ["flash_attn", "flashinfer"])
def test_libraries_of_gpus_are_refused_on_a_cpu(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"attention_backend={name} cannot be used: it runs on CUDA only; available"):
        make_backend(name, CPU)


def test_one_that_cannot_serve_is_refused_with_those_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BACKENDS, "triton", f"{__name__}:Elsewhere")
    with pytest.raises(ConfigError, match=r"attention_backend=triton cannot be used: the moon is full; .* torch"):
        make_backend("triton", CPU)


def test_auto_says_what_would_be_faster(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(registry.BACKENDS, "cpu", f"{__name__}:Elsewhere")
    assert make_backend("auto", CPU).name == "torch"
    assert capsys.readouterr().err == (
        "Running with attention_backend=torch, which is several times slower: the moon is full.\n"
    )


class Elsewhere:
    """A backend of another machine."""

    @staticmethod
    def why_unavailable(spec: AttentionSpec) -> str | None:
        return "the moon is full"
