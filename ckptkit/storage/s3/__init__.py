"""Buckets of S3 and OBS.

A URL and options become a client (`open`, `options`), and calls become requests (`storage`, `requests`).
Large files go in parts from reused memory (`multipart`, `lanes`); `retry` repeats what may pass, and `errors` says what
an answer means. What a storage has to guarantee is `ckptkit.storage.protocol`'s.
"""
