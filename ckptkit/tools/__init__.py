"""Acts on stored runs, during or without a training, and on jobs: `doctor` and `supervisor` start them.

The command line is `ckptkit.cli`. No lower package imports them.
"""
