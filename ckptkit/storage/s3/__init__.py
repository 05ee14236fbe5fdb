"""Stores run roots in buckets of S3 and OBS.

`options` turns a URL and options into a client; `storage` and `requests` turn calls into requests and interpret error
answers; `retry` repeats those that failed temporarily.
"""
