"""Provides the values and small tools that all other packages use: progress, policies, tensors, accumulation, text.

No module here reads or writes storage, starts a thread or depends on MindSpore. Callers make the values; this package
checks them and passes them on unchanged.
"""
