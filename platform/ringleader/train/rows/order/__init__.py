"""The order of rows: which of them a step and a shard take, in a pass over a data set."""
