"""Mirrors the package.

Each file has a name of its own. No folder below has an `__init__.py`, lest it be taken for `mindspore`, or `inspect`.
"""
