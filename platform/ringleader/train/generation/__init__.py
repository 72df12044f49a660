"""A member's way from one generation to the next: entering, healing, joining, saving."""
