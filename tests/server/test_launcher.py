"""The launcher with a real tritonserver: readiness, restarts, and nothing left behind."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton

from proteus.launcher import LaunchFailed, Repository, RestartPolicy, Server
from proteus.launcher.processes import is_alive
from proteus.limits_gpu import LOOPBACK
from tests.server.toys import BROKEN, write_onnx_model, write_python_model
from tests.waiting import wait_for

SHM = Path("/dev/shm")
DEMO = Path(__file__).parents[2] / "deployments" / "demo.toml"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return write_python_model(tmp_path / "repository", "add_one")


@pytest.fixture(scope="module")
def shared_toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """For tests that leave it as it is."""
    with Server.for_repository(write_python_model(tmp_path_factory.mktemp("toy"), "add_one")) as server:
        yield server


@pytest.fixture
def toy(repository: Path) -> Iterator[Server]:
    """For tests that break it."""
    with Server.for_repository(repository) as server:
        yield server


def ask(server: Server, value: float = 1.0) -> float:
    tensor = triton.InferInput("x", [1], "FP32")
    tensor.set_data_from_numpy(np.array([value], np.float32))
    with triton.InferenceServerClient(server.ports.grpc_url) as client:
        return float(client.infer("add_one", [tensor], client_timeout=10).as_numpy("y")[0])


def traces_of(server: Server) -> list[Path]:
    """Files that carry the name of this server: its folder and its shared memory."""
    name = server.log.parent.name
    return [*SHM.glob(f"{name}*"), *server.log.parent.parent.glob(f"{name}*")]


def all_pids(server: Server) -> list[int]:
    return [server.pid, *(pid for pids in server.stub_pids().values() for pid in pids)]


def test_started_server_answers_and_knows_its_stubs(shared_toy: Server) -> None:
    assert shared_toy.is_ready()
    assert ask(shared_toy, 41.0) == 42.0
    assert {model: len(pids) for model, pids in shared_toy.stub_pids().items()} == {"add_one": 2}


def test_server_listens_on_loopback_only(shared_toy: Server) -> None:
    listening = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{shared_toy.pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, _, port = local.partition(":")
            if state == "0A":
                listening[int(port, 16)] = address
    assert {listening[port] for _, port in shared_toy.ports.items()} <= {
        "0100007F",
        "0000000000000000FFFF00000100007F",
    }


def test_machine_with_fewer_cores_than_the_deployment_is_warned_about(
    repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(Repository(path=repository, cores=10_000)) as server:
        assert "cores, the deployment expects 10000" in caplog.text
        assert ask(server, 1.0) == 2.0


def test_servers_run_side_by_side(shared_toy: Server, repository: Path) -> None:
    with Server.for_repository(repository) as other:
        assert {port for _, port in shared_toy.ports.items()}.isdisjoint(port for _, port in other.ports.items())
        assert (ask(shared_toy, 1.0), ask(other, 2.0)) == (2.0, 3.0)
    assert ask(shared_toy, 3.0) == 4.0


def test_taken_port_is_named(shared_toy: Server, repository: Path) -> None:
    with pytest.raises(LaunchFailed, match=f"http port {shared_toy.ports.http} is already in use"):
        Server.for_repository(repository, http_port=shared_toy.ports.http).start()


def test_killed_stub_brings_the_service_back_on_the_same_ports(toy: Server) -> None:
    ports, before = toy.ports, all_pids(toy)
    os.kill(toy.stub_pids()["add_one"][0], signal.SIGKILL)
    toy.wait_until_ready(timeout_s=10.0, restarts=1)
    assert (toy.ports, toy.restarts) == (ports, 1)
    assert set(all_pids(toy)).isdisjoint(before)
    assert not any(is_alive(pid) for pid in before)
    assert ask(toy, 1.0) == 2.0
    assert "a stub of 'add_one' died; restarting the server" in toy.log.read_text()


def test_a_death_and_a_stop_do_not_wait_for_the_next_look(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proteus.launcher.server.WATCH_S", 3600)
    with Server.for_repository(repository) as server:
        for restarts in (1, 2):
            os.kill(server.stub_pids()["add_one"][0], signal.SIGKILL)
            server.wait_until_ready(timeout_s=10.0, restarts=restarts)
        assert ask(server, 1.0) == 2.0


def test_killed_server_process_brings_the_service_back(toy: Server) -> None:
    before = all_pids(toy)
    os.kill(toy.pid, signal.SIGKILL)
    toy.wait_until_ready(timeout_s=10.0, restarts=1)
    assert ask(toy, 1.0) == 2.0
    assert not any(is_alive(pid) for pid in before)


def test_stubs_that_keep_dying_end_in_a_clear_error(repository: Path) -> None:
    dies = "import os, threading\n\n\nclass TritonPythonModel:\n    def initialize(self, args):\n"
    dies += "        threading.Timer(0.3, lambda: os.kill(os.getpid(), 9)).start()\n"
    write_python_model(repository, "dies", dies)
    server = Server.for_repository(repository, restart_policy=RestartPolicy(max_restarts=2))
    with server, pytest.raises(LaunchFailed, match="stubs keep dying; limit: 2 restarts within 60 s"):
        server.wait()


def test_stopped_server_leaves_nothing_behind(repository: Path) -> None:
    server = Server.for_repository(repository).start()
    pids, traces = all_pids(server), traces_of(server)
    assert len(traces) >= 3, "the folder and a region of each stub"
    server.stop()
    assert not any(is_alive(pid) for pid in pids)
    assert not any(trace.exists() for trace in traces)
    with server:
        assert ask(server, 1.0) == 2.0


def test_stop_of_a_restarted_server_leaves_nothing_behind(repository: Path) -> None:
    server = Server.for_repository(repository).start()
    os.kill(server.stub_pids()["add_one"][0], signal.SIGKILL)
    server.wait_until_ready(timeout_s=10.0, restarts=1)
    name = server.log.parent.name
    server.stop()
    assert not list(SHM.glob(f"{name}*"))


LAUNCH = """
import signal, sys
from pathlib import Path
from proteus.launcher import Server
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs start without
server = Server.for_repository(Path(sys.argv[1])).start()
stubs = [pid for pids in server.stub_pids().values() for pid in pids]
print(server.log.parent, server.pid, *stubs, flush=True)
server.wait()
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_end_of_the_launcher_takes_everything_with_it(repository: Path, sent: signal.Signals) -> None:
    command = [sys.executable, "-c", LAUNCH, str(repository)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as launcher:
        assert launcher.stdout is not None
        folder, *numbers = launcher.stdout.readline().split()
        pids = [int(number) for number in numbers]
        assert len(pids) == 3
        launcher.send_signal(sent)
    assert wait_for(lambda: not any(is_alive(pid) for pid in pids))
    assert wait_for(lambda: not Path(folder).exists())
    assert not list(SHM.glob(f"{Path(folder).name}*"))


SERVE = """
import sys
from pathlib import Path
from proteus.launcher import serve
sys.exit(serve(Path(sys.argv[1]), http_port=None, grpc_port=None, metrics_port=None, log=Path(sys.argv[2])))
"""


def test_serve_says_where_it_listens_and_ends_well_on_a_signal(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    command = [sys.executable, "-c", SERVE, str(DEMO), str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        said = dict(process.stdout.readline().split(maxsplit=1) for _ in range(4))
        assert said["http"].startswith("http://127.0.0.1:")
        assert said["log"].strip() == str(log)
        with triton.InferenceServerClient(said["grpc"].strip()) as client:
            assert client.is_model_ready("chat")
        process.send_signal(signal.SIGTERM)
        assert process.communicate()[0].splitlines()[-1] == "stopped"
    assert process.returncode == 0
    assert "successfully loaded 'chat'" in log.read_text()


def test_model_that_fails_to_load_shows_its_reason(repository: Path, tmp_path: Path) -> None:
    write_python_model(repository, "broken", BROKEN)
    log = tmp_path / "server.log"
    with pytest.raises(LaunchFailed, match="failed to load 'broken'.*the checkpoint has no tokenizer.json"):
        Server.for_repository(repository, log=log).start()
    assert "failed to load 'broken'" in log.read_text()


@pytest.fixture
def look_up(tmp_path: Path) -> Iterator[Callable[[list[int]], triton.InferResult]]:
    repository = write_onnx_model(tmp_path / "repository", "squares")
    with Server.for_repository(repository) as server, triton.InferenceServerClient(server.ports.grpc_url) as client:

        def ask_for(indices: list[int]) -> triton.InferResult:
            tensor = triton.InferInput("index", [len(indices), 1], "INT64")
            tensor.set_data_from_numpy(np.array(indices).reshape(-1, 1))
            return client.infer("squares", [tensor], client_timeout=10)

        yield ask_for


def test_onnxruntime_backend_runs_requests_together_and_fails_them_alone(
    look_up: Callable[[list[int]], triton.InferResult],
) -> None:
    sent = [[1], [2, 3], [4], [5, 6]]
    with ThreadPoolExecutor(len(sent)) as pool:
        results = list(pool.map(look_up, sent))
        for indices, result in zip(sent, results, strict=True):
            assert result.as_numpy("square").ravel().tolist() == [index**2 for index in indices]
        assert max(int(result.as_numpy("rows").max()) for result in results) > 2

        bad, good = pool.submit(look_up, [99]), [pool.submit(look_up, [index]) for index in (7, 8, 9)]
        assert [one.result().as_numpy("square").item() for one in good] == [49, 64, 81]
        with pytest.raises(triton.InferenceServerException, match="internal: the model failed on these inputs"):
            bad.result()


@pytest.mark.parametrize("method", ["load_model", "unload_model"])
def test_no_client_loads_or_unloads_a_model(grpc_client: triton.InferenceServerClient, method: str) -> None:
    """Triton allows both to whoever asks once a server is told which models of its repository to load."""
    with pytest.raises(triton.InferenceServerException, match="This protocol is restricted"):
        getattr(grpc_client, method)("chat")
    assert grpc_client.is_model_ready("chat")


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("register_system_shared_memory", ("mine", "/mine", 64)),
        ("get_system_shared_memory_status", ()),
        ("register_cuda_shared_memory", ("mine", b"", 0, 64)),
        ("update_log_settings", ({"log_verbose_level": 9},)),
        ("get_trace_settings", ()),
        ("update_trace_settings", (None, {"trace_file": "/tmp/anywhere"})),
    ],
)
def test_no_client_reaches_shared_memory_log_or_traces(
    shared_toy: Server, method: str, arguments: tuple[object, ...]
) -> None:
    """NVIDIA's bulletins 5687 and 5691 ask for it: docs/advisories.md."""
    with (
        triton.InferenceServerClient(shared_toy.ports.grpc_url) as client,
        pytest.raises(triton.InferenceServerException, match="This protocol is restricted"),
    ):
        getattr(client, method)(*arguments)


@pytest.mark.parametrize("path", ["systemsharedmemory/status", "cudasharedmemory/status", "logging", "trace/setting"])
def test_nor_over_http(shared_toy: Server, path: str) -> None:
    connection = http.client.HTTPConnection(LOOPBACK, shared_toy.ports.http, timeout=10)
    try:
        connection.request("GET", f"/v2/{path}")
        answer = connection.getresponse()
        assert (answer.status, b"restricted" in answer.read()) == (403, True)
    finally:
        connection.close()
