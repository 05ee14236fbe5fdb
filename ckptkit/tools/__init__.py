"""Acts on stored runs, during or without a training: copy, verify, diff, prune, interchange, report, doctor.

Each has a package; the command line is `ckptkit.cli`. No lower package imports them.
"""
