"""`orrery model list` and `orrery model fetch`: the models that have a short name, and bringing one here."""

from __future__ import annotations

from typing import Annotated

from rich.console import Console
from rich.table import Table
from typer import Argument

from engine.models import store


def list_models() -> None:
    """List the models that have a short name; hub names and folders can be given as well."""
    table = Table.grid(padding=(0, 3, 1, 0))
    for model in (*store.list_models(), *store.list_draft_heads()):
        here = "[green]here[/]" if model.available else f"[yellow]to {model.how}[/]"
        facts = f"{model.parameters / 1e6:.1f} M parameters, {model.size / 1e6:.0f} MB, {model.license}"
        table.add_row(f"[bold]{model.name}[/]", here, f"{facts}\n[dim]{model.description}[/]")
    Console(highlight=False).print(table)


def fetch(model: Annotated[str, Argument(help="A short name (see `orrery model list`) or a hub name.")]) -> None:
    """Fetch a model into the cache directory; one that is there already is checked and left as it is."""
    folder = store.fetch_model(model)
    Console(highlight=False).print(f"{model} is in {folder}", markup=False, soft_wrap=True)
