"""Keeps a second root up to date: `chain` opens both roots, `uploads` copies each commit in a thread of its own."""
