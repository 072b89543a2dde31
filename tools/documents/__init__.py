"""Generated pages of docs/ and the dashboard of deploy/: text made from the code, so that no hand has to keep a list.

    python -m tools.documents     writes the pages; `python -m tools.check --fix` and `make docs` do the same
    tests/test_documents.py       compares what is committed with what would be written

Each module makes one page and is a pure function of the code but for `metrics` and `requests`, which open a broker in
a temporary folder to see what it serves. Pages that people write are tested by tests/test_docs.py instead.
"""
