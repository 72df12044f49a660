"""Alerts: rules are judged on what is new about jobs, and what fires is sent from an outbox in the database."""
