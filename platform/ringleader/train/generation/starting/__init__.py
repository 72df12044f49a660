"""The begin of an attempt: from the newest checkpoint, from the weights of another job, or from nothing."""
