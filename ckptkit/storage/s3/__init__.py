"""Stores run roots in buckets of S3 and OBS.

`options`, `credentials` and `obs` turn a URL and options into a client; `storage` and `requests` turn calls into
requests; `retry` repeats those that failed temporarily, and `errors` interprets error answers.
"""
