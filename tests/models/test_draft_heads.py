"""Draft heads: each computes its formula, by torch and by the CPU's kernels, and a folder that is wrong is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer, LlamaForCausalLM

from engine.attention.backend import AttentionInputs
from engine.errors import ModelError
from engine.layers.attention import AttentionMetadata
from engine.models import store
from engine.models.architecture import Architecture, read_architecture
from engine.models.eagle_head import EagleHead, load_eagle_head
from engine.models.medusa_head import load_medusa_head
from engine.models.packed_decoder import PackedDecoder
from engine.worker.kv_cache import CacheShape, bind_kv_cache
from kernels.cpu import library
from scripts.train_heads.eagle import EagleInTraining
from scripts.train_heads.examples import Batch
from scripts.train_heads.medusa import MedusaInTraining
from scripts.train_heads.save import Kind, save_head
from tests.models.random_models import save_random_model
from tests.models.test_decoder import BLOCK_SIZE, NUM_BLOCKS, backend_of
from tests.models.test_decoder import load as load_target

CPU = torch.device("cpu")
#: Of the random models' vocabulary, 131 tokens.
DRAFTED = torch.arange(3, 131, 4)
LOADINGS = (False, True)


def require_loading(packed: bool) -> None:
    if packed and library.why_unavailable() is not None:
        pytest.skip(str(library.why_unavailable()))


def saved(folder: Path, kind: Kind, target_ids: Tensor = DRAFTED) -> tuple[Any, Path]:
    """A head that has learned nothing, for a random model, and its folder beside the model's."""
    target = cast(LlamaForCausalLM, save_random_model(folder / "target", "llama tied"))
    torch.manual_seed(1)
    head = EagleInTraining(target, target_ids, 1) if kind == "eagle" else MedusaInTraining(target, target_ids, 3)
    for parameter in head.parameters():
        # What bfloat16 holds, so that nothing is lost in the file.
        parameter.data = (parameter.data + 0.05 * torch.randn_like(parameter)).bfloat16().float()
    save_head(head, head.vocabulary, kind, "target", folder / kind)
    return head, folder / kind


def target_of(folder: Path) -> Architecture:
    return read_architecture(folder / "target")


def load_eagle(folder: Path, target: Path, num_positions: int = 64, *, packed: bool = False) -> EagleHead:
    decoder = load_target(target)
    return load_eagle_head(folder, PackedDecoder(decoder) if packed else decoder, num_positions)


@torch.inference_mode()
def run_eagle(head: EagleHead, token_ids: Tensor, states: Tensor, chunks: list[int]) -> Tensor:
    """One request, its tokens in chunks: the states that the head guesses, [tokens, hidden_size]."""
    backend = backend_of(head.decoder)
    bind_kv_cache(head.decoder, CacheShape.of(head.decoder, BLOCK_SIZE), NUM_BLOCKS, backend)
    tables, guessed, first = torch.arange(1, NUM_BLOCKS)[None], [], 0
    for size in chunks:
        positions = torch.arange(first, first + size)
        slots = tables[0, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        inputs = AttentionInputs(tables, torch.tensor([0, size]), torch.tensor([first + size]), slots)
        metadata = AttentionMetadata((backend.plan(inputs, inputs, None),))
        guessed.append(head(token_ids[positions], states[positions], positions, metadata))
        first += size
    return torch.cat(guessed)


@pytest.mark.parametrize("packed", LOADINGS)
def test_an_eagle_head_computes_what_was_trained(packed: bool, tmp_path: Path) -> None:
    require_loading(packed)
    trained, folder = saved(tmp_path, "eagle")
    head = load_eagle(folder, tmp_path / "target", packed=packed)
    token_ids, states = torch.randint(0, 131, (1, 23)), torch.randn(1, 23, 64)
    batch = Batch(token_ids, states, torch.ones_like(token_ids, dtype=torch.bool))
    with torch.inference_mode():
        wanted = trained.guesses(batch, 1)[0][0]
        wanted_logits = F.linear(wanted, trained.lm_head)
    guessed = run_eagle(head, token_ids[0].roll(-1), states[0], [9, 1, 13])
    torch.testing.assert_close(guessed, wanted, atol=2e-4, rtol=0)
    torch.testing.assert_close(head.compute_logits(guessed), wanted_logits, atol=2e-3, rtol=0)
    assert wanted_logits.std() > 0.1, "logits this flat would match by accident"


@pytest.mark.parametrize("packed", LOADINGS)
def test_an_eagle_head_learns_on_what_it_will_see(packed: bool, tmp_path: Path) -> None:
    """The second pass of training, at one place, is what the head computes there while it drafts."""
    require_loading(packed)
    trained, folder = saved(tmp_path, "eagle")
    head = load_eagle(folder, tmp_path / "target", packed=packed)
    token_ids, states = torch.randint(0, 131, (1, 12)), torch.randn(1, 12, 64)
    batch = Batch(token_ids, states, torch.ones_like(token_ids, dtype=torch.bool))
    with torch.inference_mode():
        passes = trained.guesses(batch, 3)
    place = 7  # three drafts begin here
    drawn = token_ids[0].roll(-1)
    seen, chunks = states[0, : place + 1], [place + 1]
    for number, expected in enumerate(passes):
        guessed = run_eagle(head, drawn[: place + 1 + number], seen, chunks)
        torch.testing.assert_close(guessed[-1], expected[0, place + number], atol=2e-4, rtol=0)
        seen, chunks = torch.cat((seen, guessed[-1:])), [*chunks, 1]


@pytest.mark.parametrize("packed", LOADINGS)
def test_medusa_heads_compute_their_formula(packed: bool, tmp_path: Path) -> None:
    require_loading(packed)
    trained, folder = saved(tmp_path, "medusa")
    head = load_medusa_head(folder, target_of(tmp_path), torch.float32, CPU, packed=packed)
    hidden = torch.randn(5, 64)
    logits = head.compute_logits(hidden)
    assert logits.shape == (3, 5, len(DRAFTED))
    for number in range(3):
        block = F.silu(hidden @ trained.weight[number].T + trained.bias[number])
        expected = (hidden + block) @ trained.lm_head.T
        torch.testing.assert_close(logits[number], expected.detach(), atol=1e-3, rtol=0)


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_a_trimmed_head_says_which_tokens_it_drafts(kind: Kind, tmp_path: Path) -> None:
    _, folder = saved(tmp_path, kind)
    assert load(kind, folder, tmp_path).target_ids.tolist() == DRAFTED.tolist()


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_a_head_of_the_whole_vocabulary_has_no_table(kind: Kind, tmp_path: Path) -> None:
    _, folder = saved(tmp_path, kind, torch.arange(131))
    assert load(kind, folder, tmp_path).target_ids is None


def test_a_trimmed_head_reads_fewer_bytes(tmp_path: Path) -> None:
    _, trimmed = saved(tmp_path / "trimmed", "medusa")
    _, whole = saved(tmp_path / "whole", "medusa", torch.arange(131))
    fewer = load("medusa", trimmed, tmp_path / "trimmed").weight_bytes()
    more = load("medusa", whole, tmp_path / "whole").weight_bytes()
    assert more - fewer == (131 - len(DRAFTED)) * 64 * 4


def load(kind: Kind, folder: Path, beside: Path) -> Any:
    if kind == "eagle":
        return load_eagle(folder, beside / "target")
    return load_medusa_head(folder, target_of(beside), torch.float32, CPU)


def change(folder: Path, **values: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "must hold a draft head of architecture"),
        ({"hidden_size": 65}, "is made for target: its hidden_size is 65, the model's 64"),
        ({"vocab_size": 500}, "its vocab_size is 500, the model's 131"),
        ({"draft_vocab_size": 132}, "draft_vocab_size must be an integer in"),
        ({"draft_vocab_size": 7}, "according to config.json"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(kind: Kind, values: dict[str, Any], said: str, tmp_path: Path) -> None:
    _, folder = saved(tmp_path, kind)
    change(folder, **values)
    with pytest.raises(ModelError, match=said):
        load(kind, folder, tmp_path)


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
@pytest.mark.parametrize(
    ("table", "said"),
    [
        (DRAFTED.flip(0), "must be ascending token ids in \\[0, 130\\]"),
        (DRAFTED.clamp(max=40), "must be ascending"),
        (DRAFTED + 10, "must be ascending"),
        (DRAFTED.int(), "must be of dtype int64"),
        (None, "lacks target_ids"),
    ],
)
def test_a_table_that_is_none_is_refused(kind: Kind, table: Tensor | None, said: str, tmp_path: Path) -> None:
    _, folder = saved(tmp_path, kind)
    tensors = load_file(folder / "model.safetensors")
    del tensors["target_ids"]
    save_file(tensors if table is None else {**tensors, "target_ids": table}, folder / "model.safetensors")
    with pytest.raises(ModelError, match=said):
        load(kind, folder, tmp_path)


def test_a_head_that_was_not_made_yet_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORRERY_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match=r"run `python -m scripts.train_heads smollm2-135m --kind eagle`"):
        store.resolve_model("smollm2-135m-eagle")


@pytest.fixture(scope="module")
def told() -> tuple[Tensor, Tensor]:
    """What orrery-tiny says greedily: token ids [tokens] and its states [tokens, hidden_size]."""
    folder = store.resolve_model("orrery-tiny")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompt = tokenizer("Once upon a time, an honest baker lived by the sea.", return_tensors="pt").input_ids
    with torch.inference_mode():
        token_ids = model.generate(prompt, max_new_tokens=120, do_sample=False)
        states = model.model(token_ids).last_hidden_state[0]
    assert token_ids.shape[1] - prompt.shape[1] >= 60
    return token_ids[0], states


def accepted(logits: Tensor, target_ids: Tensor, token_ids: Tensor) -> float:
    """Share of the rows whose likeliest draft is that token."""
    return float((target_ids[logits.argmax(-1)] == token_ids).float().mean())


@pytest.mark.parametrize("packed", LOADINGS)
def test_the_shipped_eagle_head_guesses_what_comes(packed: bool, told: tuple[Tensor, Tensor]) -> None:
    require_loading(packed)
    folder = store.resolve_model("orrery-tiny-eagle")
    head = load_eagle(folder, store.resolve_model("orrery-tiny"), 2048, packed=packed)
    token_ids, states = told
    guessed = run_eagle(head, token_ids.roll(-1), states, [len(token_ids)])
    assert head.target_ids is not None
    assert accepted(head.compute_logits(guessed[:-2]), head.target_ids, token_ids[2:]) > 0.5


@pytest.mark.parametrize("packed", LOADINGS)
def test_the_shipped_medusa_heads_guess_what_comes(packed: bool, told: tuple[Tensor, Tensor]) -> None:
    require_loading(packed)
    target = read_architecture(store.resolve_model("orrery-tiny"))
    folder = store.resolve_model("orrery-tiny-medusa")
    head = load_medusa_head(folder, target, torch.float32, CPU, packed=packed)
    token_ids, states = told
    assert head.target_ids is not None
    shares = [
        accepted(logits[: -2 - number], head.target_ids, token_ids[2 + number :])
        for number, logits in enumerate(head.compute_logits(states))
    ]
    assert shares[0] > 0.5 and shares[-1] > 0.2
