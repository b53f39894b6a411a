"""`--device`: a device by name, or a file that describes one."""

from __future__ import annotations

from pathlib import Path

import msgspec

from engine.errors import ConfigError
from sim.cost_model.calibrated import CalibratedDevice
from sim.cost_model.devices import DEVICES, RooflineDevice

Device = RooflineDevice | CalibratedDevice


def find_device(text: str) -> Device:
    """The device of that name, or in that file.

    Raises:
        ConfigError: there is none, or the file does not describe one.
    """
    if text.lower() in DEVICES:
        return DEVICES[text.lower()]
    path = Path(text)
    if not path.is_file():
        raise ConfigError(
            f"There is no device {text!r}: name one of {', '.join(DEVICES)}, or a file of `orrery calibrate`."
        )
    try:
        return msgspec.json.decode(path.read_bytes(), type=Device)
    except (msgspec.DecodeError, OSError, ConfigError) as error:
        raise ConfigError(f"{text} does not describe a device: {error}.") from error


def write_device(device: Device, path: Path) -> None:
    """Write a device down, to be edited and found again by `find_device`."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(device), indent=2) + b"\n")
