"""Sources: files of one format behind one interface, cut into blocks."""
