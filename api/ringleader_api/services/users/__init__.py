"""Users and their rights: accounts, tokens, projects, the audit."""
