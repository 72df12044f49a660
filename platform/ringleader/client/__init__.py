"""The SDK: no torch, no ray."""
