"""The drawings of commands on a terminal: the progress of a job, all jobs at once, and completion by the shell."""
