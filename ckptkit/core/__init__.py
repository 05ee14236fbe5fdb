"""Values and small tools that every other package uses: progress, policies, tensors, accumulation, texts for people.

Nothing here reads or writes storage, starts a thread or knows MindSpore. Values are made by callers, checked here, and
passed on unchanged.
"""
