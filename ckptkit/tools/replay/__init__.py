"""Trains a stretch of a run again, from one of its checkpoints to another, and compares every bit.

``stretch`` chooses the checkpoints, ``replay`` runs the user's script between them in scratch roots and compares. The
process itself, and the trace that it writes, are those of ``ckptkit.tools.doctor``.
"""
