"""Holds the only part of ckptkit that imports MindSpore: train cell, state, data position, callback, demo."""
