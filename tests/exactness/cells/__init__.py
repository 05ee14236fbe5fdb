"""Training cells and loops that are not ckptkit's, killed between two micro-steps and resumed in a fresh process."""
