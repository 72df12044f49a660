"""Run npm scripts of the web page, with the Node.js that the set-up found: `python scripts/page.py lint test`."""

import subprocess
import sys

from setup import WEB, SetupFailed, npm

if __name__ == "__main__":
    try:
        command, environ = npm()
    except SetupFailed as error:
        sys.exit(f"set-up: {error}")
    for script in sys.argv[1:]:
        code = subprocess.run(
            [*command, "run", "--silent", script], cwd=WEB, env=environ, check=False
        ).returncode
        if code:
            sys.exit(code)
