"""What is special where a member computes on a CUDA device."""
