"""The nodes of the cluster: what runs on them beside members, and how they start fast."""
