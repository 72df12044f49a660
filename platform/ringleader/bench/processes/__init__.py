"""A benchmark's processes: started, given turns, watched, and gone at its end."""
