"""Finds the tensors of a training, says what each is for, and writes stored bits back into them.

`parameters` finds them, `roles` says what each is for, `memory` knows where they are, `apply` writes bits back.
"""
