"""Files that the program reads and writes."""
