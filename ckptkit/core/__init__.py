"""Provides the values and small tools that all other packages use: progress, policies, tensors, accumulation, text.

No module here reads or writes storage or depends on MindSpore; only `worker` starts threads. Callers make the values;
this package checks them and passes them on unchanged.
"""
