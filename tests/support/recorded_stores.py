"""The store directories that Apache RocketMQ wrote, which lie in tests/compat/stores."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Final

STORES: Final = Path(__file__).parents[1] / "compat" / "stores"


def unpack(name: str, folder: Path) -> Path:
    """Have this store there; the folder."""
    with tarfile.open(STORES / f"{name}.tar.gz") as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:  # Debian 12's Python has none; the archives are our own
            archive.extractall(folder)
    return folder
