"""The supervisor of an attempt: membership, placement, and the detection of frozen and slow workers."""
