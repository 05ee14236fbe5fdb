"""Stores run roots in buckets of S3 and OBS.

`open` and `options` turn a URL and options into a client; `storage` and `requests` turn calls into requests. Large
files go in parts from reused memory (`multipart`, `lanes`). `retry` repeats requests that failed temporarily, and
`errors` interprets error answers. `ckptkit.storage.protocol` says what a storage must guarantee.
"""
