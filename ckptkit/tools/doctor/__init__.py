"""``ckptkit doctor``: runs a user's own script again and again, and says whether an interruption changes anything.

It starts processes and reads their traces; it imports no MindSpore.
"""
