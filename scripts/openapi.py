"""Write api/openapi.json, the REST contract: what the code says now. A test compares the two."""

import json
import sys
import tempfile
from pathlib import Path

from ringleader_api.app import create_app
from ringleader_api.backend import RayBackend
from ringleader_api.settings import Settings

CONTRACT = Path(__file__).resolve().parents[1] / "api" / "openapi.json"


def contract() -> str:
    """The OpenAPI document as it is committed: sorted, so that a change shows where it is."""
    with tempfile.TemporaryDirectory() as home:
        app = create_app(Settings(home=Path(home)), RayBackend("", warm_per_node=0))
        try:
            return json.dumps(app.openapi(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        finally:
            app.state.control.close()


def main() -> int:
    CONTRACT.write_text(contract(), encoding="utf-8")
    print(f"{CONTRACT.name}: {CONTRACT.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
