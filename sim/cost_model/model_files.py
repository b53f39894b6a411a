"""`--model` of a simulation: only its `config.json` is needed, never its weights."""

from __future__ import annotations

from pathlib import Path

import engine.models
from engine.errors import ModelError
from engine.models.architecture import Architecture, read_architecture, shape_of
from engine.models.config_file import ConfigFile

_HERE = Path(__file__).parent / "models"
_SHIPPED = Path(engine.models.__path__[0]) / "shipped"

_CONFIGS = {path.stem: path for path in _HERE.glob("*.json")} | {
    "orrery-tiny": _SHIPPED / "orrery-tiny" / "config.json"
}

#: Models whose config is at hand.
KNOWN_MODELS = tuple(sorted(_CONFIGS))


def find_architecture(model: str) -> Architecture:
    """The shape of a model.

    Args:
        model: one of `KNOWN_MODELS`, a `config.json`, or a folder with one.

    Raises:
        ModelError: there is no such model here, or its config is not one of a supported decoder.
    """
    path = _CONFIGS.get(model.lower(), Path(model))
    if path.is_file():
        config = ConfigFile.read(path)
        return shape_of(config, _class_name(config, path), config)
    if path.is_dir():
        return read_architecture(path)
    raise ModelError(
        f"There is no config of {model!r} here: name one of {', '.join(KNOWN_MODELS)}, a config.json or its folder."
    )


def _class_name(config: ConfigFile, path: Path) -> str:
    names = config.values.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ModelError(f"{path} must name the model's class under `architectures`.")
    return names[0]
