"""A worker's side: it leases an item, computes its gradient and pushes it."""
