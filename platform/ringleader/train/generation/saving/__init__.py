"""When a checkpoint is due, what each member copies for it, and how the copy is written."""
