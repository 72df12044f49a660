"""Variables that a plain reading of the text takes for others, or for state: namesakes, and dicts that are tables."""
