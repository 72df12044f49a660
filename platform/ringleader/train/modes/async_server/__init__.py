"""Parameter servers that lease items to workers: async, ssp and backup workers."""
