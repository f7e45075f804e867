"""The documentation site: `make docs` builds it from the pages of docs/, declarations, docstrings and tests."""
