"""Servers that tests of remote storage run against, and a proxy in front of them that fails as asked."""
