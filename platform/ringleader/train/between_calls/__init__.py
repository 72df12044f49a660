"""The program's lines between session calls: the state they run on, and the variables they make."""
