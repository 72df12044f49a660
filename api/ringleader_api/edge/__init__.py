"""The layers every request passes before it reaches a route: number and log, headers, size limit, credential."""
