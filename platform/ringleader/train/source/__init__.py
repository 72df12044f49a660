"""The program's source text: which of its variables have a say in training."""
