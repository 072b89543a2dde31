"""The command `python -m tools.documents`: write every generated page that differs from what is there."""

import sys

from tools.documents.pages import ROOT, pages


def main() -> int:
    """Write the pages and name those that changed; return 0."""
    for path, text in pages().items():
        target = ROOT / path
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
