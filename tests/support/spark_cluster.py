"""A real standalone cluster of Spark on loopback: one master and workers, each a process of its own."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

from tests.support.processes import Process, Processes

PATIENCE = 800.0
BECOME = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""To start, and small."""
SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": QUICK,
    "spark.executor.extraJavaOptions": QUICK,
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}
"""Of an application: an executor of one core on each worker."""


class SparkCluster:
    """A master and workers with a core each. `processes` ends what is left of them."""

    def __init__(self, processes: Processes, work: Path, workers: int = 2) -> None:
        import pyspark

        self._processes = processes
        self._home = str(Path(pyspark.__file__).parent)
        self._work = work
        master = self._start("org.apache.spark.deploy.master.Master", "--port", "0")
        self.url = wait_for(master, r"Starting Spark master at (spark://\S+)")
        self.workers = [self._worker(number) for number in range(workers)]
        for worker in self.workers:
            wait_for(worker, r"(Successfully registered) with master")

    def kill_worker(self, number: int) -> None:
        """kill -9 of a worker and the executors that it started, as if its machine had gone."""
        worker = self.workers[number]
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(PATIENCE)

    def submit(self, program: str, *args: str, **settings: Any) -> Process:
        """`spark-submit` of a program: its process."""
        options = [word for name, value in {**SETTINGS, **settings}.items() for word in ("--conf", f"{name}={value}")]
        return self._run(f"{self._home}/bin/spark-submit", "--master", self.url, *options, program, *args)

    def _worker(self, number: int) -> Process:
        where = ("--work-dir", str(self._work / f"worker-{number}"))
        return self._start("org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "1g", *where, self.url)

    def _start(self, kind: str, *args: str) -> Process:
        return self._run(f"{self._home}/bin/spark-class", kind, "--host", "127.0.0.1", "--webui-port", "0", *args)

    def _run(self, *command: str) -> Process:
        env = {
            "SPARK_HOME": self._home,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
            "SPARK_LAUNCHER_OPTS": QUICK,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "SPARK_LOCAL_DIRS": str(self._work),  # what is killed leaves things behind
            "PYSPARK_PYTHON": sys.executable,
        }
        return self._processes.start("-c", BECOME, *command, env=env)


def wait_for(process: Process, pattern: str) -> str:
    """What stands in a line of output."""
    while True:
        if (found := re.search(pattern, process.line(PATIENCE))) is not None:
            return found[1]
