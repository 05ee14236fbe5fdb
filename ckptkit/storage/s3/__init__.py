"""Stores run roots in buckets of S3 and OBS.

`options` turns a URL and options into a client; `storage` turns calls into requests; `errors` says what error answers
mean, and repeats requests that failed temporarily.
"""
