"""Who asks, and what for: accounts, tokens, projects, the audit."""
