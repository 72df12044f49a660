"""The control plane as a server: its answers under load, under attack and after kills."""
