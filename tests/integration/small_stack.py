"""Three small services in place of Ray, MLflow and the API; as a script, an `up` of them on the home it is given."""

import sys
from pathlib import Path
from typing import Any

from ringleader.cli.stack.home import Home
from ringleader.cli.stack.recipes import Recipes
from ringleader.cli.stack.service import Recipe
from ringleader.cli.stack.stack import running
from ringleader.cli.up import Stopped, stoppable

SERVICE = """
import json, os, subprocess, sys, tempfile, time
# A daemon in its own session that ignores SIGTERM: what a badly behaved service leaves behind.
orphan = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
if os.fork() == 0:
    subprocess.Popen([sys.executable, "-c", orphan, sys.argv[1]], start_new_session=True)
    os._exit(0)
os.wait()
print("starting")
said = {"url": "http://127.0.0.1:4711", "address": sys.argv[1]}
if "ray" in sys.argv[1]:
    said["temp_dir"] = tempfile.mkdtemp()
print(json.dumps(said))
time.sleep(600)
"""


def small_recipe(home: Home, name: str, code: str = SERVICE, **more: Any) -> Recipe:
    if name == "api":
        home.api_token.write_text("secret\n")
    command = (sys.executable, "-c", code, f"{home.root}/{name}")
    return Recipe(
        name, command, {"TMPDIR": str(home.root)}, ready=lambda said: said is not None, grace_s=2, **more
    )


SMALL = Recipes(
    ray=lambda home, num_cpus: small_recipe(home, "ray"),
    mlflow=lambda home: small_recipe(home, "mlflow"),
    api=lambda home, port, address, mlflow_url: small_recipe(home, "api"),
)

if __name__ == "__main__":
    try:
        with stoppable() as stopping, running(Home(Path(sys.argv[1])), recipes=SMALL):
            stopping.wait()
    except Stopped:
        pass
