"""DeepSpeed compiles an operator at its first start; where it cannot, that is one error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

from pivotopd.compiled_operators import extensions_folder, one_at_a_time
from tests.chat_server import closed_port
from tests.child_process import wait_until

ROOT = Path(__file__).resolve().parent.parent


def test_a_folder_of_operators_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    folder = str(tmp_path / "file" / "operators")
    code = "import sys; from pivotopd.exits import run_command; from pivotopd.distributed import join\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "sys.exit(run_command(lambda: join() and None))"],
        cwd=ROOT,
        env=os.environ | {"TORCH_EXTENSIONS_DIR": folder},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert folder in done.stderr
    assert "Traceback" not in done.stderr


def test_a_lock_left_behind_holds_nobody_up_also_where_the_folder_came_from_a_parent_process() -> None:
    folder = extensions_folder()
    with one_at_a_time(folder):
        (folder / "deepspeed_shm_comm").mkdir(exist_ok=True)
        (folder / "deepspeed_shm_comm" / "lock").touch()
    done = subprocess.run(
        [sys.executable, "-c", "from pivotopd.distributed import join; join()"],
        cwd=ROOT,
        env=os.environ | {"TORCH_EXTENSIONS_DIR": str(folder)},
        timeout=600,
        check=False,
    )
    assert done.returncode == 0
    assert not (folder / "deepspeed_shm_comm" / "lock").exists()


def test_a_rank_that_waits_for_the_others_can_be_stopped() -> None:
    port = closed_port()
    rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    code = "from pivotopd.exits import run_and_leave; from pivotopd.distributed import join\n"
    process = subprocess.Popen(
        [sys.executable, "-c", code + "run_and_leave(lambda: join() and None)"],
        cwd=ROOT,
        env=os.environ | rank | {"MASTER_PORT": str(port)},
        stderr=subprocess.PIPE,
        text=True,
    )
    listens = psutil.Process(process.pid).net_connections
    wait_until(lambda: any(one.laddr.port == port for one in listens("tcp")), 100)
    process.terminate()
    try:
        assert "asked to stop by SIGTERM" in process.communicate(timeout=100)[1]
    finally:
        process.kill()
    assert process.returncode == 75
