"""The tensors of a training: which there are, what each is for, and how stored bits come back into them.

`parameters` finds them, `tracked` keeps their memory from save to save, `restore` and `apply` put bits back.
"""
