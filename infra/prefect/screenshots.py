"""Take the pictures of docs/interfaces.md from a Prefect and an MLflow server that have seen a training.

    pip install playwright && playwright install chromium      (in an environment of its own)
    python infra/prefect/screenshots.py --prefect http://127.0.0.1:4200 --mlflow http://127.0.0.1:5000

Where the download is blocked, a Chromium of the system does: --chromium /usr/bin/chromium.
"""

from __future__ import annotations

import argparse
import json
import urllib.request
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

OUT = Path(__file__).resolve().parents[2] / "docs/interfaces"
SETTLE_MS = 10_000
"""Both pages ask their server for more as long as they are open, so quiet is no sign that they are drawn."""


def ask(url: str, body: dict[str, Any]) -> Any:
    """Post a JSON body and return the JSON answer."""
    request = urllib.request.Request(  # noqa: S310 - the address that was given
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        return json.load(answer)


def prefect_pages(server: str) -> dict[str, str]:
    """Return the address of each page of Prefect that is shown, by picture."""
    api = f"{server}/api"
    runs = ask(f"{api}/flow_runs/filter", {"sort": "START_TIME_DESC", "limit": 50})
    trained = next(run for run in runs if "train" in run["tags"] and run["state_type"] == "COMPLETED")
    deployments = ask(f"{api}/deployments/filter", {})
    stage = next(one for one in deployments if one["name"] == "stage")
    body = {"artifacts": {"flow_run_id": {"any_": [trained["id"]]}}}
    tables = [one for one in ask(f"{api}/artifacts/filter", body) if one["type"] == "table"]
    return {
        "prefect-deployments": f"{server}/deployments",
        "prefect-run": f"{server}/runs/flow-run/{trained['id']}",
        "prefect-table": f"{server}/artifacts/artifact/{tables[0]['id']}",
        "prefect-stage-form": f"{server}/deployments/deployment/{stage['id']}/run",
    }


def mlflow_pages(server: str) -> dict[str, str]:
    """Return the address of each page of MLflow that is shown, by picture."""
    api = f"{server}/api/2.0/mlflow"
    found = ask(f"{api}/experiments/search", {"max_results": 50})["experiments"]
    ids = [one["experiment_id"] for one in found if one["name"].startswith("pivotopd/")]
    runs = ask(f"{api}/runs/search", {"experiment_ids": ids, "max_results": 50})["runs"]
    run = next(
        one["info"]
        for one in runs
        if one["info"]["status"] == "FINISHED"
        and not any(tag["key"] == "mlflow.parentRunId" for tag in one["data"]["tags"])
    )
    place = f"{server}/#/experiments/{run['experiment_id']}"
    return {
        "mlflow-runs": f"{place}/runs",
        "mlflow-run": f"{place}/runs/{run['run_id']}",
        "mlflow-metrics": f"{place}/runs/{run['run_id']}/model-metrics",
    }


def take(page: Page, name: str, url: str) -> None:
    """Open an address and keep what it shows."""
    page.goto(url)
    page.wait_for_timeout(SETTLE_MS)
    for beside in page.get_by_role("button", name="Close").all():  # a panel that MLflow opens at first
        beside.click()
    page.wait_for_timeout(500)
    page.screenshot(path=str(OUT / f"{name}.png"))


def main() -> None:
    """Take all pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--prefect", required=True, help="Prefect's server, such as http://127.0.0.1:4200")
    parser.add_argument("--mlflow", required=True, help="MLflow's server, such as http://127.0.0.1:5000")
    parser.add_argument("--chromium", help="the program, where playwright has none of its own")
    given = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    pages = prefect_pages(given.prefect.rstrip("/")) | mlflow_pages(given.mlflow.rstrip("/"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=given.chromium, args=["--no-sandbox"])
        for name, url in pages.items():
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            take(page, name, url)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
