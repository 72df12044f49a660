"""Routes of log-in, users, tokens, projects, secrets and the audit."""
