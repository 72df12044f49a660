"""The supervisor of an attempt: who belongs, where they run, who is frozen or slow."""
