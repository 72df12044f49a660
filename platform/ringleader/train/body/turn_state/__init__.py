"""State that turns of a loop's body keep in the program's own objects: what is handed on, what the first one sets."""
