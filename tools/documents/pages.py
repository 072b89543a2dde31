"""The table of generated pages: a path below the checkout, and the function that makes its text."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tools.documents import commands, configuration, dashboard, map, metrics, requests
from tools.documents.sample import sample_broker

__all__ = ["ROOT", "pages"]

ROOT: Final = Path(__file__).resolve().parents[2]


def pages() -> dict[str, str]:
    """Return the text of every generated page by its path. Blocks while a broker is opened in a temporary folder."""
    with sample_broker() as broker:
        return {
            "docs/map.md": map.page(ROOT),
            "docs/operate/configuration.md": configuration.page(),
            "docs/operate/metrics.md": metrics.page(broker),
            "docs/compat/requests.md": requests.page(broker),
            "docs/tour/commands.md": commands.page(),
            dashboard.PATH: dashboard.dashboard(),
        }
