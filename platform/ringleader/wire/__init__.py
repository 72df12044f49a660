"""JSON shapes and states that server, SDK, page and supervisor share."""
