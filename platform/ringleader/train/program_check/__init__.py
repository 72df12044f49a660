"""A program run as a worker would that comes in later, to name what differs before it does harm."""
