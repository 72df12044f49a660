"""The objects of a program, and the values in them."""
