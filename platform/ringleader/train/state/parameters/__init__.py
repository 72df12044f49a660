"""Which parameters are trained, whose gradients travel as rows, and whether a tensor has changed."""
